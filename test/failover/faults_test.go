package failover

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/transfer"
	"github.com/atoll-dev/atoll/playground/pgproxy"
	playground "github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// fault is something that happens to the databases. When run returns, the world is healed:
// there are a primary and a standby.
type fault struct {
	name string
	run  func()
}

func (w *world) faults() []fault {
	return []fault{
		{"promote, and the stale primary is back", w.promote},
		{"promote a lagging standby, and go back", w.lagAndGoBack},
		{"restore an older dump, and the newer one", w.restoreOlder},
		{"promote a lagging standby, and accept it", w.lagAndAccept},
		{"terminate all sessions", w.terminate},
		{"freeze", w.freeze},
		{"cut all connections", w.cut},
	}
}

// pause stops the writers, and waits until the standby has everything.
func (w *world) pause() (resume func()) {
	w.Helper()
	var busy []*node
	for _, n := range w.servers {
		if n.isBusy() {
			busy = append(busy, n)
		}
		n.setBusy(false)
	}
	w.gate.Lock()
	w.gate.Unlock() //nolint:staticcheck // all calls have ended
	w.await(w.primary, `SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_insert_lsn()`, "1")
	return func() {
		for _, n := range busy {
			n.setBusy(true)
		}
	}
}

func (w *world) await(s *playground.Server, sql, want string) {
	w.Helper()
	var last string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		out, err := s.Exec(w.ctx, sql)
		if err == nil && out == want {
			return
		}
		if last = out; time.Now().After(deadline) {
			w.Fatalf("%s: %q, %v; want %q", sql, last, err, want)
		}
	}
}

// promote fails over without a loss. The former primary is started again as it was, accepts
// writes, and gets none.
func (w *world) promote() {
	resume := w.pause()
	w.primary.Kill()
	w.do("promote", w.standby.Promote(w.ctx))
	resume()
	w.served("the promotion")
	w.do("start the former primary", w.primary.Restart(w.ctx))
	before := w.revision(w.primary)
	for range w.random.IntN(3) {
		w.do("terminate", w.sql(w.standby, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`))
		w.served("the former primary came back")
	}
	if after := w.revision(w.primary); after != before {
		w.Errorf("the former primary got writes: %s, then %s", before, after)
	}
	w.rebuild(w.standby, w.primary)
}

func (w *world) revision(s *playground.Server) string {
	w.Helper()
	out, err := s.Exec(w.ctx, `SELECT string_agg(rev::text, ' ' ORDER BY ks) FROM atoll.head`)
	w.do("read the revisions", err)
	return out
}

func (w *world) sql(s *playground.Server, text string) error {
	_, err := s.Exec(w.ctx, text)
	return err
}

// rebuild makes old the standby of primary, at its address.
func (w *world) rebuild(primary, old *playground.Server) {
	w.Helper()
	old.Kill()
	standby, err := primary.StandbyInsteadOf(w.ctx, old)
	w.do("rebuild the standby", err)
	w.primary, w.standby = primary, standby
}

// lag makes the standby miss writes that only some servers know, and promotes it.
func (w *world) lag() {
	resume := w.pause()
	w.standby.Kill()
	resume()
	time.Sleep(time.Duration(w.random.IntN(300)) * time.Millisecond)
	before := w.revision(w.primary)
	for w.revision(w.primary) == before {
		time.Sleep(10 * time.Millisecond)
	}
	w.primary.Kill()
	w.do("start the standby", w.standby.Restart(w.ctx))
	w.do("promote", w.standby.Promote(w.ctx))
	w.refused("the loss")
}

func (w *world) lagAndGoBack() {
	w.lag()
	w.standby.Kill()
	w.do("start the former primary", w.primary.Restart(w.ctx))
	w.served("the former primary is back")
	w.rebuild(w.primary, w.standby)
}

func (w *world) lagAndAccept() {
	w.lag()
	for _, n := range w.servers {
		n.close()
	}
	w.accept(w.standby)
	for _, n := range w.servers {
		w.open(n)
	}
	w.served("the loss was accepted")
	w.rebuild(w.standby, w.primary)
}

// accept recovers the keyspaces of a database.
func (w *world) accept(s *playground.Server) {
	w.Helper()
	db, err := server.OpenDatastoreToRecover(w.ctx, s.URL(), false)
	for deadline := time.Now().Add(time.Minute); errors.Is(err, kv.ErrInvalidRequest) && time.Now().Before(deadline); time.Sleep(time.Second) {
		// The servers that could not reach the database have not removed their rows.
		db, err = server.OpenDatastoreToRecover(w.ctx, s.URL(), false)
	}
	w.do("open the database to recover", err)
	defer db.Close()
	names, err := db.Keyspaces(w.ctx)
	w.do("list the keyspaces", err)
	for _, name := range names {
		table, err := db.Open(w.ctx, name)
		w.do("open "+name, err)
		_, err = transfer.Recover(w.ctx, table, 1_000_000)
		w.do("recover "+name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accepted++
	clear(w.acked)
}

// restoreOlder replaces the tables by older ones while servers run, and then by those from a
// moment before.
func (w *world) restoreOlder() {
	w.do("dump", w.primary.Dump(w.ctx, "older"))
	before := w.revision(w.primary)
	for w.revision(w.primary) == before {
		time.Sleep(10 * time.Millisecond)
	}
	w.pause()
	w.do("dump", w.primary.Dump(w.ctx, "newer"))
	w.restore("older")
	w.refused("an older dump was restored")
	w.restore("newer")
	w.served("the newer dump was restored")
}

// restore replaces the tables. The database may end it for a deadlock with the reads of a server; then
// nothing has happened, and an administrator would repeat it.
func (w *world) restore(name string) {
	w.Helper()
	err := w.primary.RestoreDump(w.ctx, name)
	for attempt := 1; err != nil && strings.Contains(err.Error(), "deadlock detected") && attempt < 10; attempt++ {
		err = w.primary.RestoreDump(w.ctx, name)
	}
	w.do("restore "+name, err)
}

func (w *world) terminate() {
	for range 1 + w.random.IntN(3) {
		w.do("terminate", w.sql(w.primary, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`))
		time.Sleep(time.Duration(w.random.IntN(200)) * time.Millisecond)
	}
}

func (w *world) freeze() {
	w.do("freeze", w.primary.Pause())
	time.Sleep(time.Duration(500+w.random.IntN(15_000)) * time.Millisecond)
	w.do("continue", w.primary.Continue())
}

func (w *world) cut() {
	for _, p := range w.proxies {
		p.Set(pgproxy.Faults{Cut: 0.02, LoseCommitReply: 0.1, AbandonCommit: 0.05})
	}
	time.Sleep(time.Duration(w.random.IntN(1000)) * time.Millisecond)
	for _, p := range w.proxies {
		p.Cut()
		p.Set(pgproxy.Faults{})
	}
	for _, p := range w.poolers {
		p.Kill()
		w.do("start PgBouncer", p.Restart(context.WithoutCancel(w.ctx)))
	}
}
