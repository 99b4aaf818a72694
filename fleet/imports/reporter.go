package imports

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/fleet"
)

// Reporter receives the types of a member that are read outside the controller. All calls are
// idempotent.
type Reporter interface {
	// ReportTypes reports which groups the member serves, and returns what else is requested.
	ReportTypes(context.Context, fleet.TypesReport) (fleet.TypesWanted, error)
	// ReportGroup reports the content of one group.
	ReportGroup(context.Context, fleet.GroupReport) error
}

// Report reads the types of a member as the controller would, and reports them every minute and
// whenever they change, until ctx ends.
func Report(ctx context.Context, cluster string, member *rest.Config, clk clock.WithTicker, log *slog.Logger, to Reporter) error {
	w, err := newMemberClients(member)
	if err != nil {
		return fmt.Errorf("create a client for the cluster: %w", err)
	}
	return reportOver(ctx, cluster, w, clk, log, to)
}

func reportOver(ctx context.Context, cluster string, w memberClients, clk clock.WithTicker, log *slog.Logger, to Reporter) error {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	o := &groupReporter{cluster: cluster, to: to, fields: NewFields(), queried: map[string]bool{}, packed: map[string]packedGroup{}}
	changed := make(chan struct{}, 1)
	var err error
	o.watcher, err = newTypeWatcher(ctx, watcherConfig{clock: clk, fields: o.fields, inFull: o.inFull, running: &running}, cluster, w, "", func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: maxBackoff}
	retry := backoff
	for lastError := ""; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		err := o.report(ctx)
		if err == nil {
			retry, lastError = backoff, ""
			continue
		}
		if err.Error() != lastError && ctx.Err() == nil {
			lastError = err.Error()
			log.Warn("report of the cluster's types failed; retrying", "error", err)
		}
		timer := clk.NewTimer(retry.Step())
		select {
		case <-ctx.Done():
		case <-timer.C():
			o.watcher.trigger()
		}
		timer.Stop()
	}
}

// groupReporter reports the types that a watcher reads.
type groupReporter struct {
	cluster string
	to      Reporter
	watcher *typeWatcher
	fields  *Fields

	// packed holds the encoded groups of the snapshot that digest identifies; problem lists the
	// groups that could not be encoded.
	digest  string
	packed  map[string]packedGroup
	problem string

	mu      sync.Mutex
	queried map[string]bool // groups without CRDs that a policy may name in full
	wanted  []string        // groups that a policy names in full
}

type packedGroup struct {
	content []byte
	digest  string
}

// inFull reports whether types of a group without CRDs are requested. It also records the
// groups it is called for: these are the groups to ask the control plane about.
func (o *groupReporter) inFull(group string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queried[group] = true
	return slices.Contains(o.wanted, group)
}

// report sends the current state.
func (o *groupReporter) report(ctx context.Context) error {
	seen := o.watcher.snapshot()
	out := fleet.TypesReport{Groups: map[string]fleet.GroupDigest{}}
	switch {
	case seen.err != nil:
		out.Message = explain(seen.err, o.cluster)
	case !seen.complete:
		return nil // it has not been read yet
	case seen.digest != o.digest:
		if err := o.pack(seen); err != nil {
			return err
		}
	}
	if out.Message == "" {
		out.Message = o.problem
	}
	for group, p := range o.packed {
		out.Groups[group] = fleet.GroupDigest{Digest: p.digest, Size: len(p.content)}
	}
	o.mu.Lock()
	out.Others = slices.Sorted(maps.Keys(o.queried))
	o.mu.Unlock()
	wanted, err := o.to.ReportTypes(ctx, out)
	if err != nil {
		return err
	}
	for _, group := range wanted.Missing {
		if p, have := o.packed[group]; have {
			if err := o.to.ReportGroup(ctx, fleet.GroupReport{Group: group, Content: p.content}); err != nil {
				return err
			}
		}
	}
	slices.Sort(wanted.InFull)
	o.mu.Lock()
	changed := !slices.Equal(o.wanted, wanted.InFull)
	o.wanted = wanted.InFull
	o.mu.Unlock()
	if changed {
		o.watcher.trigger()
	}
	return nil
}

// pack encodes the content of each group. Groups that are too large are omitted and reported.
func (o *groupReporter) pack(seen snapshot) error {
	packed, large := map[string]packedGroup{}, []string(nil)
	for group, in := range contentsOf(seen.types, o.fields.documentsOf(o.cluster)) {
		content, digest, err := in.pack()
		if err != nil {
			return fmt.Errorf("encode the cluster's types of group %q: %w", group, err)
		}
		if len(content) > maxGroupBytes {
			large = append(large, group)
			continue
		}
		packed[group] = packedGroup{content, digest}
	}
	o.digest, o.packed, o.problem = seen.digest, packed, ""
	if len(large) > 0 {
		slices.Sort(large)
		o.problem = fmt.Sprintf("showing the last known types of cluster %s: those of %s exceed the limit of its syncer's reports (%d bytes, compressed). Join the cluster in mode Push, or remove types there",
			o.cluster, strings.Join(large, ", "), maxGroupBytes)
	}
	return nil
}
