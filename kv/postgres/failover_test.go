package postgres

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

// pair returns a primary and its standby.
func pair(t *testing.T) (primary, standby *playground.Server) {
	t.Helper()
	primary = own(t)
	standby, err := primary.Standby(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Stop() })
	return primary, standby
}

// caughtUp waits until the standby has everything.
func caughtUp(t *testing.T, primary *playground.Server) {
	t.Helper()
	eventually(t, "the standby has it all", func() bool {
		return sql(t, primary, `SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_insert_lsn()`) == "1"
	})
}

func promote(t *testing.T, standby *playground.Server) {
	t.Helper()
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestFormerPrimaryComesBack: the former primary is started again as it was, and accepts
// writes. Neither new nor running servers use it, and it is refused if it is the only one.
func TestFormerPrimaryComesBack(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	url := both(primary, standby)
	running := openStore(t, openURL(t, url), mvcc.Options{})
	put := func(ks kv.Keyspace, value string) {
		t.Helper()
		if _, err := ks.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("a"), Value: []byte(value)}}}}); err != nil {
			t.Fatal(err)
		}
	}
	put(running, "1")
	caughtUp(t, primary)
	primary.Kill()
	promote(t, standby)
	put(running, "2")
	if err := primary.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh := openStore(t, openURL(t, url), mvcc.Options{})
	put(fresh, "3")
	sql(t, standby, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'atoll'`)
	put(running, "4")
	for name, ks := range map[string]kv.Keyspace{"running": running, "new": fresh} {
		res, err := ks.Range(t.Context(), kv.RangeRequest{Span: kv.Span{Start: []byte("a")}})
		if err != nil || len(res.KVs) != 1 || string(res.KVs[0].Value) != "4" || res.Revision != 5 {
			t.Errorf("%s server: %+v, %v", name, res, err)
		}
	}
	if got := sql(t, primary, `SELECT max(rev) FROM atoll.head`); got != "2" {
		t.Errorf("the former primary is at revision %s", got)
	}
	// A server that is started while only the former primary is there.
	standby.Kill()
	alone := openURL(t, url, WithTimeout(checkEvery))
	if _, err := openTable(t, alone, "default").Head(t.Context()); !errors.Is(err, kv.ErrBehind) {
		t.Errorf("the former primary alone: %v", err)
	}
}

// TestRefusedConnection: the host that has everything refuses a connection while the former
// primary answers. Nothing is missing, so the next connection is used. Only if the host stays
// away, the keyspace is no longer served.
func TestRefusedConnection(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	db := openURL(t, both(primary, standby), WithTimeout(6*time.Second))
	refused := make(chan struct{}, 1000)
	for _, host := range db.hosts.all {
		dial := host.DialFunc
		host.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == standby.Address() {
				select {
				case <-refused:
					return nil, syscall.ECONNREFUSED
				default:
				}
			}
			return dial(ctx, network, address)
		}
	}
	known := openTable(t, db, "default")
	write(t, known, "a", "1")
	caughtUp(t, primary)
	primary.Kill()
	promote(t, standby)
	write(t, known, "a", "2")
	if err := primary.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	terminate := func() {
		t.Helper()
		sql(t, standby, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'atoll'`)
	}
	refused <- struct{}{}
	terminate()
	write(t, known, "a", "3")
	if len(refused) > 0 {
		t.Error("no connection was refused")
	}
	for len(refused) < cap(refused) {
		refused <- struct{}{}
	}
	terminate()
	eventually(t, "the keyspace is not served", func() bool {
		_, err := known.Head(t.Context())
		return errors.Is(err, kv.ErrBehind)
	})
}

// TestTwoPrimaries: both have been written to by different servers. A new server uses none
// and names both; so does the recovery.
func TestTwoPrimaries(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	write(t, openTable(t, openURL(t, primary.URL()), "default"), "a", "1")
	caughtUp(t, primary)
	promote(t, standby)
	write(t, openTable(t, openURL(t, primary.URL()), "default"), "a", "2")
	write(t, openTable(t, openURL(t, standby.URL()), "default"), "a", "3")
	_, err := Open(t.Context(), both(primary, standby), WithTimeout(checkEvery))
	if !errors.Is(err, kv.ErrUnavailable) || !strings.Contains(err.Error(), primary.Address()+" (") || !strings.Contains(err.Error(), standby.Address()+" (") {
		t.Error(err)
	}
	_, err = Open(t.Context(), both(primary, standby), ToRecover())
	if !errors.Is(err, kv.ErrInvalidRequest) || !strings.Contains(err.Error(), primary.Address()+" (") || !strings.Contains(err.Error(), "name the one to recover") {
		t.Errorf("recovery: %v", err)
	}
}

