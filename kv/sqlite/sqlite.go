// Package sqlite stores keyspaces in one SQLite file: the embedded backend.
//
// Only one process has the file open at a time. A lock file ensures that, and the system
// releases the lock if the process dies. Inside the process one connection writes and a
// pool of connections reads, each on its own snapshot of the write-ahead log, so that
// readers and the writer never wait for each other. DESIGN.md explains the schema and how
// it fails.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

// DB is one database file. It implements kv.Backend.
type DB struct {
	path string
	opts options
	lock *fileLock

	readers  chan *conn // idle connections; nil stands for one not opened yet
	writer   *writer
	ckpt     *checkpointer
	pageSize int64

	mu     sync.Mutex
	tables map[string]*table

	closing   chan struct{}
	closeOnce sync.Once
	closeErr  error
	// broken is the error after which nothing may be written.
	broken atomic.Pointer[error]
}

var _ kv.Identified = (*DB)(nil)

type options struct {
	vfs         string
	readers     int
	readerCache int // KiB
	writerCache int // KiB
	pageSize    int
	walLimit    int64 // bytes
	readOnly    bool
}

// Option changes how a database is opened.
type Option func(*options)

// WithVFS opens the file through a registered VFS of the driver, for instance for
// encryption at rest, or for a faulty disk in tests. The lock file beside the database
// still excludes other processes.
func WithVFS(name string) Option { return func(o *options) { o.vfs = name } }

// WithReaders sets the number of concurrent reads.
func WithReaders(n int) Option { return func(o *options) { o.readers = max(n, 1) } }

// WithCache sets the page cache of the writer and of each reader, in bytes.
func WithCache(writer, reader int64) Option {
	return func(o *options) {
		o.writerCache, o.readerCache = int(writer>>10), int(reader>>10)
	}
}

// WithPageSize sets the page size of a new database.
func WithPageSize(bytes int) Option { return func(o *options) { o.pageSize = bytes } }

// WithWALLimit sets the size of the write-ahead log, in bytes, above which writers wait
// while it is emptied.
func WithWALLimit(bytes int64) Option { return func(o *options) { o.walLimit = bytes } }

// Open opens the database file at path, creates it if it does not exist, and upgrades its
// schema.
// Errors: kv.ErrInUse, kv.ErrNewerSchema, kv.ErrDamaged.
func Open(path string, opts ...Option) (_ *DB, err error) {
	o := options{
		readers:     max(4, 2*runtime.GOMAXPROCS(0)),
		writerCache: 64 << 10,
		readerCache: 8 << 10,
		pageSize:    4096,
		walLimit:    256 << 20,
	}
	for _, opt := range opts {
		opt(&o)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(abs), 0o700); err != nil {
		return nil, fmt.Errorf("open database %s: create its directory: %w", abs, err)
	}
	lock, err := lockFile(abs)
	if err != nil {
		return nil, err
	}
	db := &DB{
		path:    abs,
		opts:    o,
		lock:    lock,
		readers: make(chan *conn, o.readers),
		tables:  map[string]*table{},
		closing: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			lock.release()
		}
	}()

	if err := checkWAL(abs, &o); err != nil {
		return nil, err
	}
	w, err := openConn(db, o.writerCache)
	if err != nil {
		return nil, err
	}
	if err := migrate(w, abs); err != nil {
		w.close()
		return nil, err
	}
	if err := checkHead(w, abs); err != nil {
		w.close()
		return nil, err
	}
	// The driver syncs files; their names are durable only after a sync of the directory.
	if err := syncDir(filepath.Dir(abs)); err != nil {
		w.close()
		return nil, fmt.Errorf("open database %s: sync its directory: %w", abs, err)
	}
	if db.pageSize, err = w.queryInt(`PRAGMA page_size`); err != nil {
		w.close()
		return nil, db.fail("open", err)
	}
	nextID, err := w.queryInt(`SELECT 1 + max(
		coalesce((SELECT max(id) FROM log), 0),
		coalesce((SELECT max(id + n - 1) FROM segment), 0))`)
	if err != nil {
		w.close()
		return nil, db.fail("open", err)
	}
	ckpt, err := openCheckpointer(db)
	if err != nil {
		w.close()
		return nil, err
	}
	for range o.readers {
		db.readers <- nil
	}
	db.ckpt = ckpt
	db.writer = startWriter(db, w, nextID)
	return db, nil
}

// Open implements kv.Backend.
func (db *DB) Open(ctx context.Context, keyspace string) (kv.Table, error) {
	find := (*conn).keyspaceID
	if _, _, partition := kv.ParsePartitionName(keyspace); partition {
		find = (*conn).findKeyspace // only Split creates it, never a server that only knows its name
	}
	return db.open(ctx, keyspace, find)
}

// OpenExisting implements kv.Backend.
func (db *DB) OpenExisting(ctx context.Context, keyspace string) (kv.Table, error) {
	return db.open(ctx, keyspace, (*conn).findKeyspace)
}

