//go:build unix

package sqlite

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/atoll-dev/atoll/kv"
)

// fileLock excludes other processes from a database. It is an flock on a separate file:
// SQLite's byte-range locks on the database are for its own connections, and the system
// releases an flock when the process ends for any reason.
type fileLock struct{ f *os.File }

func lockFile(db string) (*fileLock, error) {
	name := db + ".lock"
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", db, err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return &fileLock{f}, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("open database %s: %w: it holds the lock %s; stop that process, or use another file", db, kv.ErrInUse, name)
	}
	return nil, fmt.Errorf("open database %s: lock %s: %w (the file system must support flock)", db, name, err)
}

// release releases the lock. The file remains: if it were removed, two processes could lock
// two different files with that name. Closing it would not be enough: a process that is being
// started has a copy of each descriptor until it executes its program, and a lock lasts as long as
// any copy.
func (l *fileLock) release() {
	_ = syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN)
	l.f.Close()
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// fileNumber returns the number of a file in its file system, which a copy does not have.
func fileNumber(path string) string {
	if info, err := os.Stat(path); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			return fmt.Sprintf(" %d", stat.Ino)
		}
	}
	return ""
}
