package sqlite

import (
	"context"
	"errors"

	"github.com/ncruces/go-sqlite3"
)

// CheckpointBesideReader copies the write-ahead log to the database file. If write is not nil, a reader holds a snapshot
// meanwhile, so that the log is not restarted, and write runs afterwards.
func CheckpointBesideReader(db *DB, write func()) error {
	checkpoint := func() error {
		log, copied, err := db.ckpt.conn.c.WALCheckpoint("main", sqlite3.CHECKPOINT_PASSIVE)
		if err == nil && log != copied {
			err = errors.New("the checkpoint is incomplete")
		}
		return err
	}
	if write == nil {
		return checkpoint()
	}
	return db.read(context.Background(), "test", func(c *conn) error {
		if err := c.c.Exec(`BEGIN; SELECT count(*) FROM log`); err != nil {
			return err
		}
		defer c.c.Exec(`COMMIT`)
		if err := checkpoint(); err != nil {
			return err
		}
		write()
		return nil
	})
}
