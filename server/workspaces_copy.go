package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/transfer"
	"github.com/atoll-dev/atoll/tenancy"
)

const (
	// maxCopies is how many workspaces are being copied at the same time. The others wait.
	maxCopies = 2
	// copyPatience is how long the controller waits for a copy before it reports how far it is, and looks again after copyInterval.
	copyPatience = time.Second
	copyInterval = time.Second
	// backupInterval is the same for a workspace whose backup another server may be restoring.
	backupInterval = 2 * time.Second
	// copyRaise is how far the revisions of a copy are above those of its source. So no position of a client in one of them means
	// anything in the other one, for as many changes.
	copyRaise = 1_000_000_000
)

// copies are the workspaces that this server is making as copies of others. A copy outlives the reconcile that began it.
type copies struct {
	mu      sync.Mutex
	running map[string]*copying // by UID, those included that are over
}

// copying is one attempt.
type copying struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when err is set
	err    error
	// copied is how many keys the attempt has seen, of about total.
	copied, total atomic.Int64
}

// hooks report the progress of an attempt.
func (c *copying) hooks() transfer.ProgressHooks {
	return transfer.ProgressHooks{
		Phase: func(_ string, total int64) { c.copied.Store(0); c.total.Store(total) },
		Step:  func(keys, _ int64) { c.copied.Add(keys) },
	}
}

// progress says how far the attempt is.
func (c *copying) progress(w *tenancyv1alpha1.Workspace) string {
	return fmt.Sprintf("copied %d of about %d objects of %s", c.copied.Load(), c.total.Load(), sourceName(w))
}

// sourceName is how messages name the source of a copy.
func sourceName(w *tenancyv1alpha1.Workspace) string {
	if w.Spec.Source.Backup {
		return "the backup"
	}
	return "workspace " + w.Spec.Source.Name
}

// copySource makes a workspace with spec.source a copy of that. It returns when the copy is complete, or after copyPatience.
// Errors: *tenancy.Unready.
func (t *tenants) copySource(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) error {
	if w.Spec.Source == nil || w.Spec.Source.MoveFrom != "" {
		return nil
	}
	if state, err := t.stateOfCopy(ctx, string(w.UID)); err != nil || state == workspaces.Complete {
		return err
	}
	if w.Spec.Source.Backup {
		return t.awaitBackup(w)
	}
	c := t.copies.begin(t.running, string(w.UID), func(ctx context.Context, c *copying) error { return t.copy(ctx, path, w, c) }, nil)
	if c == nil {
		return &tenancy.Unready{Reason: "CopyWaits", Message: fmt.Sprintf("the copy begins when one of the %d that run is done", maxCopies), After: copyInterval}
	}
	select {
	case <-c.done:
		t.copies.forget(string(w.UID), c)
		return copyProblem(w, c.err)
	case <-ctx.Done():
		return ctx.Err()
	case <-t.s.cfg.Clock.After(copyPatience):
		return &tenancy.Unready{Reason: "Copying", Message: c.progress(w), After: copyInterval}
	}
}

// errSourceGone ends the copy of a workspace that does not exist any more.
var errSourceGone = errors.New("the source does not exist any more")

// copyProblem returns the error of an attempt as the status of the Workspace has it.
func copyProblem(w *tenancyv1alpha1.Workspace, err error) error {
	exceeded, limited := errors.AsType[*kv.LimitError](err)
	switch {
	case limited && exceeded.Resource == "keys":
		return &tenancy.Unready{Reason: "LimitExceeded", Message: fmt.Sprintf("%s has more objects than spec.limits.objects permits, which is %d: raise it", sourceName(w), exceeded.Limit)}
	case limited:
		return &tenancy.Unready{Reason: "LimitExceeded", Message: fmt.Sprintf("%s is larger than spec.limits.bytes permits, which is %d: raise it", sourceName(w), exceeded.Limit)}
	case errors.Is(err, errSourceGone):
		return &tenancy.Unready{Reason: "SourceNotFound", Message: fmt.Sprintf("%s, which this one is a copy of, does not exist any more: delete this one", sourceName(w))}
	case errors.Is(err, workspaces.ErrIncomplete):
		return &tenancy.Unready{Reason: "SourcePending", Message: fmt.Sprintf("%s is not complete itself", sourceName(w)), After: copyInterval}
	}
	return err
}

