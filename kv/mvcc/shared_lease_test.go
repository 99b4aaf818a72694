package mvcc_test

import (
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// clocked is a cluster of which every server has a clock of its own.
type clocked struct {
	*cluster
	t      *testing.T
	clocks []*clocktesting.FakeClock
	// commits that each server has made, whether or not they changed anything.
	commits []atomic.Int64
}

func openClocked(t *testing.T, n int) *clocked {
	c := &clocked{t: t, commits: make([]atomic.Int64, n)}
	start := time.Now()
	for i := range n {
		// They agree on nothing.
		c.clocks = append(c.clocks, clocktesting.NewFakeClock(start.Add(time.Duration(i)*time.Hour)))
	}
	c.cluster = openCluster(t, n, network{poll: 10 * time.Millisecond}, func(i int) mvcc.Options {
		return mvcc.Options{Clock: c.clocks[i], Observer: mvcc.Observer{
			Commit: func(int, int, time.Duration, error) { c.commits[i].Add(1) },
		}}
	})
	return c
}

// pass lets time go by on one server, in steps small enough that it reads
// leases as often as it would.
func (c *clocked) pass(server int, d time.Duration) {
	c.t.Helper()
	const step = 250 * time.Millisecond
	clock := c.clocks[server]
	for ; d > 0; d -= step {
		waiting := clock.Waiters()
		clock.Step(step)
		// What the step has set off is done when as many wait for the next.
		for began := time.Now(); clock.Waiters() < waiting && time.Since(began) < time.Second; {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// read has a server read all leases.
func (c *clocked) read(server int) {
	c.t.Helper()
	if _, _, err := c.servers[server].LeaseList(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clocked) grant(server int, id kv.LeaseID, ttl time.Duration) {
	c.t.Helper()
	if _, err := c.servers[server].Grant(c.t.Context(), id, ttl); err != nil {
		c.t.Fatal(err)
	}
	c.servers[server].txn(kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("leased"), Lease: id}}}})
}

func (c *clocked) keep(server int, id kv.LeaseID) {
	c.t.Helper()
	if _, err := c.servers[server].KeepAlive(c.t.Context(), id); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clocked) there(server int) bool {
	c.t.Helper()
	return c.servers[server].list("leased", "", 0) != "n=0"
}

func (c *clocked) mustBeThere() {
	c.t.Helper()
	if !c.there(0) {
		c.t.Fatal("the lease was revoked")
	}
}

// mustEnd lets time go by on one server until the key is gone.
func (c *clocked) mustEnd(server int, within time.Duration) {
	c.t.Helper()
	const step = time.Second
	for d := time.Duration(0); d < within; d += step {
		c.pass(server, step)
		if !c.there(server) {
			return
		}
	}
	// The last revocation may be on its way.
	for deadline := time.Now().Add(10 * time.Second); c.there(server); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("the lease goes on after %v", within)
		}
	}
}

// TestSharedLeaseRenewedElsewhere: who never renews a lease itself sees that
// others do; and any server ends it once nobody does, though all others' clocks
// stand still.
func TestSharedLeaseRenewedElsewhere(t *testing.T) {
	c := openClocked(t, 3)
	c.grant(0, 7, 10*time.Second)
	for round := range 8 {
		c.keep(round%2, 7)
		for i := range c.servers {
			c.pass(i, 5*time.Second)
			c.read(i)
		}
	}
	c.mustBeThere()
	c.mustEnd(2, 25*time.Second)
	for _, s := range c.servers {
		_, err := s.KeepAlive(t.Context(), 7)
		expectErr(t, err, kv.ErrLeaseNotFound)
		_, err = s.TimeToLive(t.Context(), 7, false)
		expectErr(t, err, kv.ErrLeaseNotFound)
	}
}

