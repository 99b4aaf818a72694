package kvtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// Concurrent runs CheckConcurrent on a new keyspace.
func Concurrent(t *testing.T, seed uint64, clients, each int, open Open) {
	t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		if err := CheckConcurrent(t.Context(), open(t), seed, clients, each); err != nil {
			t.Fatal(err)
		}
	})
}

// CheckConcurrent has many clients run random transactions and reads concurrently on a few
// keys of an empty keyspace. Then it looks for one order of them that explains every
// answer. Revisions determine that order, so a replay suffices:
//   - each transaction that made changes was alone at its revision, and its answer is the
//     Model's at that point;
//   - each transaction without changes, and every read, was answered from the state at its
//     revision;
//   - no answer is older than a revision acknowledged before the call;
//   - a watch over everything has delivered exactly these changes.
func CheckConcurrent(ctx context.Context, ks kv.Keyspace, seed uint64, clients, each int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log, err := record(ctx, ks, kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: 2, PrevKV: true})
	if err != nil {
		return err
	}
	h := &history{ks: ks}
	failed := make(chan error, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			g := &client{Rand: rand.New(rand.NewPCG(seed, uint64(c)+1)), id: c, h: h}
			for range each {
				if err := g.step(ctx); err != nil {
					failed <- fmt.Errorf("seed %d, client %d: %w", seed, c, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	model, err := h.replay()
	if err != nil {
		return fmt.Errorf("seed %d: %w", seed, err)
	}
	if err := log.catchUp(ctx, model.Revision); err != nil {
		return fmt.Errorf("seed %d: watch over everything: %w", seed, err)
	}
	log.cancel()
	if err := log.check(model); err != nil {
		return fmt.Errorf("seed %d: watch over everything: %w", seed, err)
	}
	return nil
}

// history contains the answers that clients got.
type history struct {
	ks kv.Keyspace
	// acknowledged is the highest revision that any client got.
	acknowledged atomic.Int64

	mu    sync.Mutex
	calls []call
}

// call is one request and its answer.
type call struct {
	floor kv.Revision // acknowledged before the call
	txn   *kv.TxnRequest
	read  *kv.RangeRequest
	res   *kv.TxnResult
	found *kv.RangeResult
}

func (c *call) revision() kv.Revision {
	if c.txn != nil {
		return c.res.Revision
	}
	return c.found.Revision
}

func (h *history) add(c call) {
	rev := c.revision()
	for {
		old := h.acknowledged.Load()
		if rev <= old || h.acknowledged.CompareAndSwap(old, rev) {
			break
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
}

// client makes the requests of one goroutine. It remembers the last state of keys that it
// has seen, for compares.
type client struct {
	*rand.Rand
	id   int
	h    *history
	puts int
	seen map[string]kv.KeyValue
}

const sharedKeys = 8

func (g *client) key() []byte { return fmt.Appendf(nil, "k%d", g.IntN(sharedKeys)) }

func (g *client) step(ctx context.Context) error {
	c := call{floor: g.h.acknowledged.Load()}
	if g.IntN(100) < 20 {
		req := kv.RangeRequest{Span: kv.Prefix([]byte("k"))}
		if g.IntN(2) == 0 {
			req.Span = kv.Span{Start: g.key()}
		}
		res, err := g.h.ks.Range(ctx, req)
		if err != nil {
			return fmt.Errorf("range %s: %w", describe(req), err)
		}
		c.read, c.found = &req, res
		g.remember(res)
	} else {
		req := g.txn()
		res, err := g.h.ks.Txn(ctx, req)
		if errors.Is(err, kv.ErrDuplicateKey) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("txn %s: %w", describe(req), err)
		}
		c.txn, c.res = &req, res
		for _, r := range res.Results {
			g.remember(r.Range)
		}
	}
	if rev := c.revision(); rev < c.floor {
		return fmt.Errorf("answered from revision %d after revision %d was acknowledged", rev, c.floor)
	}
	g.h.add(c)
	return nil
}

func (g *client) remember(res *kv.RangeResult) {
	if res == nil {
		return
	}
	if g.seen == nil {
		g.seen = map[string]kv.KeyValue{}
	}
	for _, k := range res.KVs {
		g.seen[string(k.Key)] = k
	}
}

// txn changes up to three keys, either unconditionally or if one is in its last seen state;
// otherwise it reads.
func (g *client) txn() kv.TxnRequest {
	var req kv.TxnRequest
	key := g.key()
	if g.IntN(100) < 70 {
		req.If = []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareMod, Int: g.seen[string(key)].ModRevision}}
	}
	for i := range 1 + g.IntN(3) {
		if i > 0 {
			key = g.key()
		}
		if g.IntN(100) < 20 {
			req.Then = append(req.Then, kv.Op{Delete: &kv.DeleteOp{Span: kv.Span{Start: key}, PrevKV: true}})
			continue
		}
		g.puts++
		value := fmt.Appendf(nil, "client %d, put %d", g.id, g.puts)
		req.Then = append(req.Then, kv.Op{Put: &kv.PutOp{Key: key, Value: value, PrevKV: g.IntN(2) == 0}})
	}
	req.Then = append(req.Then, kv.Op{Range: &kv.RangeRequest{Span: kv.Prefix([]byte("k"))}})
	req.Else = []kv.Op{{Range: &kv.RangeRequest{Span: kv.Prefix([]byte("k"))}}}
	return req
}

// changed reports whether a transaction made changes.
func changed(r *kv.TxnResult) bool {
	for _, res := range r.Results {
		if res.Put != nil || res.Delete != nil && res.Delete.Deleted > 0 {
			return true
		}
	}
	return false
}

// replay runs the clients' calls in the order of revisions; calls without changes come
// after the change whose state they saw.
func (h *history) replay() (*Model, error) {
	m := NewModel()
	slices.SortStableFunc(h.calls, func(a, b call) int {
		if c := cmp.Compare(a.revision(), b.revision()); c != 0 {
			return c
		}
		return cmp.Compare(order(a), order(b))
	})
	for _, c := range h.calls {
		if err := replayOne(m, &c); err != nil {
			return nil, fmt.Errorf("at revision %d: %w", c.revision(), err)
		}
	}
	return m, nil
}

func order(c call) int {
	if c.txn != nil && changed(c.res) {
		return 0
	}
	return 1
}

func replayOne(m *Model, c *call) error {
	before := m.Revision
	if c.read != nil {
		want, err := m.Range(*c.read)
		if err != nil {
			return err
		}
		if err := diff(c.found, want); err != nil {
			return fmt.Errorf("range %s: %w", describe(*c.read), err)
		}
		return nil
	}
	if changed(c.res) && c.res.Revision != before+1 {
		return fmt.Errorf("changes follow revision %d: two transactions share a revision, or there is an unexpected one in between; txn %s",
			before, describe(*c.txn))
	}
	want, err := m.Txn(*c.txn)
	if err != nil {
		return err
	}
	if err := sameTxn(c.res, want); err != nil {
		return fmt.Errorf("txn %s: %w", describe(*c.txn), err)
	}
	return nil
}
