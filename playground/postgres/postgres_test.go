package postgres_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/postgres"
)

func start(t *testing.T, config postgres.Config) *postgres.Server {
	t.Helper()
	s, err := postgres.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	return s
}

func query(t *testing.T, s *postgres.Server, sql string) string {
	t.Helper()
	out, err := s.Exec(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestServerSurvivesCrashAndFreeze: a server has durable settings, keeps acknowledged commits over a crash, and answers
// again after a freeze.
func TestServerSurvivesCrashAndFreeze(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL")
	}
	s := start(t, postgres.Config{Settings: map[string]string{"max_connections": "20"}})
	got := query(t, s, `SELECT current_setting('fsync') || current_setting('synchronous_commit')
		|| current_setting('server_encoding') || current_setting('max_connections')`)
	if got != "ononUTF820" {
		t.Error("settings:", got)
	}
	query(t, s, `CREATE TABLE t (n int); INSERT INTO t VALUES (42)`)
	s.Kill()
	if _, err := s.Exec(t.Context(), `SELECT 1`); err == nil {
		t.Error("the killed server answers")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, s, `SELECT n FROM t`); got != "42" {
		t.Error("after the crash:", got)
	}

	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	few, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Exec(few, `SELECT 1`); err == nil {
		t.Error("the frozen server answers")
	}
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
	if got := query(t, s, `SELECT n FROM t`); got != "42" {
		t.Error("after the freeze:", got)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

// TestStandby: a synchronous standby has all acknowledged commits when it is promoted.
func TestStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two PostgreSQL")
	}
	s := start(t, postgres.Config{})
	b, err := s.Standby(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Stop() })
	query(t, s, `CREATE TABLE t (n int); INSERT INTO t VALUES (42)`)
	s.Kill()
	if got := query(t, b, `SELECT pg_is_in_recovery()`); got != "t" {
		t.Error("in recovery:", got)
	}
	if err := b.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, b, `UPDATE t SET n = n + 1 RETURNING n`); got != "43" {
		t.Error("after the failover:", got)
	}
}

func TestNotInstalled(t *testing.T) {
	t.Setenv(postgres.BinariesVariable, t.TempDir())
	_, err := postgres.Start(t.Context(), postgres.Config{})
	if !errors.Is(err, postgres.ErrNotInstalled) || !strings.Contains(err.Error(), postgres.BinariesVariable) {
		t.Error(err)
	}
}

func TestClosedDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root runs the server as another user")
	}
	dir := filepath.Join(t.TempDir(), "closed", "pg")
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := postgres.Start(t.Context(), postgres.Config{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "chmod o+x") {
		t.Error(err)
	}
}
