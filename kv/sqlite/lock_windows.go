package sqlite

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/atoll-dev/atoll/kv"
)

// fileLock excludes other processes from a database: the lock file is opened without
// sharing, and the system closes it when the process ends.
type fileLock struct{ h syscall.Handle }

const errSharingViolation = syscall.Errno(32)

func lockFile(db string) (*fileLock, error) {
	name := db + ".lock"
	p, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", db, err)
	}
	h, err := syscall.CreateFile(p, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, errSharingViolation) {
		return nil, fmt.Errorf("open database %s: %w: it holds the lock %s; stop that process, or use another file", db, kv.ErrInUse, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open database %s: lock %s: %w", db, name, err)
	}
	return &fileLock{h}, nil
}

func (l *fileLock) release() { syscall.CloseHandle(l.h) }

// syncDir does nothing: NTFS journals names.
func syncDir(string) error { return nil }

func fileNumber(string) string { return "" }
