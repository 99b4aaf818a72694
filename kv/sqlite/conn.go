package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

// conn is one connection with its prepared statements. Only one goroutine uses it at a
// time.
type conn struct {
	db    *DB
	c     *sqlite3.Conn
	stmts [numQueries]*sqlite3.Stmt
}

// maxConnMemory bounds the memory of one connection; most of it is the page cache.
const maxConnMemory = 1 << 30

// busyTimeout bounds the wait for a lock that another connection of this process holds: for
// recovery, or for emptying the log.
const busyTimeout = 10 * time.Second

func openConn(db *DB, cacheKiB int) (*conn, error) {
	if db.opts.readOnly {
		return openReader(db, cacheKiB)
	}
	ctx := sqlite3.WithMaxMemory(context.Background(), maxConnMemory)
	sc, err := sqlite3.OpenContext(ctx, db.uri())
	if err != nil {
		return nil, db.fail("open", err)
	}
	c := &conn{db: db, c: sc}
	// Only the checkpointer makes checkpoints. FULL syncs the log at every commit.
	// page_size only has an effect before the first page is written.
	err = sc.BusyTimeout(busyTimeout)
	if err == nil {
		err = sc.Exec(fmt.Sprintf(`
			PRAGMA page_size = %d;
			PRAGMA journal_mode = WAL;
			PRAGMA synchronous = FULL;
			PRAGMA wal_autocheckpoint = 0;
			PRAGMA foreign_keys = OFF;
			PRAGMA cell_size_check = ON;
			PRAGMA temp_store = MEMORY;
			PRAGMA cache_spill = OFF;
			PRAGMA cache_size = -%d;`, db.opts.pageSize, cacheKiB))
	}
	if err != nil {
		sc.Close()
		return nil, db.fail("open", err)
	}
	return c, nil
}

func (c *conn) close() error {
	for i, s := range c.stmts {
		if s != nil {
			s.Close()
			c.stmts[i] = nil
		}
	}
	return c.c.Close()
}

// stmt returns the prepared statement of a query, ready to bind.
func (c *conn) stmt(q query) (*sqlite3.Stmt, error) {
	if s := c.stmts[q]; s != nil {
		return s, nil
	}
	s, _, err := c.c.PrepareFlags(queries[q], sqlite3.PREPARE_PERSISTENT)
	if err != nil {
		return nil, fmt.Errorf("prepare query %d: %w", q, err)
	}
	c.stmts[q] = s
	return s, nil
}

// with binds integers to a query's first parameters.
func (c *conn) with(q query, args ...int64) (*sqlite3.Stmt, error) {
	s, err := c.stmt(q)
	if err != nil {
		return nil, err
	}
	for i, a := range args {
		if err := s.BindInt64(i+1, a); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// exec runs a query without result rows.
func (c *conn) exec(q query, args ...int64) error {
	s, err := c.with(q, args...)
	if err != nil {
		return err
	}
	return s.Exec()
}

// queryInt runs SQL that returns one integer. It is for rare statements.
func (c *conn) queryInt(sql string) (int64, error) {
	s, _, err := c.c.Prepare(sql)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if !s.Step() {
		if err := s.Err(); err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("%s: no row", sql)
	}
	return s.ColumnInt64(0), nil
}

// snapshot reads the keyspace's head and keeps the read transaction that this begins open
// until done is called: everything that this connection reads until then is from the same
// state. It is the check whether the keyspace still exists, so every access begins with it.
// Errors: kv.ErrDropped.
func (c *conn) snapshot(ks int64) (head kv.Head, done func(), err error) {
	s, err := c.with(qHead, ks)
	if err != nil {
		return head, nil, err
	}
	if !s.Step() {
		err := s.Err()
		s.Reset()
		if err == nil {
			// It existed when it was opened, and only Drop removes the row of an open one.
			err = kv.ErrDropped
		}
		return head, nil, err
	}
	// A keyspace without a segment was never written to.
	head.Revision = max(s.ColumnInt64(0), 1)
	head.Compacted = s.ColumnInt64(1)
	return head, func() { s.Reset() }, nil
}

// keyspaceID returns the ID of a keyspace, and creates it if necessary.
func (c *conn) keyspaceID(name string) (int64, error) {
	id, err := c.findKeyspace(name)
	if !errors.Is(err, kv.ErrKeyNotFound) {
		return id, err
	}
	s, err := c.stmt(qNewKeyspace)
	if err != nil {
		return 0, err
	}
	if err := s.BindText(1, name); err != nil {
		return 0, err
	}
	if err := s.Exec(); err != nil {
		return 0, err
	}
	return c.c.LastInsertRowID(), nil
}

// findKeyspace returns the ID of an existing keyspace.
func (c *conn) findKeyspace(name string) (int64, error) {
	s, err := c.stmt(qKeyspace)
	if err != nil {
		return 0, err
	}
	if err := s.BindText(1, name); err != nil {
		return 0, err
	}
	found := s.Step()
	id := s.ColumnInt64(0)
	if err := s.Reset(); err != nil {
		return 0, err
	}
	if !found {
		return 0, kv.ErrKeyNotFound
	}
	return id, nil
}

// names returns the keyspace names that a query selects.
func (c *conn) names(q query, args ...string) (names []string, err error) {
	s, err := c.stmt(q)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	for i, a := range args {
		if err := s.BindText(i+1, a); err != nil {
			return nil, err
		}
	}
	for s.Step() {
		names = append(names, s.ColumnText(0))
	}
	return names, s.Err()
}

// partitions returns the prefixes of a keyspace's partitions.
func (c *conn) partitions(keyspace string) (prefixes []string, err error) {
	from, to := kv.PartitionNames(keyspace)
	names, err := c.names(qPartitions, from, to)
	return kv.PartitionPrefixes(keyspace, names), err
}
