package mvcc_test

import (
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// clocked is a cluster in which every server has its own clock.
type clocked struct {
	*cluster
	t      *testing.T
	clocks []*clocktesting.FakeClock
	// commits counts the commits of each server, whether or not they changed anything.
	commits []atomic.Int64
}

func openClocked(t *testing.T, n int) *clocked {
	c := &clocked{t: t, commits: make([]atomic.Int64, n)}
	start := time.Now()
	for i := range n {
		// The clocks are far apart.
		c.clocks = append(c.clocks, clocktesting.NewFakeClock(start.Add(time.Duration(i)*time.Hour)))
	}
	c.cluster = openCluster(t, n, network{poll: 10 * time.Millisecond}, func(i int) mvcc.Options {
		return mvcc.Options{Clock: c.clocks[i], Observer: mvcc.Observer{
			Commit: func(int, int, time.Duration, error) { c.commits[i].Add(1) },
		}}
	})
	return c
}

// advance advances one server's clock, in steps small enough that it reads leases as often
// as it would.
func (c *clocked) advance(server int, d time.Duration) {
	c.t.Helper()
	const step = 250 * time.Millisecond
	clock := c.clocks[server]
	for ; d > 0; d -= step {
		waiting := clock.Waiters()
		clock.Step(step)
		// The step's effects are complete when as many goroutines wait for the next.
		for began := time.Now(); clock.Waiters() < waiting && time.Since(began) < time.Second; {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// read makes a server read all leases.
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

// mustEnd advances one server's clock until the key is deleted.
func (c *clocked) mustEnd(server int, within time.Duration) {
	c.t.Helper()
	const step = time.Second
	for d := time.Duration(0); d < within; d += step {
		c.advance(server, step)
		if !c.there(server) {
			return
		}
	}
	// The last revocation may be under way.
	for deadline := time.Now().Add(10 * time.Second); c.there(server); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("the lease still exists after %v", within)
		}
	}
}

// TestSharedLeaseRenewedElsewhere checks that a server that never renews a lease itself
// sees the renewals of others. When these end, any server revokes the lease, even if the
// clocks of all others stand still.
func TestSharedLeaseRenewedElsewhere(t *testing.T) {
	c := openClocked(t, 3)
	c.grant(0, 7, 10*time.Second)
	for round := range 8 {
		c.keep(round%2, 7)
		for i := range c.servers {
			c.advance(i, 5*time.Second)
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

// TestSharedLeaseUnknown checks that the other servers see at once that a lease was
// granted, renewed or revoked through one server.
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

// TestSharedLeaseStaleView checks that a server that missed a renewal tries to revoke, and
// is refused because of the beat.
func TestSharedLeaseStaleView(t *testing.T) {
	c := openClocked(t, 2)
	c.grant(0, 7, 10*time.Second)
	c.read(1)
	records, err := c.conns[1].Table.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.conns[1].stale.Store(&records)
	c.keep(0, 7)
	for deadline := time.Now().Add(20 * time.Second); c.commits[1].Load() == 0; {
		c.advance(1, time.Second)
		if time.Now().After(deadline) {
			t.Fatal("no attempt to revoke the lease")
		}
	}
	c.mustBeThere()
	c.conns[1].stale.Store(nil)
	c.mustEnd(1, 25*time.Second)
}

// TestSharedLeasePaused checks that a server that was paused, or could not reach the table,
// revokes no lease that others have renewed. It extends leases by the time in which no
// client could renew them.
func TestSharedLeasePaused(t *testing.T) {
	c := openClocked(t, 2)
	c.grant(0, 7, 10*time.Second)
	c.read(1)
	c.conns[1].failWith(kv.ErrUnavailable)
	c.keep(0, 7)
	c.clocks[1].Step(time.Minute)
	c.conns[1].failWith(nil)
	c.advance(1, 3*time.Second)
	c.read(1)
	c.mustBeThere()

	// No server can reach the table for a minute.
	for i := range c.servers {
		c.conns[i].failWith(kv.ErrUnavailable)
		c.advance(i, time.Minute)
	}
	for i := range c.servers {
		c.conns[i].failWith(nil)
	}
	for i := range c.servers {
		c.advance(i, 2*time.Second)
		c.read(i)
	}
	c.mustBeThere()
	c.keep(1, 7)
	c.mustEnd(0, 30*time.Second)
}

// TestSharedLeaseGrantedAgain checks that a lease granted again under the same ID is a new
// lease, even if no other server saw the end of the first.
func TestSharedLeaseGrantedAgain(t *testing.T) {
	c := openClocked(t, 2)
	c.grant(0, 7, 10*time.Second)
	c.read(1)
	c.advance(1, 8*time.Second)
	if _, err := c.servers[0].Revoke(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	c.grant(0, 7, 10*time.Second)
	c.read(1)
	c.advance(1, 8*time.Second)
	c.mustBeThere()
	c.mustEnd(1, 25*time.Second)
}

// TestSharedAutoCompact checks that several servers that compact by age do it once.
func TestSharedAutoCompact(t *testing.T) {
	clocks := []*clocktesting.FakeClock{clocktesting.NewFakeClock(time.Now()), clocktesting.NewFakeClock(time.Now())}
	c := openCluster(t, 2, network{poll: 10 * time.Millisecond}, func(i int) mvcc.Options {
		return mvcc.Options{Clock: clocks[i], Retention: mvcc.Retention{Age: time.Hour}}
	})
	const steps = 30
	for n := range steps {
		c.servers[n%2].put("k", "v")
		for i, clock := range clocks {
			reads := c.conns[i].headReads.Load()
			// Each step begins with a read of the head.
			for deadline := time.Now().Add(20 * time.Second); c.conns[i].headReads.Load() == reads; time.Sleep(time.Millisecond) {
				clock.Step(6 * time.Minute)
				if time.Now().After(deadline) {
					t.Fatal("no compaction step")
				}
			}
		}
	}
	st, err := c.servers[0].Status(t.Context())
	if err != nil || st.Compacted == 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if n := c.conns[0].compactions.Load() + c.conns[1].compactions.Load(); n > steps+2 {
		t.Errorf("compacted %d times in %d steps", n, steps)
	}
}
