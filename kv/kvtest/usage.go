package kvtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// Limited is a keyspace with limits.
type Limited interface {
	kv.Keyspace
	SetLimits(limits kv.Limits)
	Usage(ctx context.Context) (kv.Usage, error)
}

// OpenLimited opens one or more entry points of a new keyspace. check verifies the stored numbers.
type OpenLimited func(t testing.TB) (entries []Limited, check func(context.Context) error)

// Usage tests the usage and the limits of a keyspace.
func Usage(t *testing.T, seed uint64, open OpenLimited) {
	t.Run(fmt.Sprintf("random operations, seed=%d", seed), func(t *testing.T) { testUsage(t, seed, 500, open) })
	t.Run("limits", func(t *testing.T) { testLimits(t, open) })
	t.Run("concurrent", func(t *testing.T) { testLimitsConcurrent(t, open) })
	t.Run(fmt.Sprintf("reservations, seed=%d", seed), func(t *testing.T) { testReservations(t, seed, open) })
	t.Run("stored limits", func(t *testing.T) { testStoredLimits(t, open) })
}

// SplitDB is a database whose keyspaces can be split.
type SplitDB interface {
	kv.Backend
	kv.Splitter
	Check(ctx context.Context) error
}

// UsageOfParts splits and merges a keyspace that counts. open opens the database, and openKeyspace an engine in it, which close closes.
func UsageOfParts(t *testing.T, open func() SplitDB, openKeyspace func(kv.Backend, kv.Table) (ks Limited, close func() error)) {
	const name = "parts"
	with := func(what string, do func(db SplitDB) error) {
		t.Helper()
		db := open()
		if err := errors.Join(do(db), db.Check(t.Context()), db.Close()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	keys := func(what, keyspace string, want int64) {
		t.Helper()
		with(what, func(db SplitDB) error {
			table, err := db.OpenExisting(t.Context(), keyspace)
			if err != nil {
				return err
			}
			if used, _, err := table.Usage(t.Context()); err != nil || used.Keys != want {
				t.Errorf("%s: keyspace %q has %+v, %v, want %d keys", what, keyspace, used, err, want)
			}
			return nil
		})
	}
	with("fill", func(db SplitDB) error {
		table, err := db.Open(t.Context(), name)
		if err != nil {
			return err
		}
		ks, closeKeyspace := openKeyspace(db, table)
		ks.SetLimits(noLimit)
		for _, key := range []string{"a/1", "a/2", "a/3", "b"} {
			err = errors.Join(err, put(t.Context(), ks, key))
		}
		return errors.Join(err, closeKeyspace())
	})
	keys("before", name, 4)
	with("split", func(db SplitDB) error {
		_, err := db.Split(t.Context(), name, "a/", kv.SplitOptions{})
		return err
	})
	keys("split", name, 1)
	keys("split", kv.PartitionName(name, "a/"), 3)
	with("merge", func(db SplitDB) error {
		_, err := db.Merge(t.Context(), name, "a/", kv.SplitOptions{})
		return err
	})
	keys("merged", name, 4)
}

// limitKeys and limitBytes return limits.
func limitKeys(n int64) kv.Limits  { return kv.Limits{Keys: &n} }
func limitBytes(n int64) kv.Limits { return kv.Limits{Bytes: &n} }

// noLimit is a limit that nothing reaches: it makes the keyspace count.
var noLimit = limitKeys(math.MaxInt64)

// testUsage makes random operations and compares the usage after each change with the keys.
// At times an entry point does not count, like a server of an earlier version.
func testUsage(t *testing.T, seed uint64, n int, open OpenLimited) {
	entries, check := open(t)
	var all []kv.Keyspace
	for _, e := range entries {
		e.SetLimits(noLimit)
		all = append(all, e)
	}
	c := &counting{Keyspace: Spread(all...), entries: entries, check: check}
	if err := CheckRandom(t.Context(), c, seed, n); err != nil {
		t.Fatal(err)
	}
	if c.changes == 0 {
		t.Error("nothing was changed")
	}
	if err := check(t.Context()); err != nil {
		t.Error(err)
	}
}

// counting compares the usage after each change with the keys.
type counting struct {
	kv.Keyspace
	entries []Limited
	check   func(context.Context) error
	changes int
}

func (c *counting) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	res, err := c.Keyspace.Txn(ctx, req)
	return res, errors.Join(err, c.compare(ctx))
}

func (c *counting) Revoke(ctx context.Context, id kv.LeaseID) (kv.Revision, error) {
	rev, err := c.Keyspace.Revoke(ctx, id)
	return rev, errors.Join(err, c.compare(ctx))
}

func (c *counting) Compact(ctx context.Context, rev kv.Revision, _ bool) (kv.Revision, error) {
	rev, err := c.Keyspace.Compact(ctx, rev, true)
	return rev, errors.Join(err, c.compare(ctx))
}

func (c *counting) compare(ctx context.Context) error {
	c.changes++
	if c.changes%60 == 0 {
		c.entries[0].SetLimits(kv.Limits{})
	} else if c.changes%60 == 20 {
		c.entries[0].SetLimits(noLimit)
	}
	if c.changes%40 == 0 {
		if err := c.check(ctx); err != nil {
			return err
		}
	}
	for _, e := range c.entries {
		if err := sameUsage(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// sameUsage compares the usage with the keys.
func sameUsage(ctx context.Context, ks Limited) error {
	res, err := ks.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil)})
	if err != nil {
		return err
	}
	var want kv.Usage
	for i := range res.KVs {
		want = want.Plus(kv.UsageChange(nil, &res.KVs[i])).Plus(kv.Reserved(&res.KVs[i]))
	}
	if got, err := ks.Usage(ctx); err != nil || got != want {
		return fmt.Errorf("usage %+v, %v, but the keys take %+v", got, err, want)
	}
	return nil
}

// testLimits: what grows beyond a limit is refused and changes nothing; all else passes.
func testLimits(t *testing.T, open OpenLimited) {
	entries, _ := open(t)
	limit := func(l kv.Limits) {
		for _, e := range entries {
			e.SetLimits(l)
		}
	}
	var all []kv.Keyspace
	for _, e := range entries {
		all = append(all, e)
	}
	e := &env{T: t, ctx: t.Context(), ks: Spread(all...), prefix: ""}
	refused := func(what string, want kv.LimitError, ops ...kv.Op) {
		t.Helper()
		before := e.head()
		_, err := e.ks.Txn(e.ctx, kv.TxnRequest{Then: ops})
		got, ok := errors.AsType[*kv.LimitError](err)
		if !ok || *got != want || !errors.Is(err, kv.ErrLimitExceeded) || errors.Is(err, kv.ErrUnknownOutcome) {
			t.Errorf("%s: %v, want %v", what, err, &want)
		}
		e.equal(what+": revision", e.head(), before)
	}
	limit(limitKeys(3))
	e.put("a", "1")
	e.put("b", "1")
	lease, err := e.ks.Grant(e.ctx, 0, leaseTTL)
	e.ok("grant", err)
	e.do(e.leasedPutOp("c", "1", lease.ID))
	refused("a fourth key", kv.LimitError{Resource: "keys", Used: 3, Requested: 1, Limit: 3}, e.putOp("d", "1"))
	e.put("a", "a longer value")
	e.do(e.deleteOp("a"), e.putOp("d", "1")) // the net effect counts
	refused("two for one", kv.LimitError{Resource: "keys", Used: 3, Requested: 1, Limit: 3}, e.deleteOp("b"), e.putOp("e", "1"), e.putOp("f", "1"))
	if _, err := e.ks.Revoke(e.ctx, lease.ID); err != nil {
		t.Fatal(err)
	}
	e.put("e", "1") // in the place of the leased key
	e.equalNames("keys", e.read(kv.RangeRequest{Span: e.all()}).KVs, "b", "d", "e")

	limit(limitKeys(1)) // lower than the usage
	e.put("b", "2")
	refused("a key above a lowered limit", kv.LimitError{Resource: "keys", Used: 3, Requested: 1, Limit: 1}, e.putOp("f", "1"))
	e.do(e.deleteOp("d"), e.deleteOp("e"))

	limit(limitBytes(10))
	e.put("b", "123456789")
	refused("a longer value", kv.LimitError{Resource: "bytes", Used: 10, Requested: 1, Limit: 10}, e.putOp("b", "1234567890"))
	e.put("b", "12345678")
	e.put("c", "")
	refused("a key", kv.LimitError{Resource: "bytes", Used: 10, Requested: 1, Limit: 10}, e.putOp("d", ""))
	limit(kv.Limits{})
	e.put("d", "1")
	for _, one := range entries {
		e.ok("usage", sameUsage(e.ctx, one))
	}
}

// testLimitsConcurrent: of many clients that create keys at once, exactly as many succeed as
// the limit permits.
func testLimitsConcurrent(t *testing.T, open OpenLimited) {
	entries, check := open(t)
	const limit, clients, each = 50, 16, 10
	for _, e := range entries {
		e.SetLimits(limitKeys(limit))
	}
	var created, denied atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for j := range each {
				err := put(t.Context(), entries[i%len(entries)], fmt.Sprintf("k%d-%d", i, j))
				switch {
				case err == nil:
					created.Add(1)
				case errors.Is(err, kv.ErrLimitExceeded):
					denied.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if created.Load() != limit || denied.Load() != clients*each-limit {
		t.Errorf("%d keys were created and %d refused; the limit is %d", created.Load(), denied.Load(), limit)
	}
	if err := errors.Join(check(t.Context()), sameUsage(t.Context(), entries[0])); err != nil {
		t.Error(err)
	}
}
