//go:build unix

package sqlite

import (
	"path/filepath"
	"syscall"
	"testing"
)

// TestReleasedWhileProcessStarts: a process that is being started has copies of all descriptors for
// a moment. A database that was closed in it can be opened again at once.
func TestReleasedWhileProcessStarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.db")
	lock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := syscall.Dup(int(lock.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(copied)
	lock.release()
	again, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again.release()
}
