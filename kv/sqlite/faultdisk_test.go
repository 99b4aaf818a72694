package sqlite_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/atoll-dev/atoll/kv/sqlite"
)

// faultDisk is an in-memory disk for SQLite's files. It loses unsynced data when its power
// fails, and fails on request. Files are found by name; the shared-memory index of the
// write-ahead log is a real file next to the name, and has no meaning after a crash.
type faultDisk struct {
	mu    sync.Mutex
	files map[string]*diskFile
	// fail is called before every write, truncation and sync.
	fail func(op string) error
	ops  int // number of these operations
	dead bool
}

type diskFile struct {
	disk    *faultDisk
	name    string
	data    []byte // as the running system sees it
	synced  []byte // as of the last sync
	pending []diskWrite
	exists  bool // survives a crash: it was synced once

	locks            sync.Mutex
	shared           int
	reserved, closed bool // closed: no new shared locks
}

type diskWrite struct {
	off  int64
	data []byte
	size int64 // of a truncation; -1 for a write
}

func newFaultDisk() *faultDisk { return &faultDisk{files: map[string]*diskFile{}} }

// crash cuts the power: any part of the data written since the last sync may be lost, in
// any order, torn between sectors. The disk itself is dead from then on for the process
// that used it; the returned one has the surviving data.
func (d *faultDisk) crash(rnd *rand.Rand, rename func(string) string) *faultDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
	next := newFaultDisk()
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[name]
		if !f.exists && rnd.IntN(2) == 0 {
			continue
		}
		data := bytes.Clone(f.synced)
		keep := rnd.IntN(101) // percent
		for _, w := range f.pending {
			for _, part := range w.sectors() {
				if rnd.IntN(100) < keep {
					data = part.apply(data)
				}
			}
		}
		next.files[rename(name)] = &diskFile{
			disk: next, name: rename(name), exists: true,
			data: data, synced: bytes.Clone(data),
		}
	}
	return next
}

const sector = 512

func (w diskWrite) sectors() (parts []diskWrite) {
	if w.size >= 0 {
		return []diskWrite{w}
	}
	for off, rest := w.off, w.data; len(rest) > 0; {
		n := min(int64(len(rest)), sector-off%sector)
		parts = append(parts, diskWrite{off, rest[:n], -1})
		off, rest = off+n, rest[n:]
	}
	return parts
}

func (w diskWrite) apply(data []byte) []byte {
	if w.size >= 0 {
		if w.size <= int64(len(data)) {
			return data[:w.size:w.size]
		}
		return append(data, make([]byte, w.size-int64(len(data)))...)
	}
	if end := w.off + int64(len(w.data)); end > int64(len(data)) {
		data = append(data, make([]byte, end-int64(len(data)))...)
	}
	copy(data[w.off:], w.data)
	return data
}

// begin counts an operation and makes it fail if requested. d.mu is held.
func (d *faultDisk) begin(op string) error {
	d.ops++
	if d.dead {
		return sqlite3.IOERR
	}
	if d.fail != nil {
		return d.fail(op)
	}
	return nil
}

func (d *faultDisk) setFail(fail func(op string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = fail
}

func (d *faultDisk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := name.String()
	f := d.files[key]
	if f == nil {
		if flags&vfs.OPEN_CREATE == 0 || d.dead {
			return nil, flags, sqlite3.CANTOPEN
		}
		f = &diskFile{disk: d, name: key}
		d.files[key] = f
	}
	h := &diskHandle{f: f}
	if flags&vfs.OPEN_MAIN_DB != 0 {
		h.shm = vfs.NewSharedMemory(key+"-shm", flags)
	}
	return h, flags, nil
}

// OpenStored lets the database examine the write-ahead log before SQLite does.
func (d *faultDisk) OpenStored(name string) (sqlite.StoredFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[name]
	if f == nil {
		return nil, fs.ErrNotExist
	}
	return &diskHandle{f: f}, nil
}

func (d *faultDisk) Open(string, vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	return nil, 0, sqlite3.CANTOPEN
}

func (d *faultDisk) Delete(name string, _ bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("delete"); err != nil {
		return err
	}
	if d.files[name] == nil {
		return sqlite3.IOERR_DELETE_NOENT
	}
	delete(d.files, name)
	return nil
}

func (d *faultDisk) Access(name string, _ vfs.AccessFlag) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files[name] != nil, nil
}

