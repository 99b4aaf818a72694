package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

var _ kv.OptimisticTable = (*conn)(nil)

// TryUpdate takes two steps where a database takes one. It runs fn on the present state,
// and later, in an update, checks that this state is unchanged.
func (l *conn) TryUpdate(ctx context.Context, _ []kv.Lookup, fn func(kv.Tx) error) (follows kv.Head, done bool, err error) {
	if err := l.trip(false); err != nil {
		return kv.Head{}, false, err
	}
	head, err := l.Table.Head(ctx)
	if err != nil {
		return kv.Head{}, false, err
	}
	guess := &optimisticTx{l: l, ctx: ctx, head: head, seen: map[string]kv.Revision{}, leases: map[kv.LeaseID]struct{}{}}
	if err := fn(guess); errors.Is(err, errNotOptimistic) || err == nil && len(guess.changes) == 0 {
		return kv.Head{}, false, nil
	} else if err != nil {
		return kv.Head{}, false, err
	}
	if err := l.trip(true); err != nil {
		return kv.Head{}, false, err
	}
	if f := l.guessed.Swap(nil); f != nil {
		(*f)()
	}
	moved := false
	err = l.Update(ctx, nil, func(tx kv.Tx) error {
		var err error
		follows = tx.Head()
		moved, err = guess.stale(tx)
		if err != nil || moved {
			return err
		}
		return tx.Write(guess.at(follows.Revision))
	})
	return follows, err == nil && !moved, err
}

var errNotOptimistic = errors.New("not possible in an optimistic commit")

// optimisticTx reads step by step, while others write.
type optimisticTx struct {
	kv.Tx
	l        *conn
	ctx      context.Context
	head     kv.Head
	seen     map[string]kv.Revision
	leases   map[kv.LeaseID]struct{}
	revision kv.Revision
	changes  []kv.Change
}

func (g *optimisticTx) Head() kv.Head { return g.head }

func (g *optimisticTx) Load(keys []kv.Lookup) (found []*kv.KeyValue, err error) {
	for _, k := range keys {
		res, _, err := g.l.Table.Range(g.ctx, kv.RangeRequest{Span: kv.Span{Start: k.Key}}, false)
		if err != nil {
			return nil, err
		}
		var e *kv.KeyValue
		var mod kv.Revision
		if len(res.KVs) > 0 {
			e, mod = &res.KVs[0], res.KVs[0].ModRevision
		}
		if before, known := g.seen[string(k.Key)]; known && before != mod || mod > g.head.Revision {
			return nil, errNotOptimistic
		}
		g.seen[string(k.Key)] = mod
		found = append(found, e)
	}
	return found, nil
}

func (g *optimisticTx) Lease(id kv.LeaseID) (*kv.LeaseRecord, error) {
	all, err := g.l.Table.Leases(g.ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.ID == id {
			g.leases[id] = struct{}{}
			return &l, nil
		}
	}
	return nil, errNotOptimistic
}

func (g *optimisticTx) Range(kv.RangeRequest, bool) (*kv.RangeResult, error) {
	return nil, errNotOptimistic
}
func (g *optimisticTx) LeaseKeys(kv.LeaseID) ([][]byte, error) { return nil, errNotOptimistic }
func (g *optimisticTx) PutLease(kv.LeaseRecord) error          { return errNotOptimistic }
func (g *optimisticTx) DeleteLease(kv.LeaseID) error           { return errNotOptimistic }

func (g *optimisticTx) Write(rev kv.Revision, changes []kv.Change) error {
	g.revision, g.changes = rev, changes
	return nil
}

// stale reports whether something has changed since it was read.
func (g *optimisticTx) stale(tx kv.Tx) (bool, error) {
	for key, mod := range g.seen {
		found, err := tx.Load([]kv.Lookup{{Key: []byte(key)}})
		if err != nil {
			return false, err
		}
		if now := found[0]; now == nil && mod != 0 || now != nil && now.ModRevision != mod {
			return true, nil
		}
	}
	for id := range g.leases {
		if l, err := tx.Lease(id); err != nil || l == nil {
			return true, err
		}
	}
	return false, nil
}

// at returns the changes with the revisions that follow a head.
func (g *optimisticTx) at(head kv.Revision) (kv.Revision, []kv.Change) {
	move := func(rev kv.Revision) kv.Revision {
		if rev > g.head.Revision {
			return rev - g.head.Revision + head
		}
		return rev
	}
	changes := make([]kv.Change, len(g.changes))
	for i, ch := range g.changes {
		ch.KV.ModRevision, ch.KV.CreateRevision, ch.PrevRevision = move(ch.KV.ModRevision), move(ch.KV.CreateRevision), move(ch.PrevRevision)
		changes[i] = ch
	}
	return move(g.revision), changes
}

// TestOptimistic has two servers that write in turn. Each commits without holding the head
// meanwhile, and its clients and watches get the resulting revisions.
func TestOptimistic(t *testing.T) {
	var done, again atomic.Int64
	c := openCluster(t, 2, network{}, func(int) mvcc.Options {
		return mvcc.Options{Observer: mvcc.Observer{Optimistic: func(ok bool) {
			if ok {
				done.Add(1)
			} else {
				again.Add(1)
			}
		}}}
	})
	put := func(server int, key, value string) *kv.TxnResult {
		t.Helper()
		res, err := c.servers[server].Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{
			{Put: &kv.PutOp{Key: []byte(key), Value: []byte(value), PrevKV: true}},
			{Range: &kv.RangeRequest{Span: kv.Span{Start: []byte(key)}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for i := range 6 {
		put(i%2, fmt.Sprint("begin", i), "")
	}
	if done.Load() == 0 {
		t.Fatal("nothing was committed optimistically")
	}
	before := again.Load()
	w, err := c.servers[0].Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix([]byte("mine")), PrevKV: true})
	if err != nil {
		t.Fatal(err)
	}

	// The other server commits during this commit: its base revision is raised.
	at := put(1, "other", "1").Revision
	c.between(0, func() { put(1, "other", "2") })
	res := put(0, "mine", "a")
	if res.Revision != at+2 {
		t.Errorf("revision %d, want %d", res.Revision, at+2)
	}
	if got := res.Results[1].Range; got.KVs[0].ModRevision != at+2 || got.KVs[0].CreateRevision != at+2 || got.Revision != at+2 {
		t.Errorf("read its own write as %+v", got)
	}
	if e := next(t, w).Events[0]; e.KV.ModRevision != at+2 || string(e.KV.Value) != "a" {
		t.Errorf("watch event %+v", e)
	}
	if again.Load() != before {
		t.Error("the commit was repeated")
	}

	// The other server changes the same key: the conflict is detected.
	put(1, "other", "3")
	c.between(0, func() { put(1, "mine", "b") })
	res = put(0, "mine", "c")
	if prev := res.Results[0].Put.Prev; prev == nil || string(prev.Value) != "b" {
		t.Errorf("previous state is %+v, want b", prev)
	}
	if again.Load() != before+1 {
		t.Error("the commit was not repeated")
	}
	var events []kv.Event
	for len(events) < 2 {
		events = append(events, next(t, w).Events...)
	}
	for i, want := range []string{"b", "c"} {
		if e := events[i]; string(e.KV.Value) != want || e.Prev == nil {
			t.Errorf("watch event %+v, want %s", e, want)
		}
	}
}

// between runs f once, in the middle of a server's next optimistic commit.
func (c *cluster) between(server int, f func()) {
	c.conns[server].guessed.Store(&f)
}