// begin returns the attempt that fills a workspace, and begins one if none runs; nil if too many do. It sets begun if it is a new one.
func (s *copies) begin(ctx context.Context, uid string, run func(context.Context, *copying) error, begun *bool) *copying {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.running[uid]; c != nil {
		return c
	}
	if s.active() >= maxCopies {
		return nil
	}
	if s.running == nil {
		s.running = map[string]*copying{}
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &copying{cancel: cancel, done: make(chan struct{})}
	s.running[uid] = c
	if begun != nil {
		*begun = true
	}
	go func() {
		defer close(c.done)
		defer cancel()
		c.err = run(ctx, c)
	}()
	return c
}

// of returns the attempt that fills a workspace, nil if none does.
func (s *copies) of(uid string) *copying {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[uid]
}

// active returns how many attempts run. One that is over stays until the controller has its result.
func (s *copies) active() (n int) {
	for _, c := range s.running {
		select {
		case <-c.done:
		default:
			n++
		}
	}
	return n
}

// forget removes an attempt that is over.
func (s *copies) forget(uid string, c *copying) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[uid] == c {
		delete(s.running, uid)
	}
}

// end ends the attempt that fills a workspace, and returns when it is over.
func (s *copies) end(uid string) {
	if c := s.of(uid); c != nil {
		c.cancel()
		<-c.done
		s.forget(uid, c)
	}
}

// endAll ends all attempts.
func (s *copies) endAll() {
	s.mu.Lock()
	var all []string
	for uid := range s.running {
		all = append(all, uid)
	}
	s.mu.Unlock()
	for _, uid := range all {
		s.end(uid)
	}
}

// copy is one attempt to make a workspace a copy of its source.
// Errors: errSourceGone, and workspaces.ErrIncomplete if the source is not complete itself.
func (t *tenants) copy(ctx context.Context, path string, w *tenancyv1alpha1.Workspace, c *copying) error {
	ctx, source, release, err := t.tree.Acquire(ctx, below(tenancy.Parent(path), w.Spec.Source.Name))
	if errors.Is(err, tenancy.ErrNotFound) {
		return errSourceGone
	}
	if err != nil {
		return err
	}
	defer release()
	if source.UID() != w.Spec.Source.UID {
		return errSourceGone
	}
	status, err := source.keyspace.Status(ctx)
	if err != nil {
		return fmt.Errorf("read the source: %w", err)
	}
	return t.fill(ctx, path, w, status.Revision, func(ctx context.Context, into kv.Keyspace, span kv.Span, change workspaces.CopyChange) error {
		if _, err := transfer.Copy(ctx, source.keyspace, into, t.copyOptions(c, span, change)); err != nil {
			return err
		}
		return checkCopiedProviders(ctx, into)
	})
}

func (t *tenants) copyOptions(c *copying, span kv.Span, change workspaces.CopyChange) transfer.Options {
	return transfer.Options{Span: span, Existing: transfer.Mirror, Change: change, Progress: c.hooks(), Clock: t.s.cfg.Clock}
}

// filling fills a keyspace, as workspaces.CopyTarget.Fill.
type filling = func(ctx context.Context, into kv.Keyspace, span kv.Span, change workspaces.CopyChange) error