// open opens a keyspace whose ID find returns.
func (db *DB) open(ctx context.Context, keyspace string, find func(*conn, string) (int64, error)) (kv.Table, error) {
	if keyspace == "" {
		return nil, fmt.Errorf("open keyspace: %w: the name must not be empty", kv.ErrInvalidRequest)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if t := db.tables[keyspace]; t != nil {
		return t, nil
	}
	t := &table{db: db, name: keyspace}
	err := db.writer.do(ctx, func(c *conn) (err error) {
		t.id, err = find(c, keyspace)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open keyspace %q: %w", keyspace, err)
	}
	db.tables[keyspace] = t
	return t, nil
}

// Instance implements kv.Identified: a copy of the file is elsewhere.
func (db *DB) Instance(context.Context) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("identify database %s: %w", db.path, err)
	}
	return host + " " + db.path + fileNumber(db.path), nil
}

// Keyspaces implements kv.Backend.
func (db *DB) Keyspaces(ctx context.Context) (names []string, err error) {
	err = db.read(ctx, "list keyspaces", func(c *conn) (err error) {
		names, err = c.names(qKeyspaces)
		return err
	})
	return names, err
}

// Partitions implements kv.Backend.
func (db *DB) Partitions(ctx context.Context, keyspace string) (prefixes []string, err error) {
	err = db.read(ctx, "list partitions", func(c *conn) (err error) {
		prefixes, err = c.partitions(keyspace)
		return err
	})
	return prefixes, err
}

// Size implements kv.Backend. The write-ahead log counts as on disk, not as in use: its
// contents are already in the file or soon will be.
func (db *DB) Size(ctx context.Context) (total, inUse int64, err error) {
	err = db.read(ctx, "measure size", func(c *conn) error {
		pages, err := c.queryInt(`PRAGMA page_count`)
		if err != nil {
			return err
		}
		free, err := c.queryInt(`PRAGMA freelist_count`)
		if err != nil {
			return err
		}
		total, inUse = pages*db.pageSize, (pages-free)*db.pageSize
		return nil
	})
	if fi, serr := os.Stat(db.path + "-wal"); serr == nil {
		total += fi.Size()
	}
	return total, inUse, err
}

// Path returns the path of the database file.
func (db *DB) Path() string { return db.path }

// Close waits for operations under way, empties the write-ahead log into the file and
// releases it.
func (db *DB) Close() error {
	db.closeOnce.Do(func() {
		close(db.closing)
		db.writer.stop()
		db.ckpt.stop()
		var errs []error
		for range cap(db.readers) {
			if c := <-db.readers; c != nil {
				errs = append(errs, c.close())
			}
		}
		// The last connection to close makes a checkpoint and removes the log.
		errs = append(errs, db.ckpt.conn.close(), db.writer.conn.close())
		db.lock.release()
		if err := errors.Join(errs...); err != nil {
			db.closeErr = fmt.Errorf("close database %s: %w", db.path, err)
		}
	})
	return db.closeErr
}

// read runs fn with a connection from the pool.
func (db *DB) read(ctx context.Context, op string, fn func(*conn) error) error {
	var c *conn
	select {
	case c = <-db.readers:
	default:
		select {
		case c = <-db.readers:
		case <-ctx.Done():
			return ctx.Err()
		case <-db.closing:
			return fmt.Errorf("%s: database %s: %w", op, db.path, kv.ErrClosed)
		}
	}
	defer func() { db.readers <- c }()
	select {
	case <-db.closing:
		return fmt.Errorf("%s: database %s: %w", op, db.path, kv.ErrClosed)
	default:
	}
	if c == nil {
		n, err := openConn(db, db.opts.readerCache)
		if err != nil {
			return err
		}
		c = n
	}
	c.c.SetInterrupt(ctx)
	err := fn(c)
	c.c.SetInterrupt(context.Background())
	if err == nil {
		return nil
	}
	if errors.Is(err, sqlite3.INTERRUPT) && ctx.Err() != nil {
		return ctx.Err()
	}
	return db.fail(op, err)
}

// fail wraps an error of SQLite itself; kv's errors stay as they are.
func (db *DB) fail(op string, err error) error {
	var code sqlite3.ErrorCode
	if !errors.As(err, &code) {
		return err
	}
	remedy := "see the system's log for the disk"
	if err = noSpace(err); errors.Is(err, kv.ErrNoSpace) {
		return fmt.Errorf("%s: database %s: %w: %w (free disk space; writes then resume automatically)", op, db.path, kv.ErrUnavailable, err)
	}
	switch code {
	case sqlite3.CORRUPT, sqlite3.NOTADB:
		remedy = "restore the file from a backup"
	case sqlite3.READONLY, sqlite3.CANTOPEN, sqlite3.PERM:
		remedy = "check the permissions of the file and its directory"
	}
	return fmt.Errorf("%s: database %s: %w: %w (%s)", op, db.path, kv.ErrUnavailable, err, remedy)
}

func (db *DB) uri() string {
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: filepath.ToSlash(db.path)}).EscapedPath()}
	query := url.Values{"vfs": {bufferWAL(db.opts.vfs)}}
	switch {
	case db.opts.readOnly:
		query.Set("mode", "ro")
	case db.opts.vfs == "":
		// The driver creates world-readable files, but keyspaces contain Secrets. The lock
		// file has the required mode.
		query.Set("modeof", db.path+".lock")
	}
	// SQLite decodes %20, but not +.
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return u.String()
}
