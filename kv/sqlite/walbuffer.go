package sqlite

import (
	"errors"
	"syscall"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
)

// walBuffer is a VFS that passes the frames of a commit to the system in one write. SQLite
// writes the header and the page of each frame separately: more than three hundred calls
// for a commit of a hundred updates.
type walBuffer struct{ vfs.VFS }

// bufferWAL returns the driver's name of a VFS (the system's if name is empty) with a
// buffered write-ahead log.
func bufferWAL(name string) string {
	buffered := "atoll-" + name
	vfs.Register(buffered, walBuffer{vfs.Find(name)})
	return buffered
}

func (v walBuffer) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (f vfs.File, _ vfs.OpenFlag, err error) {
	if named, ok := v.VFS.(vfs.VFSFilename); ok {
		f, flags, err = named.OpenFilename(name, flags)
	} else {
		f, flags, err = v.Open(name.String(), flags)
	}
	if err == nil && flags&vfs.OPEN_WAL != 0 {
		f = &walFile{File: f}
	}
	return f, flags, err
}

// maxWALBuffer bounds the buffer.
const maxWALBuffer = 1 << 20

// walFile buffers consecutive writes until any other operation on the file. That loses
// nothing: with synchronous=FULL a commit ends in a sync, and other connections see its
// frames only after that.
type walFile struct {
	vfs.File
	buf []byte
	at  int64
}

func (f *walFile) WriteAt(p []byte, off int64) (int, error) {
	if off != f.at+int64(len(f.buf)) || len(f.buf)+len(p) > maxWALBuffer {
		if err := f.flush(); err != nil {
			return 0, err
		}
	}
	if len(f.buf) == 0 {
		f.at = off
	}
	f.buf = append(f.buf, p...)
	return len(p), nil
}

func (f *walFile) flush() error {
	if len(f.buf) == 0 {
		return nil
	}
	_, err := f.File.WriteAt(f.buf, f.at)
	f.buf = f.buf[:0]
	// A failed write differs from a failed sync (see writer.commitFailed), although it may
	// only be detected during one.
	var code sqlite3.ExtendedErrorCode
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		err = vfs.SystemError(err, sqlite3.FULL)
	case err != nil && !errors.As(err, &code):
		err = vfs.SystemError(err, sqlite3.IOERR_WRITE)
	}
	return err
}

func (f *walFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.flush(); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *walFile) Truncate(size int64) error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *walFile) Sync(flags vfs.SyncFlag) error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.Sync(flags)
}

func (f *walFile) Size() (int64, error) {
	if err := f.flush(); err != nil {
		return 0, err
	}
	return f.File.Size()
}

func (f *walFile) Close() error {
	err := f.flush()
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	return err
}
