// Package partition combines several keyspaces into one: a parent, and partitions that hold
// its keys under certain prefixes. Each has its own revisions, log, watches and commits, so
// writes in one do not wait for writes in another.
//
// The list of partitions is read from the database, so all servers agree. A server that
// detects a split or merge reopens the keyspace automatically. DESIGN.md describes which of
// etcd's guarantees hold, which requests are refused, and why.
package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
)

// Engine is an open keyspace; the composite closes it.
type Engine interface {
	kv.Keyspace
	Close() error
}

// Opener opens the parts of one keyspace.
type Opener interface {
	// Prefixes returns the prefixes of the existing partitions.
	Prefixes(ctx context.Context) ([]string, error)
	// Open opens the partition of a prefix; the parent for "". For a partition that no
	// longer exists it returns kv.ErrKeyNotFound. It opens the parent again after a split or
	// merge, and then returns kv.ErrDropped if the keyspace was dropped since, even if there
	// is a new one of the same name.
	Open(ctx context.Context, prefix string) (Engine, error)
}

// Options of a Keyspace. The zero value is for production.
type Options struct {
	// Clock for samples and leases; the real one if nil.
	Clock clock.WithTicker
	// SampleInterval is the time between samples of the partitions' revisions. It is also
	// the precision of a compaction of the parent in its partitions; 10 s if 0.
	SampleInterval time.Duration
	// LeaseInterval is the time between checks for expired leases, and so the delay between
	// the end of a lease and the deletion of its keys in a partition; 1 s if 0.
	LeaseInterval time.Duration
}

// Keyspace implements kv.Keyspace on a parent and its partitions.
type Keyspace struct {
	name   string
	opener Opener
	opts   Options
	layout atomic.Pointer[layout]

	mu     sync.Mutex // held while opening and closing
	ids    map[string]int
	limits kv.Limits

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

var (
	_ kv.Keyspace    = (*Keyspace)(nil)
	_ kv.Partitioned = (*Keyspace)(nil)
	_ kv.Prober      = (*Keyspace)(nil)
)

// maxReopen bounds the number of splits and merges that one call follows.
const maxReopen = 5

// Open opens a keyspace with all its partitions. The name appears in messages.
func Open(ctx context.Context, name string, opener Opener, opts Options) (*Keyspace, error) {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.SampleInterval == 0 {
		opts.SampleInterval = 10 * time.Second
	}
	if opts.LeaseInterval == 0 {
		opts.LeaseInterval = time.Second
	}
	k := &Keyspace{name: name, opener: opener, opts: opts, ids: map[string]int{}}
	k.ctx, k.stop = context.WithCancel(context.WithoutCancel(ctx))
	l, err := k.assemble(ctx, nil)
	if err != nil {
		k.stop()
		return nil, err
	}
	k.layout.Store(l)
	k.wg.Go(k.sampleLoop)
	k.wg.Go(k.leaseLoop)
	return k, nil
}

// Close closes all engines. Calls under way end as each engine ends them.
func (k *Keyspace) Close() error {
	k.stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.layout.Load().close()
	k.wg.Wait()
	return err
}

// Prefixes returns the prefixes of the partitions, ascending.
func (k *Keyspace) Prefixes() []string {
	l := k.layout.Load()
	out := make([]string, len(l.parts))
	for i, p := range l.parts {
		out[i] = p.prefix
	}
	return out
}

// shouldRetry reports whether a call that failed on a layout should be repeated on the
// current one. If necessary, it reopens the keyspace first.
func (k *Keyspace) shouldRetry(ctx context.Context, l *layout, try int, err error) bool {
	switch {
	case err == nil, errors.Is(err, kv.ErrUnknownOutcome), try >= maxReopen:
		return false
	case errors.Is(err, kv.ErrRepartitioned):
		return k.reopen(ctx, l) == nil
	default:
		// Another call has reopened the keyspace, and closed the engine that this call was
		// using: a merged partition. Nothing has happened in this case either.
		return errors.Is(err, kv.ErrClosed) && k.ctx.Err() == nil && k.layout.Load() != l
	}
}

// reopen replaces an outdated layout.
func (k *Keyspace) reopen(ctx context.Context, old *layout) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return fmt.Errorf("keyspace %q: %w", k.name, kv.ErrClosed)
	}
	if k.layout.Load() != old {
		return nil // another call has done so
	}
	next, err := k.assemble(ctx, old)
	if err != nil {
		return err
	}
	k.layout.Store(next)
	for _, e := range old.engines() {
		if !slices.Contains(next.engines(), e) {
			k.wg.Go(func() { _ = e.Close() })
		}
	}
	return nil
}