// fill makes a workspace a copy of a source, whose revision is given.
func (t *tenants) fill(ctx context.Context, path string, w *tenancyv1alpha1.Workspace, source kv.Revision, fill filling) (err error) {
	keyspace, err := t.openCopy(ctx, path, w, source+copyRaise)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keyspace.Close()) }()
	keyspace.SetLimits(tenancy.Limits(w))
	return t.served.Copy(ctx, workspaces.CopyTarget{Keyspace: keyspace, UID: string(w.UID), Owner: ownerOf(w), Fill: fill,
		// The copy has the deletions and the dependents that the controllers of the source have not finished.
		BeforeEnd: func(ctx context.Context) error {
			if err := t.checkCompiledCopy(ctx, path, w, keyspace); err != nil {
				return err
			}
			if w.Spec.Placement != nil {
				if err := t.marker.Mark(ctx, tenancy.Placement, path, string(w.UID)); err != nil {
					return err
				}
			}
			return t.marker.Mark(ctx, tenancy.Controllers, path, string(w.UID))
		}})
}

// below is the path of a workspace in another one; "" stands for the root.
func below(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + ":" + name
}

// openCopy opens the keyspace of a copy, and creates it at a revision.
func (t *tenants) openCopy(ctx context.Context, path string, w *tenancyv1alpha1.Workspace, revision kv.Revision) (*partition.Keyspace, error) {
	if _, err := t.tree.Confirm(ctx, path, string(w.UID)); err != nil {
		return nil, fmt.Errorf("confirm the copy: %w", err)
	}
	name := keyspaceOf(string(w.UID))
	table, err := t.s.datastore.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := raiseEmpty(ctx, table, revision); err != nil {
		return nil, err
	}
	keyspace, err := t.s.datastore.ExistingKeyspace(ctx, name, t.keyspaceOptions(name))
	if err != nil {
		return nil, err
	}
	if err := t.confirmCreated(ctx, path, string(w.UID), keyspace); err != nil {
		return nil, err
	}
	return keyspace, nil
}

// raiseEmpty raises the revision of a keyspace that has no keys.
func raiseEmpty(ctx context.Context, table kv.Table, to kv.Revision) error {
	found, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), Limit: 1}, false)
	if err != nil || len(found.KVs) > 0 {
		return err
	}
	return transfer.Raise(ctx, table, to)
}

// stateOfCopy reads how far the keyspace of a workspace is.
func (t *tenants) stateOfCopy(ctx context.Context, uid string) (workspaces.CopyState, error) {
	table, err := t.s.datastore.OpenExisting(ctx, keyspaceOf(uid))
	if errors.Is(err, kv.ErrKeyNotFound) {
		return workspaces.NotBegun, nil
	}
	if err != nil {
		return workspaces.NotBegun, err
	}
	return workspaces.StateOfCopy(ctx, table)
}

// checkComplete returns an error for a workspace that is to become a copy, and is not complete.
// Errors: workspaces.ErrIncomplete.
func (t *tenants) checkComplete(ctx context.Context, uid, path string) error {
	state, err := t.stateOfCopy(ctx, uid)
	if err != nil || state == workspaces.Complete {
		return err
	}
	w, err := t.byUID(ctx, uid, path)
	switch {
	case errors.Is(err, tenancy.ErrNotFound) && state == workspaces.NotBegun:
		return nil // it is being deleted, or was never created: opening it finds out
	case errors.Is(err, tenancy.ErrNotFound), err == nil && (state == workspaces.Incomplete || w.Spec.Source != nil):
		return workspaces.ErrIncomplete
	}
	return err
}

// keyspaceOptions are the options of a workspace's keyspace.
func (t *tenants) keyspaceOptions(name string) mvcc.Options {
	retention := cmp.Or(t.s.cfg.HistoryRetention, defaultRetention)
	return mvcc.Options{
		CacheBytes:       workspaceCache,
		Observer:         LogBehind(t.s.metrics.engine.Observer(), name),
		Retention:        mvcc.Retention{Age: retention, MaxChanges: t.s.cfg.HistoryMaxChanges},
		WatchSilence:     min(retention, defaultRetention),
		ProgressInterval: time.Minute,
	}
}
