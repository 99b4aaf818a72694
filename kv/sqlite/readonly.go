package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

// ReadOnly is a database file opened for reading only. A server may have it open at the
// same time: reads use SQLite's snapshots, which do not block it. It implements kv.Backend
// and kv.Checker; all writes fail.
type ReadOnly struct{ db *DB }

var (
	_ kv.Backend   = (*ReadOnly)(nil)
	_ kv.Checker   = (*ReadOnly)(nil)
	_ kv.Checker   = (*DB)(nil)
	_ kv.Inspector = (*table)(nil)
)

// OpenReadOnly opens the existing database file at path, without the lock that excludes a
// second server.
// Errors: kv.ErrNewerSchema, kv.ErrDamaged.
func OpenReadOnly(path string) (*ReadOnly, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	switch fi, err := os.Stat(abs); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open database %s: %w: check the path", abs, fs.ErrNotExist)
	case err != nil:
		return nil, fmt.Errorf("open database: %w", err)
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("open database %s: not a regular file: specify the database file itself", abs)
	}
	if err := checkUnusedWAL(abs); err != nil {
		return nil, err
	}
	db := &DB{
		path:    abs,
		opts:    options{readers: 2, readerCache: 8 << 10, pageSize: 4096, readOnly: true},
		readers: make(chan *conn, 2),
		tables:  map[string]*table{},
		closing: make(chan struct{}),
	}
	c, err := openConn(db, db.opts.readerCache)
	if err != nil {
		return nil, err
	}
	if err := checkSchema(c, abs); err != nil {
		return nil, errors.Join(err, c.close())
	}
	if db.pageSize, err = c.queryInt(`PRAGMA page_size`); err != nil {
		return nil, errors.Join(db.fail("open", err), c.close())
	}
	db.readers <- c
	db.readers <- nil
	return &ReadOnly{db}, nil
}

// checkSchema refuses a file with another schema version: a migration would write.
func checkSchema(c *conn, path string) error {
	app, err := c.queryInt(`PRAGMA application_id`)
	if err != nil {
		return c.db.fail("open", err)
	}
	version, err := c.queryInt(`PRAGMA user_version`)
	if err != nil {
		return c.db.fail("open", err)
	}
	switch ours := int64(len(migrations)); {
	case app != applicationID:
		return fmt.Errorf("open database %s: %w: it is not an Atoll database; specify another file", path, kv.ErrInvalidRequest)
	case version > ours:
		return fmt.Errorf("open database %s: %w: its schema has version %d, but this program supports only up to %d; upgrade Atoll", path, kv.ErrNewerSchema, version, ours)
	case version < ours:
		return fmt.Errorf("open database %s: %w: its schema has the old version %d; start a server of this version on it once, which upgrades it to %d",
			path, kv.ErrInvalidRequest, version, ours)
	}
	return nil
}

// Open implements kv.Backend for an existing keyspace; it creates none.
// Errors: kv.ErrKeyNotFound.
func (r *ReadOnly) Open(ctx context.Context, keyspace string) (kv.Table, error) {
	t := &table{db: r.db, name: keyspace}
	err := r.db.read(ctx, "open keyspace", func(c *conn) error {
		var err error
		if t.id, err = c.findKeyspace(keyspace); errors.Is(err, kv.ErrKeyNotFound) {
			err = fmt.Errorf("open keyspace %q in database %s: %w", keyspace, r.db.path, err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return readOnlyTable{t}, nil
}

// OpenExisting implements kv.Backend.
func (r *ReadOnly) OpenExisting(ctx context.Context, keyspace string) (kv.Table, error) {
	return r.Open(ctx, keyspace)
}

// Partitions implements kv.Backend.
func (r *ReadOnly) Partitions(ctx context.Context, keyspace string) ([]string, error) {
	return r.db.Partitions(ctx, keyspace)
}

// Keyspaces implements kv.Backend.
func (r *ReadOnly) Keyspaces(ctx context.Context) ([]string, error) { return r.db.Keyspaces(ctx) }

// Size implements kv.Backend.
func (r *ReadOnly) Size(ctx context.Context) (total, inUse int64, err error) { return r.db.Size(ctx) }

// Check implements kv.Checker.
func (r *ReadOnly) Check(ctx context.Context) error { return r.db.Check(ctx) }

// Close implements kv.Backend.
func (r *ReadOnly) Close() (err error) {
	r.db.closeOnce.Do(func() {
		close(r.db.closing)
		for range cap(r.db.readers) {
			if c := <-r.db.readers; c != nil {
				err = errors.Join(err, c.close())
			}
		}
	})
	if err != nil {
		return fmt.Errorf("close database %s: %w", r.db.path, err)
	}
	return nil
}

type readOnlyTable struct{ *table }

func (t readOnlyTable) refuse(what string) error {
	return fmt.Errorf("%s keyspace %q: %w: database %s is open for reading only", what, t.name, kv.ErrInvalidRequest, t.db.path)
}

func (t readOnlyTable) Update(context.Context, []kv.Lookup, func(kv.Tx) error) error {
	return t.refuse("write to")
}

func (t readOnlyTable) SetCompacted(context.Context, kv.Revision) error { return t.refuse("compact") }

func (t readOnlyTable) Sweep(context.Context, int) (bool, error) { return false, t.refuse("sweep") }

// Exclusive implements kv.ExclusiveTable: a server may be writing.
func (t readOnlyTable) Exclusive() bool { return false }

// Inspect implements kv.Inspector. It reads the index of keys and the list of commits, not
// the log.
func (t *table) Inspect(ctx context.Context) (*kv.Inspection, error) {
	out := &kv.Inspection{}
	err := t.read(ctx, "inspect", func(c *conn, _ kv.Head) error {
		for q, into := range map[string]*int64{
			`SELECT count(*) FROM log WHERE ks = %d`:                     &out.History,
			`SELECT count(*) FROM current WHERE ks = %d AND version > 0`: &out.Keys,
		} {
			n, err := c.queryInt(fmt.Sprintf(q, t.id))
			if err != nil {
				return err
			}
			*into = n
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.History -= out.Keys
	// A running server writes to the log; after a clean shutdown the file is newer.
	for _, name := range []string{t.db.path, t.db.path + "-wal"} {
		if fi, err := os.Stat(name); err == nil && fi.Size() > 0 && fi.ModTime().After(out.LastCommit) {
			out.LastCommit = fi.ModTime().Truncate(time.Millisecond)
		}
	}
	return out, nil
}

// readOnlyPragmas configure a connection that must not change the file.
const readOnlyPragmas = `
	PRAGMA query_only = ON;
	PRAGMA cell_size_check = ON;
	PRAGMA temp_store = MEMORY;
	PRAGMA cache_size = -%d;`

// openReader opens a connection of a read-only database.
func openReader(db *DB, cacheKiB int) (*conn, error) {
	ctx := sqlite3.WithMaxMemory(context.Background(), maxConnMemory)
	sc, err := sqlite3.OpenContext(ctx, db.uri())
	if err != nil {
		return nil, db.fail("open", err)
	}
	err = sc.BusyTimeout(busyTimeout)
	if err == nil {
		err = sc.Exec(fmt.Sprintf(readOnlyPragmas, cacheKiB))
	}
	if err != nil {
		return nil, errors.Join(db.fail("open", err), sc.Close())
	}
	return &conn{db: db, c: sc}, nil
}
