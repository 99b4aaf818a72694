package sqlite

import (
	"context"
	"fmt"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

// maxRewrite is the size of the data that may be rewritten, in memory, while writers wait:
// about half a second. Incremental vacuuming would delay them less, but needs a file that
// records the owner of each page, which makes the commits of a single client 25 % slower.
const maxRewrite = 64 << 20

var _ kv.Defragmenter = (*DB)(nil)

// Defragment implements kv.Defragmenter. It rewrites the file if a quarter of it is free.
func (db *DB) Defragment(ctx context.Context) error {
	total, inUse, err := db.Size(ctx)
	switch {
	case err != nil:
		return err
	case inUse > total/4*3:
		return nil
	case inUse > maxRewrite:
		return fmt.Errorf("defragment database %s: %w: its %d MB of data are too many to rewrite while the server writes; "+
			"stop the server, copy the file with `atoll kv copy`, and use the copy", db.path, kv.ErrInvalidRequest, inUse>>20)
	}
	return db.writer.empty(ctx, func(c *conn) error { return c.c.Exec(`VACUUM`) })
}

// empty runs functions outside a transaction, and then copies the write-ahead log to the
// file, which takes its new size from it.
func (w *writer) empty(ctx context.Context, fns ...func(*conn) error) error {
	return w.submit(ctx, w.chores, &writeRequest{outside: true, fn: func(c *conn) error {
		for _, fn := range fns {
			if err := fn(c); err != nil {
				return w.sqlError(err)
			}
		}
		w.emptyLog()
		return nil
	}})
}

// emptyLog copies the write-ahead log to the file, unless readers delay that for too long.
func (w *writer) emptyLog() {
	w.conn.c.BusyTimeout(truncateTimeout)
	if _, _, err := w.conn.c.WALCheckpoint("main", sqlite3.CHECKPOINT_TRUNCATE); err == nil {
		w.walPages.Store(0)
	}
	w.conn.c.BusyTimeout(busyTimeout)
}
