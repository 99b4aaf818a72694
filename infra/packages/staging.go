package packages

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// stage is a directory in which one package is fetched. The process that creates it holds a lock on
// it, so that others can recognize the stages of dead processes.
type stage struct {
	store *Store
	name  string // below the store
	lock  *os.File
}

// The content of a stage.
const (
	archiveName = "archive"
	contentName = "content"
)

func (s *Store) stage() (*stage, error) {
	for {
		name := path.Join(stagingDir, rand.Text())
		if err := s.root.Mkdir(name, 0o700); err != nil {
			return nil, err
		}
		lock, err := s.lock(name)
		if err != nil {
			return nil, err
		}
		if lock != nil {
			return &stage{s, name, lock}, nil
		}
		// Another process swept it before it was locked.
	}
}

// lock takes a stage's lock. It returns nil if another process has it or the stage is gone.
func (s *Store) lock(name string) (*os.File, error) {
	file, err := s.root.Open(name)
	if err != nil {
		return nil, ignore(err, fs.ErrNotExist)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil && s.isCurrent(file, name) {
		return file, nil
	}
	_ = file.Close() // which releases the lock
	return nil, ignore(err, syscall.EWOULDBLOCK)
}

// isCurrent reports whether an open directory is still the one with that name.
func (s *Store) isCurrent(file *os.File, name string) bool {
	opened, err := file.Stat()
	there, gone := s.root.Lstat(name)
	return err == nil && gone == nil && os.SameFile(opened, there)
}

// close removes the stage and everything in it.
func (st *stage) close() error {
	return errors.Join(st.store.removeAll(st.name), st.lock.Close())
}

// sweep removes the stages of dead processes.
func (s *Store) sweep() error {
	entries, err := fs.ReadDir(s.root.FS(), stagingDir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(stagingDir, entry.Name())
		lock, err := s.lock(name)
		if err != nil {
			return err
		}
		if lock == nil {
			continue
		}
		if err := errors.Join(s.removeAll(name), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// removeAll also removes read-only directories.
func (s *Store) removeAll(name string) error {
	err := fs.WalkDir(s.root.FS(), name, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return s.root.Chmod(at, 0o700)
	})
	return errors.Join(ignore(err, fs.ErrNotExist), ignore(s.root.RemoveAll(name), fs.ErrNotExist))
}
