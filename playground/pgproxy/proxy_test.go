package pgproxy_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/playground/pgproxy"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// server is shared by all tests; TestMain starts it.
var server *postgres.Server

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	var err error
	server, err = postgres.Start(ctx, postgres.Config{})
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	_ = server.Stop()
	os.Exit(status)
}

func start(t *testing.T, f pgproxy.Faults) *pgproxy.Proxy {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	p, err := pgproxy.Start(pgproxy.Config{Server: server.Address(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.Set(f)
	return p
}

func connect(t *testing.T, p *pgproxy.Proxy, name string) *pgconn.PgConn {
	t.Helper()
	conn, err := tryConnect(t.Context(), p, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

func tryConnect(ctx context.Context, p *pgproxy.Proxy, name string) (*pgconn.PgConn, error) {
	url, err := p.URL(server.URL(), name)
	if err != nil {
		return nil, err
	}
	return pgconn.Connect(ctx, url)
}

// table creates an empty table directly on the server.
func table(t *testing.T) string {
	t.Helper()
	name := "t_" + strings.ToLower(t.Name())
	direct(t, "DROP TABLE IF EXISTS "+name+"; CREATE TABLE "+name+" (n int)")
	return name
}

func direct(t *testing.T, sql string) string {
	t.Helper()
	out, err := server.Exec(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func do(t *testing.T, conn *pgconn.PgConn, sql string) {
	t.Helper()
	if err := simple(t.Context(), conn, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func simple(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	return conn.Exec(ctx, sql).Close()
}

// extended executes an SQL statement in the extended protocol.
func extended(ctx context.Context, conn *pgconn.PgConn, sql string, params ...string) error {
	var values [][]byte
	for _, p := range params {
		values = append(values, []byte(p))
	}
	return conn.ExecParams(ctx, sql, values, nil, nil, nil).Read().Err
}

func code(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return fmt.Sprint(err)
}

func (c check) status(want byte) {
	c.Helper()
	if got := c.conn.TxStatus(); got != want {
		c.Errorf("transaction status %c, want %c", got, want)
	}
}

type check struct {
	*testing.T
	conn *pgconn.PgConn
}

// TestTransparent: without faults the proxy changes nothing: both protocols, pipelines, COPY,
// notifications, large values, cancellation.
func TestTransparent(t *testing.T) {
	p := start(t, pgproxy.Faults{})
	conn := connect(t, p, "a")
	name := table(t)
	do(t, conn, "INSERT INTO "+name+" VALUES (1); SELECT 1; SELECT 2")
	if err := extended(t.Context(), conn, "INSERT INTO "+name+" SELECT $1::int", "2"); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 1<<20)
	if got := conn.ExecParams(t.Context(), "SELECT $1::text", [][]byte{[]byte(large)}, nil, nil, nil).Read(); got.Err != nil || string(got.Rows[0][0]) != large {
		t.Error("large value:", got.Err)
	}
	if _, err := conn.CopyFrom(t.Context(), strings.NewReader("3\n4\n"), "COPY "+name+" FROM STDIN"); err != nil {
		t.Error("COPY:", err)
	}
	pipeline := conn.StartPipeline(t.Context())
	for range 100 {
		pipeline.SendQueryParams("INSERT INTO "+name+" SELECT $1::int", [][]byte{[]byte("5")}, nil, nil, nil)
	}
	if err := pipeline.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := pipeline.Close(); err != nil {
		t.Error("pipeline:", err)
	}
	if got := direct(t, "SELECT count(*) FROM "+name); got != "104" {
		t.Error("rows:", got)
	}
	do(t, conn, "LISTEN news")
	direct(t, "NOTIFY news")
	if err := conn.WaitForNotification(t.Context()); err != nil {
		t.Error("notification:", err)
	}
	done := make(chan error)
	go func() { done <- simple(t.Context(), conn, "SELECT pg_sleep(60)") }()
	for asleep := false; !asleep; {
		asleep = direct(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'a' AND wait_event = 'PgSleep'") == "1"
	}
	if err := conn.CancelRequest(t.Context()); err != nil {
		t.Error("cancel:", err)
	}
	if err := <-done; code(err) != "57014" {
		t.Error("cancelled query:", err)
	}
	if got := p.Counts(); len(got) != 0 {
		t.Error("counts:", got)
	}
}

// TestDelay: the delay applies once per round trip, and once per pipeline.
func TestDelay(t *testing.T) {
	p := start(t, pgproxy.Faults{})
	conn := connect(t, p, "a")
	p.Set(pgproxy.Faults{ToServer: 30 * time.Millisecond, ToClient: 20 * time.Millisecond})
	begin := time.Now()
	pipeline := conn.StartPipeline(t.Context())
	for range 100 {
		pipeline.SendQueryParams("SELECT 1", nil, nil, nil, nil)
	}
	if err := pipeline.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := pipeline.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 50*time.Millisecond || took > 500*time.Millisecond {
		t.Errorf("100 statements in a pipeline took %v, want one round trip of 50 ms", took)
	}
}

// TestFailedStatements: errors arrive in both protocols, and leave transactions in the state that a real
// error leaves.
func TestFailedStatements(t *testing.T) {
	p := start(t, pgproxy.Faults{})
	c := check{t, connect(t, p, "a")}
	name := table(t)
	for _, protocol := range []func(context.Context, *pgconn.PgConn, string) error{
		simple,
		func(ctx context.Context, conn *pgconn.PgConn, sql string) error { return extended(ctx, conn, sql) },
	} {
		for range 2 { // the second time, the first one's prepared statement still exists
			do(t, c.conn, "BEGIN")
			p.Set(pgproxy.Faults{Fail: 1, FailCommit: 1, Codes: []string{pgproxy.Deadlock}})
			if err := protocol(t.Context(), c.conn, "INSERT INTO "+name+" VALUES (1)"); code(err) != pgproxy.Deadlock {
				t.Error("insert:", err)
			}
			c.status('E')
			if err := protocol(t.Context(), c.conn, "ROLLBACK"); err != nil {
				t.Error("rollback:", err)
			}
			c.status('I')
			p.Set(pgproxy.Faults{FailCommit: 1})
			do(t, c.conn, "BEGIN; INSERT INTO "+name+" VALUES (1)")
			c.status('T')
			if err := protocol(t.Context(), c.conn, "COMMIT"); code(err) != pgproxy.Serialization {
				t.Error("commit:", err)
			}
			c.status('I')
			p.Set(pgproxy.Faults{})
			do(t, c.conn, "SELECT 1")
		}
	}
	if got := direct(t, "SELECT count(*) FROM "+name); got != "0" {
		t.Error("rows after all that:", got)
	}
	want := "failed 40P01: 4, failed commit 40001: 4"
	if got := p.Counts().String(); got != want {
		t.Errorf("counts %q, want %q", got, want)
	}
}

// TestFailedPipeline: the statements after a failed one are skipped, up to the next Sync.
func TestFailedPipeline(t *testing.T) {
	p := start(t, pgproxy.Faults{})
	c := check{t, connect(t, p, "a")}
	name := table(t)
	for _, sql := range []string{"BEGIN", "COMMIT", "ROLLBACK", "INSERT INTO " + name + " VALUES (1)"} {
		if _, err := c.conn.Prepare(t.Context(), strings.ToLower(sql[:5]), sql, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.Set(pgproxy.Faults{FailCommit: 1})
	pipeline := c.conn.StartPipeline(t.Context())
	for _, statement := range []string{"begin", "inser", "commi"} {
		pipeline.SendQueryPrepared(statement, nil, nil, nil)
	}
	if err := pipeline.Sync(); err != nil {
		t.Fatal(err)
	}
	// This is sent before the answer to the COMMIT. The transaction is over by then.
	pipeline.SendQueryPrepared("inser", nil, nil, nil)
	if err := pipeline.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := pipeline.Close(); code(err) != pgproxy.Serialization {
		t.Error("pipeline:", err)
	}
	c.status('I')
	if got := direct(t, "SELECT count(*) FROM "+name); got != "1" {
		t.Error("rows:", got)
	}
}

// TestShutdown: the session ends with the error and its transaction is rolled back.
func TestShutdown(t *testing.T) {
	p := start(t, pgproxy.Faults{})
	conn := connect(t, p, "a")
	name := table(t)
	do(t, conn, "BEGIN; INSERT INTO "+name+" VALUES (1)")
	p.Set(pgproxy.Faults{Fail: 1, Codes: []string{pgproxy.AdminShutdown}})
	if err := extended(t.Context(), conn, "SELECT 1"); code(err) != pgproxy.AdminShutdown {
		t.Error(err)
	}
	if !conn.IsClosed() {
		t.Error("the connection is still open")
	}
	if got := direct(t, "SELECT count(*) FROM "+name); got != "0" {
		t.Error("rows:", got)
	}
}

// TestCommitLost: the client loses its connection, but the COMMIT was executed.
func TestCommitLost(t *testing.T) {
	for kind, f := range map[string]pgproxy.Faults{
		pgproxy.CommitRepliesLost: {LoseCommitReply: 1},
		pgproxy.CommitsAbandoned:  {AbandonCommit: 1},
	} {
		for protocol, run := range map[string]func(context.Context, *pgconn.PgConn, string) error{
			"simple":   simple,
			"extended": func(ctx context.Context, conn *pgconn.PgConn, sql string) error { return extended(ctx, conn, sql) },
		} {
			t.Run(kind+", "+protocol, func(t *testing.T) {
				p := start(t, pgproxy.Faults{})
				conn := connect(t, p, "a")
				direct(t, "DROP TABLE IF EXISTS lost; CREATE TABLE lost (n int)")
				do(t, conn, "BEGIN; INSERT INTO lost VALUES (1)")
				p.Set(f)
				if err := run(t.Context(), conn, "COMMIT"); err == nil || code(err) != fmt.Sprint(err) {
					t.Error("the client got an answer:", err)
				}
				// An abandoned COMMIT may still be running.
				for direct(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'a'") != "0" {
				}
				if got := direct(t, "SELECT count(*) FROM lost"); got != "1" {
					t.Error("rows:", got)
				}
				if got := p.Counts(); got[kind] != 1 {
					t.Error("counts:", got)
				}
			})
		}
	}
}

// TestMisreportedCommit: a COMMIT is executed, and the client gets an error; its connection stays usable.
func TestMisreportedCommit(t *testing.T) {
	for protocol, run := range map[string]func(context.Context, *pgconn.PgConn, string) error{
		"simple":   simple,
		"extended": func(ctx context.Context, conn *pgconn.PgConn, sql string) error { return extended(ctx, conn, sql) },
	} {
		t.Run(protocol, func(t *testing.T) {
			p := start(t, pgproxy.Faults{})
			conn := connect(t, p, "a")
			direct(t, "DROP TABLE IF EXISTS lost; CREATE TABLE lost (n int)")
			do(t, conn, "BEGIN; INSERT INTO lost VALUES (1)")
			p.Set(pgproxy.Faults{MisreportCommit: 1, Codes: []string{"40003 result is ambiguous: 100% of it"}})
			if err := run(t.Context(), conn, "COMMIT"); code(err) != "40003" || !strings.Contains(err.Error(), "ambiguous: 100% of it") {
				t.Error("the client got", err)
			}
			if got := direct(t, "SELECT count(*) FROM lost"); got != "1" {
				t.Error("rows:", got)
			}
			p.Set(pgproxy.Faults{})
			do(t, conn, "BEGIN; INSERT INTO lost VALUES (2); COMMIT")
			if got := p.Counts(); got["misreported commit 40003"] != 1 {
				t.Error("counts:", got)
			}
		})
	}
}

// TestRefusedFeatures: both protocols refuse missing features.
func TestRefusedFeatures(t *testing.T) {
	p := start(t, pgproxy.Faults{Refuse: pgproxy.Listen | pgproxy.AdvisoryLocks})
	conn := connect(t, p, "a")
	for _, sql := range []string{"LISTEN news", "SELECT pg_advisory_lock(1)"} {
		if err := simple(t.Context(), conn, sql); code(err) != "0A000" {
			t.Errorf("%s: %v", sql, err)
		}
		if err := extended(t.Context(), conn, sql); code(err) != "0A000" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	do(t, conn, "NOTIFY news")
	if got := p.Counts()[pgproxy.FeaturesRefused]; got != 4 {
		t.Error("refused:", got)
	}
}

// TestSequenceCache: numbers are not in order over sessions.
func TestSequenceCache(t *testing.T) {
	p := start(t, pgproxy.Faults{SequenceCache: 100})
	a, b := connect(t, p, "a"), connect(t, p, "b")
	for _, create := range []func(sql string) error{
		func(sql string) error { return simple(t.Context(), a, sql) },
		func(sql string) error { return extended(t.Context(), a, sql) },
	} {
		do(t, a, "DROP TABLE IF EXISTS numbered")
		if err := create("CREATE TABLE numbered (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)"); err != nil {
			t.Fatal(err)
		}
		for n, conn := range []*pgconn.PgConn{a, b, a} {
			do(t, conn, fmt.Sprintf("INSERT INTO numbered (n) VALUES (%d)", n))
		}
		if got := direct(t, "SELECT string_agg(id::text, ' ' ORDER BY n) FROM numbered"); got != "1 101 2" {
			t.Error("numbers:", got)
		}
	}
	if got := p.Counts()[pgproxy.SequencesCached]; got != 2 {
		t.Error("sequences cached:", got)
	}
}

// TestCut: connections end at random messages, and on request.
func TestCut(t *testing.T) {
	p := start(t, pgproxy.Faults{Cut: 0.05})
	for range 20 {
		conn, err := tryConnect(t.Context(), p, "a")
		for err == nil {
			err = simple(t.Context(), conn, "SELECT 1")
		}
	}
	if got := p.Counts()[pgproxy.Cuts]; got != 20 {
		t.Errorf("%d connections were cut, want 20", got)
	}
	p.Set(pgproxy.Faults{})
	a, b := connect(t, p, "a"), connect(t, p, "b")
	p.Link("a").Cut()
	if simple(t.Context(), a, "SELECT 1") == nil {
		t.Error("a's connection is still open")
	}
	do(t, b, "SELECT 1")
}

// TestFreeze: no one answers and no connection ends, new ones included. Afterwards delayed messages
// arrive. Other links are unaffected.
func TestFreeze(t *testing.T) {
	p := start(t, pgproxy.Faults{})
	a, b := connect(t, p, "a"), connect(t, p, "b")
	p.Link("a").Freeze()
	done := make(chan error, 2)
	go func() { done <- simple(t.Context(), a, "SELECT 1") }()
	go func() {
		conn, err := tryConnect(t.Context(), p, "a")
		if err == nil {
			err = conn.Close(t.Context())
		}
		done <- err
	}()
	do(t, b, "SELECT 1")
	select {
	case err := <-done:
		t.Fatal("a message got through:", err)
	case <-time.After(100 * time.Millisecond):
	}
	p.Link("a").Thaw()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}

	p.Freeze()
	few, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := tryConnect(few, p, "b"); err == nil {
		t.Error("a frozen proxy accepts clients")
	}
	p.Thaw()
	do(t, b, "SELECT 1")
}

// TestReplay: the same traffic meets the same faults.
func TestReplay(t *testing.T) {
	var runs []string
	for range 2 {
		p := start(t, pgproxy.Faults{Fail: 0.3})
		conn := connect(t, p, "a")
		run := ""
		for range 40 {
			run += " " + code(simple(t.Context(), conn, "SELECT 1"))
		}
		runs = append(runs, run)
	}
	if runs[0] != runs[1] {
		t.Errorf("\n%s\n%s", runs[0], runs[1])
	}
}
