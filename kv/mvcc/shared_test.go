package mvcc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// network describes the connection between engines and their shared table, and the delivery
// of hints.
type network struct {
	// delay is the maximum delay of each call; half before it and half after.
	delay time.Duration
	// hintDelay is the maximum delay of a hint; lost and twice are the hints of 100 that
	// are lost or repeated.
	hintDelay   time.Duration
	lost, twice int
	// poll is how often the head is sent unconditionally.
	poll time.Duration
}

// sharedDB is a table that several engines write to, each through a conn.
type sharedDB struct {
	kv.Table
	net network

	mu    sync.Mutex
	hints map[int]chan<- kv.Revision
	rng   *rand.Rand
}

func newSharedDB(t testing.TB, net network) (*sharedDB, *sqlite.DB) {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table, err := db.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	return &sharedDB{Table: table, net: net, hints: map[int]chan<- kv.Revision{}, rng: rand.New(rand.NewPCG(1, 2))}, db
}

// chance is true n times of 100.
func (s *sharedDB) chance(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.IntN(100) < n
}

// random returns a random duration up to d.
func (s *sharedDB) random(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rng.Int64N(int64(d)))
}

func (s *sharedDB) tell(rev kv.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.hints {
		select {
		case c <- rev:
		default: // lost
		}
	}
}

// conn is one engine's connection to a sharedDB.
type conn struct {
	*sharedDB
	id int
	// fault, if set, decides whether to fail a call, or only its answer.
	fault atomic.Pointer[func(answer bool) error]
	// stale, if set, is returned instead of the leases.
	stale atomic.Pointer[[]kv.LeaseRecord]
	// guessed is called once, in the middle of an optimistic update.
	guessed atomic.Pointer[func()]

	logReads, logRows, headReads, leaseReads, compactions atomic.Int64
}

var _ kv.SharedTable = (*conn)(nil)

// failWith makes every call fail from now on; nil ends that.
func (l *conn) failWith(err error) {
	if err == nil {
		l.fault.Store(nil)
		return
	}
	f := func(bool) error { return err }
	l.fault.Store(&f)
}

// trip is the network transit in one direction.
func (l *conn) trip(answer bool) error {
	if d := l.random(l.net.delay / 2); d > 0 {
		time.Sleep(d)
	}
	if f := l.fault.Load(); f != nil {
		return (*f)(answer)
	}
	return nil
}

func call[T any](l *conn, f func() (T, error)) (none T, err error) {
	if err := l.trip(false); err != nil {
		return none, err
	}
	v, err := f()
	if err := l.trip(true); err != nil {
		return none, fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	return v, err
}

func (l *conn) Update(ctx context.Context, prefetch []kv.Lookup, fn func(kv.Tx) error) error {
	if err := l.trip(false); err != nil {
		return err
	}
	var before, after kv.Revision
	err := l.Table.Update(ctx, prefetch, func(tx kv.Tx) error {
		before = tx.Head().Revision
		w := &writtenTx{Tx: tx}
		err := fn(w)
		after = w.revision
		return err
	})
	if err != nil {
		return err
	}
	if after > before {
		l.tell(after)
	}
	if err := l.trip(true); err != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, err)
	}
	return nil
}

// writtenTx records the written revision.
type writtenTx struct {
	kv.Tx
	revision kv.Revision
}

func (w *writtenTx) Write(rev kv.Revision, changes []kv.Change) error {
	w.revision = rev
	return w.Tx.Write(rev, changes)
}

func (l *conn) Head(ctx context.Context) (kv.Head, error) {
	l.headReads.Add(1)
	return call(l, func() (kv.Head, error) { return l.Table.Head(ctx) })
}

func (l *conn) Range(ctx context.Context, req kv.RangeRequest, wantCount bool) (res *kv.RangeResult, head kv.Head, err error) {
	res, err = call(l, func() (*kv.RangeResult, error) {
		res, head, err = l.Table.Range(ctx, req, wantCount)
		return res, err
	})
	return res, head, err
}

