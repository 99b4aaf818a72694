package sqlite

import (
	"sync"

	"github.com/ncruces/go-sqlite3"
)

// checkpointPages is how long the log gets, in pages, before it is copied into
// the database: often enough that one checkpoint is short, seldom enough that
// pages which change all the time are copied once for many commits.
const checkpointPages = 4000

// checkpointer copies the write-ahead log into the database file on a
// connection of its own, in passive mode: it waits for nobody and nobody waits
// for it. When it has caught up, the next writer starts the log from its
// beginning.
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
		// A checkpoint that fails has changed nothing that recovery would miss:
		// the log still holds everything. The next one tries again.
		_, _, _ = k.conn.c.WALCheckpoint("main", sqlite3.CHECKPOINT_PASSIVE)
	}
}