// TestIdleServer: a lagging standby takes over. A server that does not know the lost commits
// does not go on before those that know it have recorded it.
func TestIdleServer(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	url := both(primary, standby)
	busy, idle := openURL(t, url), openURL(t, url)
	known := openTable(t, busy, "default")
	other := openTable(t, idle, "default")
	write(t, known, "a", "1")
	if got := dump(t, other, 0); got != "a=1@2" {
		t.Fatal(got)
	}
	// Both are seen.
	busy.beat(t.Context())
	idle.beat(t.Context())
	caughtUp(t, primary)
	standby.Kill()
	write(t, known, "a", "lost")
	primary.Kill()
	if err := standby.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	promote(t, standby)
	// The idle server comes first, and waits for the other one.
	updated := make(chan error, 1)
	go func() {
		updated <- other.Update(context.WithoutCancel(t.Context()), nil, func(tx kv.Tx) error { return changesOf(tx, "b", "1") })
	}()
	eventually(t, "the idle server asks", func() bool {
		return sql(t, standby, `SELECT count(*) FROM atoll.instance WHERE NOT settled`) == "1"
	})
	if _, err := known.Head(t.Context()); !errors.Is(err, kv.ErrBehind) {
		t.Errorf("the server that knows it: %v", err)
	}
	if err := <-updated; !errors.Is(err, kv.ErrBehind) {
		t.Errorf("the idle server: %v", err)
	}
}

