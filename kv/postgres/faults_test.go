package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/pgproxy"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

func proxy(t testing.TB, s *playground.Server, seed uint64) *pgproxy.Proxy {
	t.Helper()
	return proxyAs(t, s, seed, pgproxy.PostgreSQL)
}

func proxyAs(t testing.TB, s *playground.Server, seed uint64, which pgproxy.Database) *pgproxy.Proxy {
	t.Helper()
	p, err := pgproxy.Start(pgproxy.Config{Server: s.Address(), Seed: seed, Database: which})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func through(t testing.TB, p *pgproxy.Proxy, s *playground.Server, name string) string {
	t.Helper()
	url, err := p.URL(s.URL(), name)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// TestFaults runs two servers on one database with all kinds of connection faults. Clients
// must not notice any of them: a single order of transactions must explain their answers.
func TestFaults(t *testing.T) {
	t.Parallel()
	s := server(t)
	for name, faults := range map[string]pgproxy.Faults{
		"lost replies to COMMIT": {LoseCommitReply: 0.1},
		"abandoned COMMITs":      {AbandonCommit: 0.1},
		"serialization failures": {Fail: 0.01, FailCommit: 0.05, Codes: []string{codeSerialization, codeDeadlock}},
		"shutdowns":              {Fail: 0.005, FailCommit: 0.02, Codes: []string{"57P01", "57P02"}},
		"a demoted primary":      {Fail: 0.01, FailCommit: 0.02, Codes: []string{codeReadOnly}},
		"cut connections":        {Cut: 0.002},
		"all of it":              {LoseCommitReply: 0.03, AbandonCommit: 0.03, Fail: 0.005, FailCommit: 0.03, Cut: 0.001},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFaults(t, s, pgproxy.PostgreSQL, faults, 60)
		})
	}
	// The documented errors of these databases, in addition to their isolation.
	for _, which := range pgproxy.Databases() {
		t.Run("as "+string(which), func(t *testing.T) {
			t.Parallel()
			faults := pgproxy.Faults{LoseCommitReply: 0.03, AbandonCommit: 0.03, Fail: 0.01, FailCommit: 0.05, Cut: 0.001,
				ToServer: time.Millisecond, ToClient: time.Millisecond}
			if which == pgproxy.Cockroach {
				faults.LoseLock = 0.1
			}
			testFaults(t, s, which, faults, 30)
		})
		t.Run("all errors of "+string(which), func(t *testing.T) {
			t.Parallel()
			testFaults(t, s, which, pgproxy.Faults{Fail: 0.01, FailCommit: 0.05, Codes: documented(which)}, 30)
		})
		t.Run("unknown outcomes of "+string(which), func(t *testing.T) {
			t.Parallel()
			testFaults(t, s, which, pgproxy.Faults{MisreportCommit: 0.1, Codes: unknownOutcomes(which)}, 30)
		})
	}
}

// documented returns the errors for which the manual of a database tells clients to try again.
func documented(which pgproxy.Database) []string {
	if which == pgproxy.Cockroach {
		return []string{
			"40001 restart transaction: TransactionRetryWithProtoRefreshError: TransactionRetryError: retry txn (RETRY_SERIALIZABLE - failed preemptive refresh)",
			"40001 restart transaction: TransactionRetryWithProtoRefreshError: ReadWithinUncertaintyIntervalError: read at time 1 encountered previous write",
			"40001 restart transaction: TransactionRetryWithProtoRefreshError: TransactionAbortedError(ABORT_REASON_CLIENT_REJECT)",
			"40003 result is ambiguous: error=rpc error: code = Unavailable",
			"55P03 canceling statement due to lock timeout on row",
			"58C00 replica unavailable: (n1,s1):1 unable to serve request to r1",
			"58C01 range unavailable",
			"53300 sorry, too many clients already",
			"25006 cannot execute UPDATE in a read-only transaction",
			"57P01", "57P03",
		}
	}
	return []string{
		"40001 could not serialize access due to concurrent update",
		"40001 Restart read required at: { read: 1 local_limit: 2 }",
		"40001 Unknown transaction, could be recently aborted: 1",
		"40001 The catalog snapshot used for this transaction has been invalidated: expected: 2, got: 1: MISMATCHED_SCHEMA",
		"40P01 deadlock detected",
		"25P02 current transaction is aborted, commands ignored until end of transaction block",
		"72000 Snapshot too old. Read point: 1, earliest read time allowed: 2",
		"XX000 Catalog Version Mismatch: A DDL occurred while processing this query. Try again.",
		"XX000 Query error: schema version mismatch for table 1: expected 2, got 1",
		"XX000 Timed out: Perform RPC (request call id 71) to 10.0.0.1:9100 timed out after 120.000s",
		"XX000 Network error: recvmsg error: Connection refused",
		"XX000 Illegal state: Not the leader",
		"25006 cannot execute UPDATE in a read-only transaction",
		"57P01", "57P03",
	}
}

