package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/atoll-dev/atoll/kv"
)

// StoredFile is a file that is read without SQLite.
type StoredFile interface {
	io.ReaderAt
	io.Closer
}

// StoredFiles is implemented by a VFS (WithVFS) whose files are not those of the system.
type StoredFiles interface {
	// OpenStored opens an existing file. Errors: fs.ErrNotExist.
	OpenStored(name string) (StoredFile, error)
}

func (o *options) openStored(name string) (StoredFile, error) {
	if v, ok := vfs.Find(o.vfs).(StoredFiles); ok {
		return v.OpenStored(name)
	}
	return os.Open(name)
}

// checkWAL refuses a database whose write-ahead log is damaged, before SQLite recovers it: SQLite would drop what
// it cannot read and all commits after it, without an error. No process may have the database open.
// Errors: kv.ErrDamaged.
func checkWAL(path string, o *options) error {
	report, lost, err := findWALDamage(path, o)
	switch {
	case err != nil:
		return fmt.Errorf("open database %s: read its write-ahead log: %w", path, err)
	case report == nil || !report.damaged() || !lost:
		return nil
	}
	return fmt.Errorf("open database %s: %w: %s: nothing was changed; "+
		"run `atoll kv recover --datastore sqlite://%s --all --dry-run`, which shows what can be recovered, or restore a backup", path, kv.ErrDamaged, report.describe(path), path)
}

// checkUnusedWAL is checkWAL for a database that a server may have open. The server has checked the log, and writes to it.
func checkUnusedWAL(path string) error {
	if err := checkWAL(path, &options{}); !errors.Is(err, kv.ErrDamaged) {
		return nil // SQLite returns an error if it cannot read the log, either
	}
	lock, err := lockFile(path)
	if errors.Is(err, kv.ErrInUse) {
		return nil
	}
	if err == nil {
		defer lock.release()
	}
	return checkWAL(path, &options{})
}

// describe says where the log is damaged.
func (r *walReport) describe(path string) string {
	where := fmt.Sprintf("at offset %d", r.offset(r.intact+1))
	if r.headerLost {
		where = "at its beginning"
	}
	return fmt.Sprintf("its write-ahead log %s-wal is damaged %s, and has acknowledged commits after that", path, where)
}

// findWALDamage examines the log of a database. It returns nil if there is no log. lost is false if the
// database file already has everything that the damaged log contains.
func findWALDamage(path string, o *options) (report *walReport, lost bool, err error) {
	wal, err := o.openStored(path + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer wal.Close()
	db, err := o.openStored(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	if err != nil {
		report, err = examineWAL(wal, 0)
		return report, true, err
	}
	defer db.Close()
	report, err = examineWAL(wal, pageSizeOf(db))
	if err != nil || !report.damaged() || !report.headerLost {
		return report, true, err
	}
	// The log is restarted only when the database has all of it. If the power fails while the new header is
	// written, the header is torn, and nothing is lost.
	pages, err := report.readPages(wal, db)
	if err != nil {
		return report, true, err
	}
	stored, err := pages.allStored()
	return report, !stored, err
}

// pageSizeOf reads the page size from the header of a database file, 0 if it has none.
func pageSizeOf(db io.ReaderAt) int64 {
	var raw [2]byte
	if _, err := db.ReadAt(raw[:], 16); err != nil {
		return 0
	}
	if size := int64(binary.BigEndian.Uint16(raw[:])); size != 1 {
		return size
	}
	return 65536
}

// headCheck returns a row for each keyspace whose last commit is incomplete: its change is missing in the log, or is
// not the current state of its key.
const headCheck = `
	SELECT 'keyspace ' || k.name || ': revision ' || s.rev
	FROM keyspace k JOIN segment s ON s.ks = k.id AND s.rev = (SELECT max(rev) FROM segment WHERE ks = k.id)
	WHERE s.rev > k.compacted AND NOT EXISTS (
		SELECT 1 FROM log l JOIN current c ON c.ks = l.ks AND c.key = l.key
		WHERE l.id = s.id + s.n - 1 AND l.ks = s.ks AND l.rev = s.rev AND c.id = l.id)`

// checkHead compares the last commit of each keyspace in the log with the current state. It costs a few reads, and
// finds a file that has lost a part, or has an older one. Check compares everything.
// Errors: kv.ErrDamaged.
func checkHead(c *conn, path string) error {
	rows, err := c.textRows(headCheck)
	var code sqlite3.ErrorCode
	switch {
	case errors.As(err, &code) && (code == sqlite3.CORRUPT || code == sqlite3.NOTADB):
		rows = []string{err.Error()}
	case err != nil:
		return c.db.fail("open", err)
	}
	if len(rows) == 0 {
		return nil
	}
	return fmt.Errorf("open database %s: %w: its last commit is incomplete (%s): restore a backup; `atoll kv check` shows everything that is wrong",
		path, kv.ErrDamaged, rows[0])
}
