package postgres

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// standbyName is the application_name with which a standby connects to its primary.
const standbyName = "atoll_standby"

// Standby starts a second server that replicates this one by streaming. With sync, commits of this
// server wait from then on until the standby has them on disk; without, the standby may lag.
func (s *Server) Standby(ctx context.Context, sync bool) (*Server, error) {
	return s.standby(ctx, sync, 0)
}

// StandbyInsteadOf starts a standby at the address of a server that has ended, whose data are removed.
func (s *Server) StandbyInsteadOf(ctx context.Context, old *Server) (*Server, error) {
	old.discard()
	return s.standby(ctx, false, old.port)
}

func (s *Server) standby(ctx context.Context, sync bool, port int) (_ *Server, err error) {
	b, err := prepare(Config{Port: port})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.discard()
		}
	}()
	// The data are a copy, including the password.
	b.password = s.password
	if _, err := s.run(ctx, "pg_basebackup", "--pgdata", b.data(), "--checkpoint", "fast",
		"--wal-method", "stream", "--dbname", s.SocketURL()); err != nil {
		return nil, fmt.Errorf("create the standby: %w", err)
	}
	signal := filepath.Join(b.data(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return nil, fmt.Errorf("create the standby: %w", err)
	}
	if b.as != nil {
		if err := os.Chown(signal, b.as.uid, b.as.gid); err != nil {
			return nil, fmt.Errorf("create the standby: %w", err)
		}
	}
	b.settings = map[string]string{"primary_conninfo": fmt.Sprintf(
		"'host=127.0.0.1 port=%d user=%s password=%s application_name=%s'", s.port, superuser, s.password, standbyName)}
	if err := b.Restart(ctx); err != nil {
		return nil, err
	}
	const streaming = `SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND application_name = '` + standbyName + `'`
	if err := s.await(ctx, streaming); err != nil {
		b.Kill()
		return nil, err
	}
	if !sync {
		return b, nil
	}
	if err := s.Set(map[string]string{"synchronous_standby_names": "'" + standbyName + "'"}); err == nil {
		err = s.await(ctx, streaming+` AND sync_state = 'sync'`)
	}
	if err != nil {
		b.Kill()
		return nil, err
	}
	return b, nil
}

// Promote makes the standby a primary.
func (s *Server) Promote(ctx context.Context) error {
	if _, err := s.run(ctx, "pg_ctl", "promote", "--pgdata", s.data(), "--wait"); err != nil {
		return err
	}
	return s.await(ctx, `SELECT 1 WHERE NOT pg_is_in_recovery()`)
}

// await waits until a query returns a row.
func (s *Server) await(ctx context.Context, sql string) error {
	for {
		out, err := s.Exec(ctx, sql)
		if err == nil && out != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %q: %w (last: %v)", sql, context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Dump writes a dump of the database, which RestoreDump restores by its name.
func (s *Server) Dump(ctx context.Context, name string) error {
	_, err := s.run(ctx, "pg_dump", "--format", "custom", "--file", filepath.Join(s.dir, name), "--dbname", s.SocketURL())
	return err
}

// RestoreDump replaces the tables of the database by those of a dump.
func (s *Server) RestoreDump(ctx context.Context, name string) error {
	_, err := s.run(ctx, "pg_restore", "--clean", "--if-exists", "--single-transaction", "--dbname", s.SocketURL(), filepath.Join(s.dir, name))
	return err
}