// unknownOutcomes returns the errors by which COMMIT can be reported although it was executed.
func unknownOutcomes(which pgproxy.Database) []string {
	if which == pgproxy.Cockroach {
		return []string{"40003 result is ambiguous: error=rpc error: code = Unavailable", "58C00 replica unavailable"}
	}
	return []string{"XX000 Timed out: Perform RPC (request call id 71) to 10.0.0.1:9100 timed out after 120.000s", "08006 connection failure"}
}

func testFaults(t *testing.T, s *playground.Server, which pgproxy.Database, faults pgproxy.Faults, calls int) {
	for seed := range uint64(*seeds) {
		p := proxyAs(t, s, seed, which)
		option := schemaOf(t)
		kvtest.Concurrent(t, seed, 12, calls, func(t testing.TB) kv.Keyspace {
			var entries []kv.Keyspace
			for i := range 2 {
				// The duration is irrelevant, also on a slow machine.
				db := openURL(t, through(t, p, s, fmt.Sprintf("server%d", i)), option, WithTimeout(time.Minute))
				entries = append(entries, openStore(t, db, mvcc.Options{}))
			}
			p.Set(faults)
			return kvtest.Spread(entries...)
		})
		p.Set(pgproxy.Faults{})
		counts := p.Counts()
		if len(counts) == 0 || counts[pgproxy.FeaturesRefused] > 0 {
			t.Error("no faults were injected, or the wrong ones:", counts)
		}
		t.Logf("seed %d: %v", seed, counts)
		if err := openURL(t, through(t, p, s, "check"), option).Check(t.Context()); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// TestLostCommit checks that a commit whose answer is lost is neither lost nor repeated,
// and costs one more round trip.
func TestLostCommit(t *testing.T) {
	for _, which := range append(pgproxy.Databases(), pgproxy.PostgreSQL) {
		t.Run("as "+string(which), func(t *testing.T) {
			t.Parallel()
			testLostCommit(t, emulate(t, which, 1))
		})
	}
}

func testLostCommit(t *testing.T, d *database) {
	table, p := openTable(t, d.open(t), "default"), d.proxy
	write(t, table, "a", "1")

	p.Set(pgproxy.Faults{LoseCommitReply: 1})
	runs := 0
	done := make(chan error, 1)
	go func() {
		done <- table.Update(t.Context(), nil, func(tx kv.Tx) error {
			runs++
			return changesOf(tx, "a", "2")
		})
	}()
	// The look-up is a commit, too.
	eventually(t, "a reply is lost", func() bool { return p.Counts()[pgproxy.CommitRepliesLost] > 0 })
	p.Set(pgproxy.Faults{})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if runs != 1 || dump(t, table, 0) != "a=2@3" {
		t.Errorf("ran %d times: %s", runs, dump(t, table, 0))
	}

	// Granting a lease makes no revision and must not happen twice either.
	p.Set(pgproxy.Faults{LoseCommitReply: 1})
	lost := p.Counts()[pgproxy.CommitRepliesLost]
	runs = 0
	go func() {
		done <- table.Update(t.Context(), nil, func(tx kv.Tx) error {
			runs++
			if l, err := tx.Lease(7); err != nil || l != nil {
				return fmt.Errorf("lease %v already exists: %v", l, err)
			}
			return tx.PutLease(kv.LeaseRecord{ID: 7, TTL: 60})
		})
	}()
	eventually(t, "a reply is lost", func() bool { return p.Counts()[pgproxy.CommitRepliesLost] > lost })
	p.Set(pgproxy.Faults{})
	if err := <-done; err != nil || runs != 1 {
		t.Errorf("ran %d times: %v", runs, err)
	}
}

// TestUnknownOutcome checks that the outcome is unknown only if the database cannot be
// reached.
func TestUnknownOutcome(t *testing.T) {
	for _, which := range append(pgproxy.Databases(), pgproxy.PostgreSQL) {
		t.Run("as "+string(which), func(t *testing.T) {
			t.Parallel()
			testUnknownOutcome(t, emulate(t, which, 1), func(table *table, fn func(kv.Tx) error) error {
				return table.Update(t.Context(), nil, fn)
			})
		})
	}
	t.Run("optimistically", func(t *testing.T) {
		t.Parallel()
		testUnknownOutcome(t, emulate(t, pgproxy.PostgreSQL, 1), func(table *table, fn func(kv.Tx) error) error {
			_, _, err := table.TryUpdate(t.Context(), []kv.Lookup{{Key: []byte("a")}}, fn)
			return err
		})
	})
}

func testUnknownOutcome(t *testing.T, d *database, update func(*table, func(kv.Tx) error) error) {
	table, p := openTable(t, d.open(t), "default"), d.proxy
	p.Set(pgproxy.Faults{LoseCommitReply: 1})
	err := update(table, func(tx kv.Tx) error { return changesOf(tx, "a", "1") })
	if !errors.Is(err, kv.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
	p.Set(pgproxy.Faults{})
	if got := dump(t, table, 0); got != "a=1@2" {
		t.Error(got)
	}
	write(t, table, "a", "2")
}

// TestTerminated: the database terminates sessions in the middle of commits.
func TestTerminated(t *testing.T) {
	t.Parallel()
	s := server(t)
	db := openURL(t, s.URL()+"&application_name=terminated", schemaOf(t))
	k := openStore(t, db, mvcc.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var made atomic.Int64
	for range 16 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := create(k, made.Add(1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 20 {
		sql(t, s, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'terminated'`)
		time.Sleep(20 * time.Millisecond) // repeats under load; it waits for nothing
	}
	cancel()
	wg.Wait()
	res, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil), CountOnly: true})
	if err != nil || res.Count != made.Load() || res.Revision != made.Load()+1 {
		t.Errorf("%d created: %+v, %v", made.Load(), res, err)
	}
}

// TestCrash repeatedly kills the database under load. Acknowledged writes exist once, and
// the servers continue automatically.
func TestCrash(t *testing.T) {
	t.Parallel()
	s := own(t)
	// The crashed database recovers by syncing all its files, which takes long on a busy disk.
	db := openURL(t, s.URL(), WithTimeout(time.Minute))
	k := openStore(t, db, mvcc.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var next, acknowledged atomic.Int64
	for range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := create(k, next.Add(1)); err != nil {
					t.Error(err)
				}
				acknowledged.Add(1)
			}
		})
	}
	for range 3 {
		before := acknowledged.Load()
		eventually(t, "load", func() bool { return acknowledged.Load() > before+500 })
		s.Kill()
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
	res, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil), CountOnly: true})
	if err != nil || res.Count != acknowledged.Load() {
		t.Errorf("%d acknowledged: %+v, %v", acknowledged.Load(), res, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("%d creates through 3 crashes", acknowledged.Load())
}

// TestPause checks that a frozen database is unavailable after a bounded time, and later
// available again automatically.
func TestPause(t *testing.T) {
	t.Parallel()
	s := own(t)
	db := openURL(t, s.URL(), WithTimeout(5*time.Second))
	table := openTable(t, db, "default")
	write(t, table, "a", "1")
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err := table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "a", "2") })
	if !errors.Is(err, kv.ErrUnavailable) {
		t.Errorf("update: %v", err)
	}
	if _, err := table.Head(t.Context()); !errors.Is(err, kv.ErrUnavailable) {
		t.Errorf("head: %v", err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %v to fail", took)
	}
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is back", func() bool { _, err := table.Head(t.Context()); return err == nil })
	write(t, table, "a", "3")
	if got := dump(t, table, 0); got != "a=3@3" {
		t.Error(got)
	}
}

// TestListOfFrozenDatabase checks that a list, which may take a minute, fails as soon as the
// database has not answered anything for the timeout.
func TestListOfFrozenDatabase(t *testing.T) {
	t.Parallel()
	s := own(t)
	k := openStore(t, openURL(t, s.URL(), WithTimeout(3*time.Second)), mvcc.Options{})
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	defer s.Continue()
	ctx, cancel := context.WithTimeout(t.Context(), statementLimit/2)
	defer cancel()
	_, err := k.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil)})
	if !errors.Is(err, kv.ErrUnavailable) || !strings.Contains(err.Error(), "does not answer") || !strings.Contains(err.Error(), s.Address()) {
		t.Error(err)
	}
}

// TestMissingStandby checks that a server tells why it waits, if the synchronous standby is
// gone: also one whose transaction waits for that of another server.
func TestMissingStandby(t *testing.T) {
	t.Parallel()
	s := own(t)
	standby, err := s.Standby(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	tables := []*table{openTable(t, openURL(t, s.URL()), "default"), openTable(t, openURL(t, s.URL()), "default")}
	standby.Stop()
	errs := make(chan error, len(tables))
	for _, table := range tables {
		go func() {
			errs <- table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "a", "1") })
		}()
	}
	for range tables {
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "synchronous standby") {
			t.Error(err)
		}
	}
}

// TestFrozenServer checks that a server that stops in the middle of a transaction delays
// the others only for a bounded time, and that its own transaction is run again.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testFrozenServer)
}

func testFrozenServer(t *testing.T, d *database) {
	db := d.open(t)
	table := openTable(t, db, "default")
	other := openTable(t, openURL(t, d.url, WithSchema(db.opts.schema)), "default")
	entered, leave := make(chan struct{}, 2), make(chan struct{})
	frozen := make(chan error, 1)
	go func() {
		frozen <- table.Update(context.Background(), nil, func(tx kv.Tx) error {
			entered <- struct{}{}
			<-leave
			return changesOf(tx, "a", "frozen")
		})
	}()
	<-entered
	begin := time.Now()
	write(t, other, "a", "other")
	t.Logf("delayed for %v", time.Since(begin))
	close(leave)
	if err := <-frozen; err != nil {
		t.Error(err)
	}
	if got := dump(t, other, 0); got != "a=frozen@3" {
		t.Error(got)
	}
}

// TestEvict checks that a session that stops in the middle of sending its changes, which no
// timeout of the database ends, is terminated by those waiting for it.
func TestEvict(t *testing.T) {
	t.Parallel()
	for _, which := range []pgproxy.Database{pgproxy.PostgreSQL, pgproxy.Yugabyte} {
		t.Run("as "+string(which), func(t *testing.T) {
			t.Parallel()
			testEvict(t, emulate(t, which, 1))
		})
	}
}

func testEvict(t *testing.T, d *database) {
	db := d.open(t)
	table := openTable(t, db, "default")
	holdHead(t, server(t), table)
	begin := time.Now()
	write(t, table, "a", "1")
	t.Logf("delayed for %v", time.Since(begin))
}

// holdHead locks a keyspace's head in a session that has stopped in the middle of sending.
func holdHead(t *testing.T, s *playground.Server, of *table) {
	t.Helper()
	holder, err := of.db.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(holder.close)
	of.db.sendLock(holder, of.id)
	if err := holder.flush(); err != nil { // and no sync
		t.Fatal(err)
	}
	eventually(t, "it holds the head", func() bool {
		return sql(t, s, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE l.relation = '`+of.db.opts.schema+`.head'::regclass AND a.wait_event = 'ClientRead' AND a.state = 'active'`) != "0"
	})
}

// TestEvictBeforeLockTimeout: the client stops waiting before the database ends the wait for
// the lock. The session that holds the lock is terminated all the same.
func TestEvictBeforeLockTimeout(t *testing.T) {
	t.Parallel()
	d := emulate(t, pgproxy.PostgreSQL, 1)
	db := d.open(t, WithTimeout(lockLimit/2))
	table := openTable(t, db, "default")
	holdHead(t, server(t), table)
	var failures []error
	eventually(t, "a write succeeds", func() bool {
		err := table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "a", "1") })
		if err != nil {
			failures = append(failures, err)
		}
		return err == nil
	})
	if len(failures) == 0 {
		t.Error("the head was not held")
	}
}

// TestFailover checks that with a synchronous standby no acknowledged write is lost. The
// servers find the new primary automatically among the hosts of their URL.
func TestFailover(t *testing.T) {
	t.Parallel()
	s := own(t)
	standby, err := s.Standby(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Stop() })
	db := openURL(t, both(s, standby))
	table := openTable(t, db, "default")
	write(t, table, "a", "1", "b", "2")
	s.Kill()
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, table, "c", "3")
	if got := dump(t, table, 0); got != "a=1@2 b=2@3 c=3@4" {
		t.Error(got)
	}
}

