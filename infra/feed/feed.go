// Package feed keeps the engine's inventory in step with the keyspace: it follows the objects of all
// providers' kinds and their ResourceStates, and knows which revision of each key the inventory has. A caller
// can wait until everything that was written before has arrived.
//
// It reads the keyspace, changes the inventory, and writes nothing.
package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
)

// Types maps API resources to types of providers. It is safe for concurrent use.
type Types interface {
	// Groups returns the groups of all Providers, whether or not their types are served now.
	Groups() []string
	// ByPlural returns the type that a plural name serves.
	ByPlural(group, plural string) (*infra.ServedKind, bool)
	// Changed returns a channel that is closed when the other methods may return something else than at this
	// call.
	Changed() <-chan struct{}
}

// Decode returns the JSON of a stored value, which may be encrypted. key is the complete key.
type Decode func(ctx context.Context, resource schema.GroupResource, key string, value []byte) ([]byte, error)

// Inventory is the part of the engine's inventory that a Feed updates.
type Inventory interface {
	SetObject(o *infra.Object)
	RemoveObject(ref expr.Ref)
	SetState(s *infra.State) *infra.State
	RemoveState(ref expr.Ref)
	Object(ref expr.Ref) *infra.Object
	State(ref expr.Ref) *infra.State
	KindsChanged()
}

// Config is the configuration of a Feed. All fields but Decode, OnWrite and Log are required.
type Config struct {
	Keyspace *clientv3.Client
	// Prefix precedes all keys of the API server, such as /registry.
	Prefix    string
	Decode    Decode
	Types     Types
	Inventory Inventory
	Clock     clock.WithTicker
	Log       *slog.Logger
	// OnWrite, if not nil, is called with each namespace in which an object was written or deleted, or, if
	// state is set, a state changed. It must not block. Everything found at the start counts as written,
	// because the previous leader may not have handled all of it.
	OnWrite func(namespace string, state bool)
}

// Feed keeps the inventory in step with the keyspace.
type Feed struct {
	cfg Config
	// id distinguishes this feed's watches from others of the same client.
	id string

	mu        sync.Mutex
	run       context.Context // nil until Run
	followers map[string]*follower
	running   sync.WaitGroup
	types     <-chan struct{}
	alignMu   sync.Mutex
}

// New returns a Feed that does nothing until Run.
func New(cfg Config) *Feed {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.OnWrite == nil {
		cfg.OnWrite = func(string, bool) {}
	}
	cfg.Prefix = strings.TrimSuffix(cfg.Prefix, "/")
	return &Feed{cfg: cfg, id: string(uuid.NewUUID()), followers: map[string]*follower{}}
}

// Run updates the inventory until ctx ends.
func (f *Feed) Run(ctx context.Context) error {
	f.mu.Lock()
	f.run = ctx
	f.mu.Unlock()
	defer f.running.Wait()
	f.updateFollowers()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.typesChanged():
			f.updateFollowers()
		}
	}
}

func (f *Feed) typesChanged() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.types
}

// updateFollowers follows every group, and updates objects to the types that are served now.
func (f *Feed) updateFollowers() {
	f.alignMu.Lock()
	defer f.alignMu.Unlock()
	f.follow(v1alpha1.ResourceStateResource.Group+"/"+v1alpha1.ResourceStateResource.Resource, &stateHandler{feed: f})
	changed := f.typesUpdated()
	groups := f.cfg.Types.Groups()
	for _, fo := range f.all() {
		if s, is := fo.handler.(*stateHandler); is {
			// A Provider may have been deleted while its resources remain.
			groups = append(groups, s.groups()...)
		}
	}
	slices.Sort(groups)
	for _, group := range slices.Compact(groups) {
		f.follow(group, &objectHandler{feed: f, group: group})
	}
	if !changed {
		return
	}
	for _, fo := range f.all() {
		fo.retype()
	}
	f.cfg.Inventory.KindsChanged()
}

// typesUpdated reports whether types have changed since its last call.
func (f *Feed) typesUpdated() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.types != nil {
		select {
		case <-f.types:
		default:
			return false
		}
	}
	first := f.types == nil
	f.types = f.cfg.Types.Changed()
	return !first
}

// follow starts a follower for a prefix, unless there is one.
func (f *Feed) follow(under string, h handler) {
	prefix := f.cfg.Prefix + "/" + under + "/"
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.run == nil || f.run.Err() != nil || f.followers[prefix] != nil {
		return
	}
	fo := newFollower(f, prefix, h)
	f.followers[prefix] = fo
	f.running.Go(func() { fo.follow(f.run) })
}

func (f *Feed) all() []*follower {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*follower, 0, len(f.followers))
	for _, fo := range f.followers {
		out = append(out, fo)
	}
	return out
}

// ErrNotRunning is returned by a Feed that does not run.
var ErrNotRunning = errors.New("this server does not watch infrastructure: it is not the leader")

// WaitCurrent returns once the inventory has everything that was written before the call. An error names values
// that cannot be decoded.
func (f *Feed) WaitCurrent(ctx context.Context) error {
	f.mu.Lock()
	run := f.run
	f.mu.Unlock()
	if run == nil {
		return ErrNotRunning
	}
	f.updateFollowers()
	reached := map[*follower]bool{}
	for {
		// States may reveal groups without a Provider: repeat until there are no new followers.
		group, groupCtx := errgroup.WithContext(ctx)
		added := false
		for _, fo := range f.all() {
			if !reached[fo] {
				reached[fo], added = true, true
				group.Go(func() error { return fo.catchUp(groupCtx, run) })
			}
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if !added {
			return nil
		}
		f.updateFollowers()
	}
}

// Drifted reports whether an object's condition Drifted is true.
func (f *Feed) Drifted(ref expr.Ref) bool {
	for _, fo := range f.all() {
		if o, is := fo.handler.(*objectHandler); is && o.drifted(ref) {
			return true
		}
	}
	return false
}

// Count has the number of objects of one group, and how many of them have drifted.
type Count struct{ Objects, Drifted int }

// Counts returns the numbers of objects by group.
func (f *Feed) Counts() map[string]Count {
	out := map[string]Count{}
	for _, fo := range f.all() {
		if h, is := fo.handler.(*objectHandler); is {
			fo.handling.Lock()
			n := Count{Objects: len(h.known)}
			fo.handling.Unlock()
			n.Drifted = h.driftedCount()
			out[h.group] = n
		}
	}
	return out
}

// revisionOf parses a resourceVersion; it returns -1 if it is not a number.
func revisionOf(resourceVersion string) int64 {
	n, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// retryAfter is how long a follower waits before it retries.
const retryAfter = time.Second

func (f *Feed) sleep(ctx context.Context) {
	timer := f.cfg.Clock.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// undecodableError describes values that could not be decoded.
func undecodableError(undecodable map[string]error) error {
	keys := make([]string, 0, len(undecodable))
	for key := range undecodable {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	others := ""
	if len(keys) > 1 {
		others = fmt.Sprintf(" (and %d more)", len(keys)-1)
	}
	return fmt.Errorf("%s cannot be decoded%s: %w; if it is encrypted, configure the encryption key that it was written with", keys[0], others, undecodable[keys[0]])
}
