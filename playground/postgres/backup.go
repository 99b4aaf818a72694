package postgres

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
)

// Backup is a base backup of a server, from which RestoreTo recovers.
type Backup struct{ server *Server }

// BaseBackup copies the data of the running server, which from now on keeps its log of changes.
func (s *Server) BaseBackup(ctx context.Context) (_ *Backup, err error) {
	if err := s.Set(map[string]string{"wal_keep_size": "1GB"}); err != nil {
		return nil, err
	}
	to, err := prepare(Config{})
	if err != nil {
		return nil, err
	}
	to.password = s.password
	if _, err := s.run(ctx, "pg_basebackup", "--pgdata", to.data(), "--checkpoint", "fast",
		"--wal-method", "stream", "--dbname", s.SocketURL()); err != nil {
		to.discard()
		return nil, fmt.Errorf("back up PostgreSQL: %w", err)
	}
	return &Backup{to}, nil
}

// Remove removes the files of a backup that was not restored.
func (b *Backup) Remove() { b.server.discard() }

// RestoreTo is a point-in-time recovery: the server is killed, and starts at the same address with the
// data of the backup and all changes up to a position, which pg_current_wal_insert_lsn() returns. The
// backup is used up.
func (s *Server) RestoreTo(ctx context.Context, b *Backup, lsn string) error {
	s.Kill()
	former := *s
	defer former.discard()
	to := b.server
	signal := filepath.Join(to.data(), "recovery.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return fmt.Errorf("restore PostgreSQL: %w", err)
	}
	if to.as != nil {
		if err := os.Chown(signal, to.as.uid, to.as.gid); err != nil {
			return fmt.Errorf("restore PostgreSQL: %w", err)
		}
	}
	s.dir, s.temporary, s.settings = to.dir, to.temporary, maps.Clone(s.settings)
	maps.Copy(s.settings, map[string]string{
		"restore_command":        fmt.Sprintf("'cp \"%s/%%f\" \"%%p\"'", filepath.Join(former.data(), "pg_wal")),
		"recovery_target_lsn":    "'" + lsn + "'",
		"recovery_target_action": "'promote'",
	})
	if err := s.Restart(ctx); err != nil {
		return err
	}
	return s.await(ctx, `SELECT 1 WHERE NOT pg_is_in_recovery()`)
}