// TestBehind: a lagging standby takes over. The servers refuse to serve, with the reason,
// even when it has caught up in revisions.
func TestBehind(t *testing.T) {
	for _, caughtUp := range []bool{false, true} {
		t.Run(fmt.Sprintf("caughtUp=%v", caughtUp), func(t *testing.T) {
			t.Parallel()
			s := own(t)
			standby, err := s.Standby(t.Context(), false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { standby.Stop() })
			db := openURL(t, both(s, standby))
			table := openTable(t, db, "default")
			healthy := openTable(t, db, "another")
			write(t, healthy, "x", "1")
			write(t, table, "a", "1")
			eventually(t, "the standby has it all", func() bool {
				return sql(t, s, `SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()`) == "1"
			})
			standby.Kill()
			write(t, table, "a", "lost")
			s.Kill()
			if err := standby.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			if caughtUp {
				fresh := openURL(t, standby.URL())
				write(t, openTable(t, fresh, "default"), "a", "other", "b", "other")
			}
			err = table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "b", "2") })
			if !errors.Is(err, kv.ErrBehind) || !strings.Contains(err.Error(), "atoll kv recover") {
				t.Errorf("update: %v", err)
			}
			if _, _, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)}, true); !errors.Is(err, kv.ErrBehind) {
				t.Errorf("range: %v", err)
			}
			soon, cancel := context.WithTimeout(t.Context(), 2*checkEvery)
			defer cancel()
			err = table.Follow(soon, func(kv.Revision) { t.Error("a revision of a lost history is reported") })
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("follow: %v", err)
			}
			// The other keyspace's acknowledged writes are complete.
			if got := dump(t, healthy, 0); got != "x=1@2" {
				t.Error(got)
			}
			// A server that does not know the loss does not go on either.
			fresh := openURL(t, standby.URL())
			if _, err := openTable(t, fresh, "default").Head(t.Context()); !errors.Is(err, kv.ErrBehind) {
				t.Errorf("a new server: %v", err)
			}

			// The former primary is brought back.
			if err := standby.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := s.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is served again", func() bool { _, err := table.Head(t.Context()); return err == nil })
			if got := dump(t, table, 0); got != "a=lost@3" {
				t.Error(got)
			}
		})
	}
}

// both returns a URL with two hosts. Their passwords are the same.
func both(a, b *playground.Server) string {
	return strings.Replace(a.URL(), a.Address(), a.Address()+","+b.Address(), 1)
}