func (d *faultDisk) FullPathname(name string) (string, error) { return name, nil }

type diskHandle struct {
	f    *diskFile
	shm  vfs.SharedMemory
	lock vfs.LockLevel
}

func (h *diskHandle) SharedMemory() vfs.SharedMemory { return h.shm }

func (h *diskHandle) Close() error {
	if h.shm != nil {
		h.shm.Close()
	}
	return h.Unlock(vfs.LOCK_NONE)
}

func (h *diskHandle) ReadAt(p []byte, off int64) (int, error) {
	d := h.f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return 0, sqlite3.IOERR_READ
	}
	if off >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *diskHandle) change(op string, w diskWrite) error {
	d := h.f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin(op); err != nil {
		return err
	}
	h.f.data = w.apply(h.f.data)
	h.f.pending = append(h.f.pending, w)
	return nil
}

func (h *diskHandle) WriteAt(p []byte, off int64) (int, error) {
	// Data of one write may reach the disk in parts, and out of order.
	done := 0
	for piece := range slices.Chunk(p, 4096) {
		if err := h.change("write", diskWrite{off + int64(done), bytes.Clone(piece), -1}); err != nil {
			return done, err
		}
		done += len(piece)
	}
	return done, nil
}

func (h *diskHandle) Truncate(size int64) error {
	return h.change("truncate", diskWrite{size: size})
}

func (h *diskHandle) Sync(vfs.SyncFlag) error {
	d := h.f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("sync"); err != nil {
		return err
	}
	for _, w := range h.f.pending {
		h.f.synced = w.apply(h.f.synced)
	}
	h.f.pending, h.f.exists = nil, true
	return nil
}

func (h *diskHandle) Size() (int64, error) {
	h.f.disk.mu.Lock()
	defer h.f.disk.mu.Unlock()
	return int64(len(h.f.data)), nil
}

func (h *diskHandle) Lock(lock vfs.LockLevel) error {
	f := h.f
	for try := 0; ; try++ {
		f.locks.Lock()
		ok := h.lock >= lock
		if !ok {
			switch lock {
			case vfs.LOCK_SHARED:
				if ok = !f.closed; ok {
					f.shared++
				}
			case vfs.LOCK_RESERVED:
				if ok = !f.reserved; ok {
					f.reserved = true
				}
			case vfs.LOCK_EXCLUSIVE:
				if h.lock >= vfs.LOCK_RESERVED || !f.reserved {
					f.reserved, f.closed = true, true
					h.lock = vfs.LOCK_PENDING
					ok = f.shared <= 1
				}
			}
			if ok {
				h.lock = lock
			}
		}
		f.locks.Unlock()
		if ok {
			return nil
		}
		if try == 20 {
			return sqlite3.BUSY
		}
		time.Sleep(time.Millisecond)
	}
}

func (h *diskHandle) Unlock(lock vfs.LockLevel) error {
	f := h.f
	f.locks.Lock()
	defer f.locks.Unlock()
	if h.lock >= vfs.LOCK_RESERVED && lock < vfs.LOCK_RESERVED {
		f.reserved, f.closed = false, false
	}
	if h.lock >= vfs.LOCK_SHARED && lock < vfs.LOCK_SHARED {
		f.shared--
	}
	h.lock = min(h.lock, lock)
	return nil
}

func (h *diskHandle) CheckReservedLock() (bool, error) {
	h.f.locks.Lock()
	defer h.f.locks.Unlock()
	return h.f.reserved, nil
}

func (h *diskHandle) LockState() vfs.LockLevel { return h.lock }

func (h *diskHandle) SectorSize() int { return sector }

func (h *diskHandle) DeviceCharacteristics() vfs.DeviceCharacteristic {
	return vfs.IOCAP_POWERSAFE_OVERWRITE | vfs.IOCAP_SUBPAGE_READ
}

var errDiskFull = fmt.Errorf("test: %w", syscall.ENOSPC)