// TestRestoredUnderServers: the tables are replaced by older ones while servers run.
func TestRestoredUnderServers(t *testing.T) {
	t.Parallel()
	s := own(t)
	busy, idle := openURL(t, s.URL()), openURL(t, s.URL())
	known, other := openTable(t, busy, "default"), openTable(t, idle, "default")
	write(t, known, "a", "1")
	if got := dump(t, other, 0); got != "a=1@2" {
		t.Fatal(got)
	}
	busy.beat(t.Context())
	idle.beat(t.Context())
	if err := s.Dump(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	write(t, known, "a", "lost")
	if err := s.RestoreDump(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	updated := make(chan error, 1)
	go func() {
		updated <- other.Update(context.WithoutCancel(t.Context()), nil, func(tx kv.Tx) error { return changesOf(tx, "b", "1") })
	}()
	eventually(t, "the idle server asks", func() bool {
		return sql(t, s, `SELECT count(*) FROM atoll.instance WHERE NOT settled`) == "1"
	})
	if _, err := known.Head(t.Context()); !errors.Is(err, kv.ErrBehind) {
		t.Errorf("the server that knows it: %v", err)
	}
	if err := <-updated; !errors.Is(err, kv.ErrBehind) {
		t.Errorf("the idle server: %v", err)
	}
	if _, err := Open(t.Context(), s.URL(), ToRecover()); !errors.Is(err, kv.ErrInvalidRequest) || !strings.Contains(err.Error(), "is used by 2 servers") {
		t.Errorf("recovery while servers run: %v", err)
	}
	busy.Close()
	idle.Close()
	if got := recoverBy(t, openTable(t, openURL(t, s.URL(), ToRecover()), "default"), 1000); got < 1000 {
		t.Errorf("recovered at %d", got)
	}
	write(t, openTable(t, openURL(t, s.URL()), "default"), "a", "new")
}

// TestPointInTimeRecovery: the database goes back to a moment before a compaction. No server, running or
// new, serves the older state until the loss is accepted. Then no revision is used twice, and clients that remember
// one list again.
func TestPointInTimeRecovery(t *testing.T) {
	t.Parallel()
	s := own(t)
	db := openURL(t, s.URL())
	if _, err := db.Split(t.Context(), "default", "/p/", kv.SplitOptions{EmptyOnly: true}); err != nil {
		t.Fatal(err)
	}
	names, err := db.Keyspaces(t.Context())
	if err != nil || len(names) != 2 {
		t.Fatalf("%q, %v", names, err)
	}
	open := func(db *DB) (stores []*mvcc.Keyspace) {
		t.Helper()
		for _, name := range names {
			k, err := mvcc.Open(context.WithoutCancel(t.Context()), openTable(t, db, name), db, mvcc.Options{})
			if err != nil {
				t.Fatal(err)
			}
			stores = append(stores, k)
		}
		return stores
	}
	prefixes := []string{"", "/p/"}
	put := func(stores []*mvcc.Keyspace, values ...string) (last [2]kv.Revision) {
		t.Helper()
		for i, k := range stores {
			for _, v := range values {
				res, err := k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(prefixes[i] + "a"), Value: []byte(v)}}}})
				if err != nil {
					t.Fatal(err)
				}
				last[i] = res.Revision
			}
		}
		return last
	}
	running := open(db)
	other := openURL(t, s.URL())
	idle := open(other)
	put(running, "1", "2")
	backup, err := s.BaseBackup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer backup.Remove()
	put(running, "3")
	point := sql(t, s, "SELECT pg_current_wal_insert_lsn()")
	lost := put(running, "4", "5", "6")
	for i, k := range running {
		if _, err := k.Compact(t.Context(), lost[i], true); err != nil {
			t.Fatal(err)
		}
	}
	lost = put(running, "7")
	sql(t, s, "SELECT pg_switch_wal()")
	if err := s.RestoreTo(t.Context(), backup, point); err != nil {
		t.Fatal(err)
	}

	for what, stores := range map[string][]*mvcc.Keyspace{"a running server": running, "an idle server": idle} {
		for i, k := range stores {
			eventually(t, what+" refuses "+names[i], func() bool {
				_, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
				return errors.Is(err, kv.ErrBehind)
			})
		}
	}
	fresh := openURL(t, s.URL())
	for _, name := range names {
		if _, err := mvcc.Open(t.Context(), openTable(t, fresh, name), fresh, mvcc.Options{}); !errors.Is(err, kv.ErrBehind) {
			t.Errorf("a new server opens %s: %v", name, err)
		}
	}
	fresh.Close()
	for _, k := range append(running, idle...) {
		k.Close()
	}
	db.Close()
	other.Close()

	accepting := openURL(t, s.URL(), ToRecover())
	for _, name := range names {
		recoverBy(t, openTable(t, accepting, name), 1000)
	}
	accepting.Close()
	after := openURL(t, s.URL())
	if err := after.Check(t.Context()); err != nil {
		t.Error(err)
	}
	stores := open(after)
	for i, k := range stores {
		res, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
		if err != nil || len(res.KVs) != 1 || string(res.KVs[0].Value) != "3" {
			t.Errorf("%s has %v, %v", names[i], res, err)
		}
		if _, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil), Revision: lost[i]}); !errors.Is(err, kv.ErrCompacted) {
			t.Errorf("%s, at a lost revision: %v", names[i], err)
		}
	}
	for i, rev := range put(stores, "8") {
		if rev <= lost[i] {
			t.Errorf("%s: revision %d was used before, up to %d", names[i], rev, lost[i])
		}
		if _, err := stores[i].Compact(t.Context(), rev, true); err != nil {
			t.Error(err)
		}
		stores[i].Close()
	}
	if err := after.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestClockJumps: the database's clock is set forward or back by an hour. Servers go on, a frozen one is evicted,
// a loss is noticed, and a recovery waits for no dead server.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testClockJump(t, jump)
		})
	}
}

