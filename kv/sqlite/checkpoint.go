package sqlite

import (
	"sync"

	"github.com/ncruces/go-sqlite3"
)

// checkpointPages is the length of the log, in pages, at which it is copied into the
// database: often enough that a checkpoint is short, rarely enough that pages which change
// all the time are copied once for many commits.
const checkpointPages = 4000

// checkpointer copies the write-ahead log into the database file on its own connection, in
// passive mode: it neither waits for other connections nor blocks them. When it has caught
// up, the next writer restarts the log from its beginning.
type checkpointer struct {
	db    *DB
	conn  *conn
	wakec chan struct{}
	stopc chan struct{}
	done  chan struct{}
	once  sync.Once
}

func openCheckpointer(db *DB) (*checkpointer, error) {
	c, err := openConn(db, 1<<10)
	if err != nil {
		return nil, err
	}
	k := &checkpointer{
		db:    db,
		conn:  c,
		wakec: make(chan struct{}, 1),
		stopc: make(chan struct{}),
		done:  make(chan struct{}),
	}
	go k.loop()
	return k, nil
}

func (k *checkpointer) wake() {
	select {
	case k.wakec <- struct{}{}:
	default:
	}
}

func (k *checkpointer) stop() {
	k.once.Do(func() { close(k.stopc) })
	<-k.done
}

func (k *checkpointer) loop() {
	defer close(k.done)
	for {
		select {
		case <-k.wakec:
		case <-k.stopc:
			return
		}
		// A failed checkpoint has changed nothing that recovery needs: the log is still
		// complete. The next one retries.
		_, _, _ = k.conn.c.WALCheckpoint("main", sqlite3.CHECKPOINT_PASSIVE)
	}
}
