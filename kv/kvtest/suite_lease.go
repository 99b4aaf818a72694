package kvtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

func leaseTests() []test {
	return []test{
		{"grant and describe", testGrant},
		{"revoke", testRevoke},
		{"attach and detach", testAttach},
		{"missing leases", testNoLease},
	}
}

// leaseTimeTests wait for leases to expire.
func leaseTimeTests() []test {
	return []test{
		{"expire", testExpire},
		{"keep alive", testKeepAlive},
	}
}

func (e *env) grant(id kv.LeaseID, ttl time.Duration) *kv.Lease {
	e.Helper()
	l, err := e.ks.Grant(e.ctx, id, ttl)
	e.ok("grant", err)
	// If a lease expired later it would make a revision during another test.
	e.Cleanup(func() {
		_, err := e.ks.Revoke(context.WithoutCancel(e.ctx), l.ID)
		if err != nil && !errors.Is(err, kv.ErrLeaseNotFound) {
			e.Errorf("revoke lease %d: %v", l.ID, err)
		}
	})
	return l
}

func (e *env) lease(id kv.LeaseID) *kv.Lease {
	e.Helper()
	l, err := e.ks.TimeToLive(e.ctx, id, true)
	e.ok("describe lease", err)
	return l
}

func (e *env) attached(id kv.LeaseID) []string {
	e.Helper()
	var out []string
	for _, key := range e.lease(id).Keys {
		out = append(out, string(key[len(e.prefix):]))
	}
	return out
}

func testGrant(e *env) {
	before := e.head()
	a, b := e.grant(0, time.Minute), e.grant(0, time.Hour)
	if a.ID <= 0 || b.ID <= 0 || a.ID == b.ID {
		e.Errorf("chosen IDs are %d and %d", a.ID, b.ID)
	}
	e.equal("granted", []time.Duration{a.Granted, b.Granted}, []time.Duration{time.Minute, time.Hour})
	chosen := e.grant(777, time.Minute)
	e.equal("given id", chosen.ID, int64(777))
	_, err := e.ks.Grant(e.ctx, 777, time.Minute)
	e.fails("the same ID again", err, kv.ErrLeaseExists)
	_, err = e.ks.Grant(e.ctx, 0, 9_000_000_001*time.Second)
	e.fails("285 years", err, kv.ErrLeaseTTLTooLarge)
	short := e.grant(0, 0)
	if short.Granted < time.Second {
		e.Errorf("a lease with TTL 0 was granted %v, want at least a second", short.Granted)
	}
	ids, rev, err := e.ks.LeaseList(e.ctx)
	e.ok("list", err)
	for _, id := range []kv.LeaseID{a.ID, b.ID, 777} {
		if !slices.Contains(ids, id) {
			e.Errorf("list %v lacks lease %d", ids, id)
		}
	}
	e.equal("leases make no revision", []int64{rev, e.head()}, []int64{before, before})
	l := e.lease(b.ID)
	if l.Remaining > time.Hour || l.Remaining < time.Hour-time.Minute {
		e.Errorf("%v of an hour remain immediately after the grant", l.Remaining)
	}
	e.equal("described", []any{l.ID, l.Granted, len(l.Keys)}, []any{b.ID, time.Hour, 0})
}

func testRevoke(e *env) {
	l := e.grant(0, time.Hour)
	e.put("stays", "")
	e.do(e.leasedPutOp("b", "1", l.ID))
	e.do(e.leasedPutOp("a", "1", l.ID), e.leasedPutOp("c", "1", l.ID))
	e.equal("keys", e.attached(l.ID), []string{"a", "b", "c"})
	e.equal("lease of a key", e.get("a").Lease, l.ID)
	before := e.head()
	w := e.watch(kv.WatchRequest{Span: e.all()})
	rev, err := e.ks.Revoke(e.ctx, l.ID)
	e.ok("revoke", err)
	e.equal("revision", rev, before+1)
	e.equalNames("remaining keys", e.read(kv.RangeRequest{Span: e.all()}).KVs, "stays")
	events := e.eventsOf(w)
	e.equal("events", describeEvents(e, events), []string{"delete a=", "delete b=", "delete c="})
	for _, ev := range events {
		e.equal("revision of a deletion", ev.KV.ModRevision, rev)
	}

	empty := e.grant(0, time.Hour)
	rev2, err := e.ks.Revoke(e.ctx, empty.ID)
	e.ok("revoke a lease without keys", err)
	e.equal("revoking a lease without keys makes no revision", []int64{rev2, e.head()}, []int64{rev, rev})
}