// TestSharedLeaseUnknown: a lease granted, renewed and revoked through one
// server is so for the others at once.
func TestSharedLeaseUnknown(t *testing.T) {
	c := openClocked(t, 3)
	c.grant(0, 7, time.Hour)
	if l, err := c.servers[1].TimeToLive(t.Context(), 7, true); err != nil || l.Remaining != time.Hour || len(l.Keys) != 1 {
		t.Error(l, err)
	}
	c.keep(2, 7)
	ids, _, err := c.servers[2].LeaseList(t.Context())
	if err != nil || len(ids) != 1 {
		t.Error(ids, err)
	}
	if _, err := c.servers[2].Revoke(t.Context(), 7); err != nil {
		t.Error(err)
	}
	for _, s := range c.servers {
		_, err := s.TimeToLive(t.Context(), 7, false)
		expectErr(t, err, kv.ErrLeaseNotFound)
		_, err = s.KeepAlive(t.Context(), 7)
		expectErr(t, err, kv.ErrLeaseNotFound)
		if ids, _, err := s.LeaseList(t.Context()); err != nil || len(ids) != 0 {
			t.Error(ids, err)
		}
	}
}

// TestSharedLeaseStaleView: a server that has not seen a renewal tries to
// revoke, and is refused by the beat.
func TestSharedLeaseStaleView(t *testing.T) {
	c := openClocked(t, 2)
	c.grant(0, 7, 10*time.Second)
	c.read(1)
	records, err := c.lanes[1].Table.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.lanes[1].stale.Store(&records)
	c.keep(0, 7)
	for deadline := time.Now().Add(20 * time.Second); c.commits[1].Load() == 0; {
		c.pass(1, time.Second)
		if time.Now().After(deadline) {
			t.Fatal("the lease was not tried to be revoked")
		}
	}
	c.mustBeThere()
	c.lanes[1].stale.Store(nil)
	c.mustEnd(1, 25*time.Second)
}

// TestSharedLeasePaused: a server that was away for long, or could not reach
// the table, ends nothing that the others have renewed, and gives those time that
// nobody could renew.
func TestSharedLeasePaused(t *testing.T) {
	c := openClocked(t, 2)
	c.grant(0, 7, 10*time.Second)
	c.read(1)
	c.lanes[1].failWith(kv.ErrUnavailable)
	c.keep(0, 7)
	c.clocks[1].Step(time.Minute)
	c.lanes[1].failWith(nil)
	c.pass(1, 3*time.Second)
	c.read(1)
	c.mustBeThere()

	// Nobody could reach the table for a minute.
	for i := range c.servers {
		c.lanes[i].failWith(kv.ErrUnavailable)
		c.pass(i, time.Minute)
	}
	for i := range c.servers {
		c.lanes[i].failWith(nil)
	}
	for i := range c.servers {
		c.pass(i, 2*time.Second)
		c.read(i)
	}
	c.mustBeThere()
	c.keep(1, 7)
	c.mustEnd(0, 30*time.Second)
}

// TestSharedLeaseAgain: a lease that ends and is granted anew under the same
// id is another lease, though nobody else saw the end of the first.
func TestSharedLeaseAgain(t *testing.T) {
	c := openClocked(t, 2)
	c.grant(0, 7, 10*time.Second)
	c.read(1)
	c.pass(1, 8*time.Second)
	if _, err := c.servers[0].Revoke(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	c.grant(0, 7, 10*time.Second)
	c.read(1)
	c.pass(1, 8*time.Second)
	c.mustBeThere()
	c.mustEnd(1, 25*time.Second)
}

// TestSharedAutoCompact: several servers that all compact by age do it once.
func TestSharedAutoCompact(t *testing.T) {
	clocks := []*clocktesting.FakeClock{clocktesting.NewFakeClock(time.Now()), clocktesting.NewFakeClock(time.Now())}
	c := openCluster(t, 2, network{poll: 10 * time.Millisecond}, func(i int) mvcc.Options {
		return mvcc.Options{Clock: clocks[i], Retention: mvcc.Retention{Age: time.Hour}}
	})
	const steps = 30
	for n := range steps {
		c.servers[n%2].put("k", "v")
		for i, clock := range clocks {
			reads := c.lanes[i].headReads.Load()
			// Each step begins with a look at the head.
			for deadline := time.Now().Add(20 * time.Second); c.lanes[i].headReads.Load() == reads; time.Sleep(time.Millisecond) {
				clock.Step(6 * time.Minute)
				if time.Now().After(deadline) {
					t.Fatal("no step of compaction")
				}
			}
		}
	}
	st, err := c.servers[0].Status(t.Context())
	if err != nil || st.Compacted == 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if n := c.lanes[0].compactions.Load() + c.lanes[1].compactions.Load(); n > steps+2 {
		t.Errorf("compacted %d times in %d steps", n, steps)
	}
}
