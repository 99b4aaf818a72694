package server

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestDataDirIsRestricted: other users lose the access to an existing data directory that they could read or write.
func TestDataDirIsRestricted(t *testing.T) {
	for was, want := range map[fs.FileMode]fs.FileMode{0o755: 0o700, 0o777: 0o700, 0o770: 0o700, 0o700: 0o700, 0o711: 0o711} {
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(dir, was); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, was); err != nil { // whatever the umask is
			t.Fatal(err)
		}
		t.Setenv("KUBERNETES_SERVICE_HOST", "")
		restrictAccess(dir, slog.New(slog.DiscardHandler))
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%#o became %#o (%v), want %#o", was, info.Mode().Perm(), err, want)
		}
	}
}