// assemble opens the parent and its partitions. Engines that are open and still valid stay,
// with their watches.
func (k *Keyspace) assemble(ctx context.Context, old *layout) (_ *layout, err error) {
	for try := 0; ; try++ {
		l, err := k.assembleOnce(ctx, old)
		// A listed partition was merged meanwhile, and the parent has not noticed yet.
		if err == nil || try == maxReopen || !errors.Is(err, kv.ErrKeyNotFound) && !errors.Is(err, kv.ErrRepartitioned) {
			return l, err
		}
	}
}

func (k *Keyspace) assembleOnce(ctx context.Context, old *layout) (_ *layout, err error) {
	l := &layout{}
	var opened []Engine
	defer func() {
		if err != nil {
			for _, e := range opened {
				err = errors.Join(err, e.Close())
			}
		}
	}()
	open := func(prefix string) (Engine, error) {
		e, err := k.opener.Open(ctx, prefix)
		if err == nil {
			opened = append(opened, e)
			k.limit(e)
		}
		return e, err
	}
	// The parent first: it detects splits and merges after it was opened, and the list of
	// partitions contains those before.
	if old != nil && alive(ctx, old.parent) {
		l.parent = old.parent
	} else if l.parent, err = open(""); err != nil {
		return nil, err
	}
	prefixes, err := k.opener.Prefixes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list partitions of keyspace %q: %w", k.name, err)
	}
	slices.Sort(prefixes)
	for i, prefix := range prefixes {
		if i > 0 && strings.HasPrefix(prefix, prefixes[i-1]) {
			return nil, fmt.Errorf("open keyspace %q: %w: the partitions for %q and %q overlap, so they were not created by atoll kv split; remove one of them from the database",
				k.name, kv.ErrInvalidRequest, prefixes[i-1], prefix)
		}
		p := old.keep(ctx, prefix)
		if p == nil {
			span := kv.Prefix([]byte(prefix))
			p = &part{prefix: prefix, span: span, id: k.idOf(prefix), renewals: map[kv.LeaseID]time.Time{}}
			if p.engine, err = open(prefix); err != nil {
				return nil, err
			}
			if err := k.checkStrayKeys(ctx, l.parent, prefix); err != nil {
				return nil, err
			}
		}
		l.parts = append(l.parts, p)
	}
	l.sample(ctx)
	return l, nil
}

// checkStrayKeys makes sure that the parent has no keys under a partition's prefix: no
// client would find them any more.
func (k *Keyspace) checkStrayKeys(ctx context.Context, parent Engine, prefix string) error {
	named := kv.Span{Start: []byte(strings.TrimSuffix(prefix, "/"))}
	for _, span := range []kv.Span{kv.Prefix([]byte(prefix)), named} {
		if len(span.Start) == 0 {
			continue
		}
		res, err := parent.Range(ctx, kv.RangeRequest{Span: span, Limit: 1, KeysOnly: true})
		if err != nil {
			return err
		}
		if len(res.KVs) == 0 {
			continue
		}
		return fmt.Errorf("open keyspace %q: %w: it is split at %q, but the parent has %d keys under that prefix, such as %q: a program without support for partitions has written them. "+
			"Stop all servers, merge both with atoll kv merge --keyspace %s --prefix %s (if a key exists in both, the partition's stays), and split again",
			k.name, kv.ErrInvalidRequest, prefix, res.Count, res.KVs[0].Key, k.name, prefix)
	}
	return nil
}

// idOf returns a permanent number for a prefix, regardless of other partitions.
func (k *Keyspace) idOf(prefix string) int {
	id, ok := k.ids[prefix]
	if !ok {
		id = len(k.ids) + 1
		k.ids[prefix] = id
	}
	return id
}

// alive reports whether an engine is still valid for its keyspace. One that cannot answer
// now is considered valid; so is one whose keyspace was dropped, because its calls must go
// on to fail with that error.
func alive(ctx context.Context, e Engine) bool {
	_, err := head(ctx, e)
	return !errors.Is(err, kv.ErrRepartitioned)
}

// head returns the revision of a keyspace, which includes everything acknowledged before.
func head(ctx context.Context, ks kv.Keyspace) (kv.Revision, error) {
	res, err := ks.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte{0}}, CountOnly: true})
	if err != nil {
		return 0, err
	}
	return res.Revision, nil
}