func testClockJump(t *testing.T, jump time.Duration) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	s, err := playground.Start(t.Context(), playground.Config{MovableClock: true})
	if errors.Is(err, playground.ErrNoFaketime) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	move := func(ahead time.Duration) {
		t.Helper()
		if err := s.MoveClock(ahead); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the clock moved", func() bool {
			now, err := time.Parse("2006-01-02 15:04:05", sql(t, s, `SELECT to_char(clock_timestamp(), 'YYYY-MM-DD HH24:MI:SS')`))
			return err == nil && time.Until(now).Round(time.Minute) == ahead
		})
	}
	busy, idle := openURL(t, s.URL()), openURL(t, s.URL())
	known, other := openTable(t, busy, "default"), openTable(t, idle, "default")
	write(t, known, "a", "1")
	busy.beat(t.Context())
	idle.beat(t.Context())

	// A server freezes while it holds the head, and the clock jumps.
	entered, leave, frozen := make(chan struct{}, 2), make(chan struct{}), make(chan error, 1)
	go func() {
		frozen <- known.Update(context.Background(), nil, func(tx kv.Tx) error {
			entered <- struct{}{}
			<-leave
			return changesOf(tx, "a", "frozen")
		})
	}()
	<-entered
	move(jump)
	begin := time.Now()
	write(t, other, "a", "other")
	t.Logf("the other server waited for %v", time.Since(begin).Round(100*time.Millisecond))
	close(leave)
	if err := <-frozen; err != nil {
		t.Error(err)
	}

	// The same in the middle of sending, which no timeout of the database ends.
	move(max(jump, 0))
	holdHead(t, s, known)
	move(min(jump, 0))
	begin = time.Now()
	eventually(t, "the session is evicted", func() bool {
		return other.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "a", "evicted") }) == nil
	})
	t.Logf("the other server waited for %v", time.Since(begin).Round(100*time.Millisecond))

	move(jump)

	// One server knows what an older dump lacks. The clock jumps back before the other one asks.
	idle.beat(t.Context())
	if got := dump(t, other, 0); got != "a=evicted@5" {
		t.Fatal(got)
	}
	if err := s.Dump(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	write(t, known, "a", "lost")
	if err := s.RestoreDump(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	move(0)
	updated := make(chan error, 1)
	go func() {
		updated <- other.Update(context.WithoutCancel(t.Context()), nil, func(tx kv.Tx) error { return changesOf(tx, "b", "1") })
	}()
	eventually(t, "the other server asks", func() bool { return sql(t, s, `SELECT count(*) FROM atoll.instance WHERE NOT settled`) == "1" })
	if _, err := known.Head(t.Context()); !errors.Is(err, kv.ErrBehind) {
		t.Errorf("the server that knows it: %v", err)
	}
	if err := <-updated; !errors.Is(err, kv.ErrBehind) {
		t.Errorf("the other server: %v", err)
	}

	// Both are killed, when the clock has jumped.
	for _, db := range []*DB{busy, idle} {
		db.beat(t.Context())
	}
	move(jump)
	sql(t, s, `UPDATE atoll.server SET seen = clock_timestamp()`)
	move(0)
	begin = time.Now()
	eventually(t, "the recovery is not refused", func() bool {
		db, err := Open(t.Context(), s.URL(), ToRecover())
		if err != nil {
			if !errors.Is(err, kv.ErrInvalidRequest) {
				t.Fatal(err)
			}
			return false
		}
		defer db.Close()
		recoverBy(t, openTable(t, db, "default"), 1000)
		return true
	})
	t.Logf("a recovery after %v", time.Since(begin).Round(100*time.Millisecond))
}

// TestLateMark: a server finds that the database lacks a commit, and by the time it records that,
// the commit is there.
func TestLateMark(t *testing.T) {
	t.Parallel()
	s := own(t)
	db := openURL(t, s.URL())
	known := openTable(t, db, "default")
	write(t, known, "a", "1")
	restore := func(name string) func() {
		return func() {
			t.Helper()
			if err := s.RestoreDump(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	dump := func(name string) {
		t.Helper()
		if err := s.Dump(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	dump("before")
	write(t, known, "a", "2")
	dump("after")
	move := func(change string) func() {
		return func() { sql(t, s, `UPDATE atoll.head SET rev = rev `+change) }
	}
	for name, tt := range map[string]struct{ lose, back func() }{
		"other tables":   {restore("before"), restore("after")},
		"the same table": {move("- 1"), move("+ 1")},
	} {
		tt.lose()
		a, err := db.connectTo(t.Context(), db.config)
		if err != nil || len(a.lacks) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		tt.back()
		db.record(t.Context(), a)
		a.close()
		if got := sql(t, s, `SELECT max(lost) FROM atoll.head`); got != "0" {
			t.Errorf("%s: revision %s is recorded as missing", name, got)
		}
	}
	if _, err := known.Head(t.Context()); err != nil {
		t.Error(err)
	}
}