func (l *conn) Changes(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) (list []kv.Change, head kv.Head, err error) {
	l.logReads.Add(1)
	list, err = call(l, func() ([]kv.Change, error) {
		list, head, err = l.Table.Changes(ctx, after, upTo, limit, withPrev)
		return list, err
	})
	l.logRows.Add(int64(len(list)))
	return list, head, err
}

func (l *conn) SetCompacted(ctx context.Context, rev kv.Revision) error {
	l.compactions.Add(1)
	_, err := call(l, func() (struct{}, error) { return struct{}{}, l.Table.SetCompacted(ctx, rev) })
	return err
}

func (l *conn) Leases(ctx context.Context) ([]kv.LeaseRecord, error) {
	defer l.leaseReads.Add(1)
	if stale := l.stale.Load(); stale != nil {
		return *stale, nil
	}
	return call(l, func() ([]kv.LeaseRecord, error) { return l.Table.Leases(ctx) })
}

func (l *conn) Follow(ctx context.Context, notify func(kv.Revision)) error {
	c := make(chan kv.Revision, 64)
	l.mu.Lock()
	l.hints[l.id] = c
	l.mu.Unlock()
	tick := time.NewTicker(max(l.net.poll, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case rev := <-c:
			if l.chance(l.net.lost) {
				continue
			}
			time.Sleep(l.random(l.net.hintDelay))
			notify(rev)
			if l.chance(l.net.twice) {
				notify(rev)
			}
		case <-tick.C:
			if l.trip(false) != nil {
				continue
			}
			if head, err := l.Table.Head(ctx); err == nil {
				notify(head.Revision)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cluster is several engines on one table.
type cluster struct {
	servers []*store
	conns   []*conn
	db      *sqlite.DB
}

func openCluster(t testing.TB, n int, net network, opts func(i int) mvcc.Options) *cluster {
	t.Helper()
	shared, db := newSharedDB(t, net)
	c := &cluster{db: db}
	for i := range n {
		l := &conn{sharedDB: shared, id: i}
		k, err := mvcc.Open(context.Background(), l, db, opts(i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
		c.servers = append(c.servers, &store{k, t, db})
		c.conns = append(c.conns, l)
	}
	return c
}

func (c *cluster) entries() (list []kv.Keyspace) {
	for _, s := range c.servers {
		list = append(list, s.Keyspace)
	}
	return list
}

func defaults(int) mvcc.Options { return mvcc.Options{} }

// networks are network conditions that must not change any answer.
var networks = []struct {
	name string
	net  network
}{
	{"near", network{poll: 20 * time.Millisecond}},
	{"slow network, hints late, lost and repeated", network{
		delay: 4 * time.Millisecond, hintDelay: 10 * time.Millisecond, lost: 30, twice: 30, poll: 50 * time.Millisecond,
	}},
	{"no hints", network{lost: 100, poll: 20 * time.Millisecond}},
}

func eachNetwork(t *testing.T, f func(t *testing.T, open kvtest.Open)) {
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			f(t, func(t testing.TB) kv.Keyspace {
				return kvtest.Spread(openCluster(t, 3, n.net, defaults).entries()...)
			})
		})
	}
}

func TestSharedConformance(t *testing.T) {
	eachNetwork(t, func(t *testing.T, open kvtest.Open) {
		t.Parallel() // it mostly waits
		kvtest.Run(t, open)
	})
}

func TestSharedRandom(t *testing.T) {
	eachNetwork(t, func(t *testing.T, open kvtest.Open) {
		t.Parallel()
		for seed := range uint64(*seeds) {
			kvtest.Random(t, seed, 600, open)
		}
	})
}

func TestSharedConcurrent(t *testing.T) {
	eachNetwork(t, func(t *testing.T, open kvtest.Open) {
		for seed := range uint64(*seeds) {
			kvtest.Concurrent(t, seed, 16, 60, open)
		}
	})
}