func testExpire(e *env) {
	w := e.watch(kv.WatchRequest{Span: e.all()})
	l := e.grant(0, time.Second)
	start := time.Now()
	e.do(e.leasedPutOp("a", "1", l.ID), e.leasedPutOp("b", "1", l.ID))
	_, err := w.until(e.ctx, "the deletions", func(r kv.WatchResponse) bool {
		return len(r.Events) == 2 && r.Events[0].Type == kv.EventDelete && r.Events[1].Type == kv.EventDelete &&
			r.Events[0].KV.ModRevision == r.Events[1].KV.ModRevision
	})
	e.ok("await expiry", err)
	if took := time.Since(start); took < l.Granted-100*time.Millisecond {
		e.Errorf("a lease of %v expired after %v", l.Granted, took)
	}
	e.equal("keys", e.read(kv.RangeRequest{Span: e.all()}).Count, int64(0))
	_, err = e.ks.TimeToLive(e.ctx, l.ID, false)
	e.fails("describe it", err, kv.ErrLeaseNotFound)
	_, err = e.ks.KeepAlive(e.ctx, l.ID)
	e.fails("keep it alive", err, kv.ErrLeaseNotFound)
}

func testKeepAlive(e *env) {
	// A machine that stalls for a second or two must not end the renewed lease.
	kept, dropped := e.grant(0, 5*time.Second), e.grant(0, time.Second)
	e.do(e.leasedPutOp("kept", "", kept.ID), e.leasedPutOp("dropped", "", dropped.ID))
	before := e.head()
	until := time.Now().Add(2*kept.Granted + 500*time.Millisecond)
	e.eventually("twice the TTL, and the end of the other lease", func() bool {
		l, err := e.ks.KeepAlive(e.ctx, kept.ID)
		e.ok("keep alive", err)
		e.equal("renewed", []any{l.ID, l.Granted}, []any{kept.ID, kept.Granted})
		return time.Now().After(until) && e.get("dropped") == nil
	})
	if e.get("kept") == nil {
		e.Error("the key of a renewed lease is gone")
	}
	e.equal("one revision, for the other lease's end", e.head(), before+1)
}

func testAttach(e *env) {
	one, two := e.grant(0, time.Hour), e.grant(0, time.Hour)
	e.do(e.leasedPutOp("moved", "", one.ID), e.leasedPutOp("freed", "", one.ID), e.leasedPutOp("stays", "", one.ID),
		e.leasedPutOp("deleted", "", one.ID))
	e.do(e.leasedPutOp("moved", "", two.ID))
	e.put("freed", "")
	e.delete("deleted")
	e.put("deleted", "again")
	e.equal("keys of one", e.attached(one.ID), []string{"stays"})
	e.equal("keys of two", e.attached(two.ID), []string{"moved"})
	_, err := e.ks.Revoke(e.ctx, one.ID)
	e.ok("revoke one", err)
	e.equalNames("after one is gone", e.read(kv.RangeRequest{Span: e.all()}).KVs, "deleted", "freed", "moved")
	_, err = e.ks.Revoke(e.ctx, two.ID)
	e.ok("revoke two", err)
	e.equalNames("after two is gone", e.read(kv.RangeRequest{Span: e.all()}).KVs, "deleted", "freed")

	// A key may change its lease several times.
	three := e.grant(0, time.Hour)
	for i := range 3 {
		e.do(e.leasedPutOp(fmt.Sprint(i), "", three.ID))
		e.put(fmt.Sprint(i), "")
	}
	e.equal("keys of three", e.attached(three.ID), []string(nil))
}

func testNoLease(e *env) {
	const missing = 123456789
	_, err := e.ks.Revoke(e.ctx, missing)
	e.fails("revoke", err, kv.ErrLeaseNotFound)
	_, err = e.ks.KeepAlive(e.ctx, missing)
	e.fails("keep alive", err, kv.ErrLeaseNotFound)
	_, err = e.ks.TimeToLive(e.ctx, missing, true)
	e.fails("describe", err, kv.ErrLeaseNotFound)
	_, err = e.ks.Txn(e.ctx, kv.TxnRequest{Then: []kv.Op{e.leasedPutOp("a", "", missing)}})
	e.fails("attach a key", err, kv.ErrLeaseNotFound)
	e.equal("the key", e.get("a"), (*kv.KeyValue)(nil))
}
