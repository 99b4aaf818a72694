package plans

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
	"github.com/atoll-dev/atoll/infra/reference"
)

// Types tells which types of providers are behind the names of the API. It is safe for
// concurrent use.
type Types interface {
	// Groups are those of all Providers that there are, whether their types can be used just now or not.
	Groups() []string
	// ByPlural gives the type that is served under a name.
	ByPlural(group, plural string) (*infra.ServedKind, bool)
	// Changed gives a channel that is closed once the others answer differently than at this call.
	Changed() <-chan struct{}
}

// Decode gives the JSON of a stored value, which may be encrypted. The key is the whole key.
type Decode func(ctx context.Context, resource schema.GroupResource, key string, value []byte) ([]byte, error)

// world is infra.World.
type world interface {
	SetObject(o *infra.Object)
	RemoveObject(ref reference.Ref)
	SetState(s *infra.State) *infra.State
	RemoveState(ref reference.Ref)
	Object(ref reference.Ref) *infra.Object
	State(ref reference.Ref) *infra.State
	KindsChanged()
	Unapplied(namespace string) map[reference.Ref][]byte
}

// FeedConfig is what a Feed needs. All but Decode, Written and Log are required.
type FeedConfig struct {
	Keyspace *clientv3.Client
	// Prefix is before all keys of the API server, as /registry.
	Prefix string
	Decode Decode
	Types  Types
	World  world
	Clock  clock.WithTicker
	Log    *slog.Logger
	// Written, if not nil, is told of namespaces in which an object was written or deleted, or, with
	// state, a state changed. It does not block. What there is at the start counts as written: who
	// led before may not have seen all of it.
	Written func(namespace string, state bool)
}

// Feed keeps a World at what the keyspace has.
type Feed struct {
	cfg FeedConfig
	// id tells this feed's watches from those of others over the same client.
	id string

	mu        sync.Mutex
	run       context.Context // nil until Run
	followers map[string]*follower
	running   sync.WaitGroup
	types     <-chan struct{}
	aligning  sync.Mutex
}

// NewFeed gives a Feed that does nothing until Run.
func NewFeed(cfg FeedConfig) *Feed {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Written == nil {
		cfg.Written = func(string, bool) {}
	}
	cfg.Prefix = strings.TrimSuffix(cfg.Prefix, "/")
	return &Feed{cfg: cfg, id: string(uuid.NewUUID()), followers: map[string]*follower{}}
}

// Run feeds the World until ctx ends.
func (f *Feed) Run(ctx context.Context) error {
	f.mu.Lock()
	f.run = ctx
	f.mu.Unlock()
	defer f.running.Wait()
	f.align()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.typesChanged():
			f.align()
		}
	}
}

func (f *Feed) typesChanged() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.types
}

// align has every group followed that there is, and objects called by the types that are behind
// their names now.
func (f *Feed) align() {
	f.aligning.Lock()
	defer f.aligning.Unlock()
	f.follow(v1alpha1.ResourceStateResource.Group+"/"+v1alpha1.ResourceStateResource.Resource, &states{feed: f})
	changed := f.retype()
	groups := f.cfg.Types.Groups()
	for _, fo := range f.all() {
		if s, is := fo.kind.(*states); is {
			// A Provider may be gone, and not what was made with it.
			groups = append(groups, s.groups()...)
		}
	}
	slices.Sort(groups)
	for _, group := range slices.Compact(groups) {
		f.follow(group, &objects{feed: f, group: group})
	}
	if !changed {
		return
	}
	for _, fo := range f.all() {
		fo.rename()
	}
	f.cfg.World.KindsChanged()
}

// retype tells whether types have changed since it was last asked.
func (f *Feed) retype() bool {
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

// follow begins to follow what is under a prefix, unless that is done already.
func (f *Feed) follow(under string, k kind) {
	prefix := f.cfg.Prefix + "/" + under + "/"
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.run == nil || f.run.Err() != nil || f.followers[prefix] != nil {
		return
	}
	fo := newFollower(f, prefix, k)
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

// ErrNotFed is of a Feed that does not run.
var ErrNotFed = errors.New("this server does not follow what is written: it leads no longer, or not yet")

// Current returns once the World has everything that was written before the call. An error
// says what cannot be read.
func (f *Feed) Current(ctx context.Context) error {
	f.mu.Lock()
	run := f.run
	f.mu.Unlock()
	if run == nil {
		return ErrNotFed
	}
	f.align()
	reached := map[*follower]bool{}
	for {
		// States tell of groups that nobody else knows: once more, until nothing new comes.
		group, groupCtx := errgroup.WithContext(ctx)
		news := false
		for _, fo := range f.all() {
			if !reached[fo] {
				reached[fo], news = true, true
				group.Go(func() error { return fo.catchUp(groupCtx, run) })
			}
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if !news {
			return nil
		}
		f.align()
	}
}

// Drifted tells whether an object says of itself that it was found changed.
func (f *Feed) Drifted(ref reference.Ref) bool {
	for _, fo := range f.all() {
		if o, is := fo.kind.(*objects); is && o.drifted(ref) {
			return true
		}
	}
	return false
}

// revisionOf is a resourceVersion as a number; -1 if it is none.
func revisionOf(resourceVersion string) int64 {
	n, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// retryAfter is how long a follower rests before it tries again what failed.
const retryAfter = time.Second

func (f *Feed) rest(ctx context.Context) {
	timer := f.cfg.Clock.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// unreadable is what Current says of values that it could not take in.
func unreadable(broken map[string]error) error {
	keys := make([]string, 0, len(broken))
	for key := range broken {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	more := ""
	if len(keys) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(keys)-1)
	}
	return fmt.Errorf("%s cannot be read%s: %w; if it is encrypted, give the server the key that it was written with", keys[0], more, broken[keys[0]])
}
