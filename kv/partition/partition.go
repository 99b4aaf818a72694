// Package partition makes one keyspace of several: a parent, and partitions that
// hold what it has under certain prefixes, each with revisions, log, watches and
// commits of its own. Writes of one do not wait for those of another.
//
// Which partitions there are is read from the database, so all servers agree; who
// finds that a keyspace was split or merged opens it again by itself. DESIGN.md
// tells what is kept of etcd's promises, what is refused, and why.
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

// Engine is an open keyspace that the composite closes.
type Engine interface {
	kv.Keyspace
	Close() error
}

// Source opens the parts of one keyspace.
type Source interface {
	// Prefixes names the partitions that there are now.
	Prefixes(ctx context.Context) ([]string, error)
	// Open opens the partition of a prefix; the parent for "". A partition that is
	// not there any more is kv.ErrKeyNotFound.
	Open(ctx context.Context, prefix string) (Engine, error)
}

// Options of a Keyspace. The zero value is for production.
type Options struct {
	// Clock that samples and leases go by; the real one if nil.
	Clock clock.WithTicker
	// SampleInterval is how often it is noted where the partitions stand, which
	// is as exactly as a compaction of the parent carries over to them; 10 s if 0.
	SampleInterval time.Duration
	// LeaseInterval is how often ended leases are looked for, so how much later than
	// its lease a key in a partition may go; 1 s if 0.
	LeaseInterval time.Duration
}

// Keyspace implements kv.Keyspace on a parent and its partitions.
type Keyspace struct {
	name   string
	source Source
	opts   Options
	layout atomic.Pointer[layout]

	mu  sync.Mutex // held to open and close
	ids map[string]int

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

var (
	_ kv.Keyspace    = (*Keyspace)(nil)
	_ kv.Partitioned = (*Keyspace)(nil)
)

// maxReopen bounds how often one call follows splits and merges.
const maxReopen = 5

// Open opens a keyspace with all its partitions. The name is for messages.
func Open(ctx context.Context, name string, source Source, opts Options) (*Keyspace, error) {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.SampleInterval == 0 {
		opts.SampleInterval = 10 * time.Second
	}
	if opts.LeaseInterval == 0 {
		opts.LeaseInterval = time.Second
	}
	k := &Keyspace{name: name, source: source, opts: opts, ids: map[string]int{}}
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

// Close closes all engines. What is under way ends as it does with each of them.
func (k *Keyspace) Close() error {
	k.stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.layout.Load().close()
	k.wg.Wait()
	return err
}

// Prefixes of the partitions, ascending.
func (k *Keyspace) Prefixes() []string {
	l := k.layout.Load()
	out := make([]string, len(l.parts))
	for i, p := range l.parts {
		out[i] = p.prefix
	}
	return out
}

// moved tells whether a call that failed on a layout shall be made again on the
// one there is now.
func (k *Keyspace) moved(ctx context.Context, l *layout, try int, err error) bool {
	switch {
	case err == nil, errors.Is(err, kv.ErrUnknownOutcome), try >= maxReopen:
		return false
	case errors.Is(err, kv.ErrRepartitioned):
		return k.reopen(ctx, l) == nil
	default:
		// Somebody else has reopened, and closed what this call was using: a
		// partition that is merged. Nothing has happened then either.
		return errors.Is(err, kv.ErrClosed) && k.ctx.Err() == nil && k.layout.Load() != l
	}
}

// reopen replaces a layout that does not hold any more.
func (k *Keyspace) reopen(ctx context.Context, old *layout) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return fmt.Errorf("keyspace %q: %w", k.name, kv.ErrClosed)
	}
	if k.layout.Load() != old {
		return nil // somebody else has done so
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

// assemble opens what there is. What is open already and still good stays, with
// its watches.
func (k *Keyspace) assemble(ctx context.Context, old *layout) (_ *layout, err error) {
	for try := 0; ; try++ {
		l, err := k.assembleOnce(ctx, old)
		// A partition that was there a moment ago was merged meanwhile, and the parent
		// does not know yet.
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
		e, err := k.source.Open(ctx, prefix)
		if err == nil {
			opened = append(opened, e)
		}
		return e, err
	}
	// The parent first: what is split or merged after it was opened it finds out,
	// and what was before the list of partitions has.
	if old != nil && alive(ctx, old.parent) {
		l.parent = old.parent
	} else if l.parent, err = open(""); err != nil {
		return nil, err
	}
	prefixes, err := k.source.Prefixes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list partitions of keyspace %q: %w", k.name, err)
	}
	slices.Sort(prefixes)
	for i, prefix := range prefixes {
		if i > 0 && strings.HasPrefix(prefix, prefixes[i-1]) {
			return nil, fmt.Errorf("open keyspace %q: %w: the partitions for %q and %q overlap, so something else than atoll kv split has made them; remove one of them from the database",
				k.name, kv.ErrInvalidRequest, prefixes[i-1], prefix)
		}
		p := old.keep(ctx, prefix)
		if p == nil {
			span := kv.Prefix([]byte(prefix))
			p = &part{prefix: prefix, span: span, id: k.idOf(prefix), renewals: map[kv.LeaseID]time.Time{}}
			if p.engine, err = open(prefix); err != nil {
				return nil, err
			}
			if err := k.refuseStrays(ctx, l.parent, prefix); err != nil {
				return nil, err
			}
		}
		l.parts = append(l.parts, p)
	}
	l.sample(ctx)
	return l, nil
}

// refuseStrays makes sure that the parent has no keys that belong to a
// partition: nobody would find them any more.
func (k *Keyspace) refuseStrays(ctx context.Context, parent Engine, prefix string) error {
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
		return fmt.Errorf("open keyspace %q: %w: it is split at %q, and yet holds %d keys there itself, such as %q: a program that knows no partitions has written them. "+
			"With all servers stopped, put both together with atoll kv merge --keyspace %s --prefix %s (of keys that both have, the partition's stay), and split it again",
			k.name, kv.ErrInvalidRequest, prefix, res.Count, res.KVs[0].Key, k.name, prefix)
	}
	return nil
}

// idOf numbers prefixes: one number for ever, whatever comes and goes beside it.
func (k *Keyspace) idOf(prefix string) int {
	id, ok := k.ids[prefix]
	if !ok {
		id = len(k.ids) + 1
		k.ids[prefix] = id
	}
	return id
}

// alive tells whether an engine is still that of its keyspace. One that cannot
// answer now is not thereby another.
func alive(ctx context.Context, e Engine) bool {
	_, err := head(ctx, e)
	return !errors.Is(err, kv.ErrRepartitioned)
}

// head is where a keyspace stands, with everything acknowledged before.
func head(ctx context.Context, ks kv.Keyspace) (kv.Revision, error) {
	res, err := ks.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte{0}}, CountOnly: true})
	if err != nil {
		return 0, err
	}
	return res.Revision, nil
}
