package postgres

import (
	"context"
	"time"
)

// checkEvery is the interval at which a database that lacked something is checked again.
const checkEvery = time.Second

// checkAgain starts to check the database on new connections, until all tables can be used:
// the former primary may be brought back. It also lets all connections end that were made
// before, which may lead to another database.
func (db *DB) checkAgain() {
	db.generation.Add(1)
	if db.checking.Swap(true) {
		return
	}
	db.background.Go(func() {
		for db.checkOnce() {
			select {
			case <-db.clock.After(checkEvery):
			case <-db.closing:
				return
			}
		}
	})
}

// checkOnce reports whether to check again.
func (db *DB) checkOnce() (again bool) {
	if db.isClosing() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), db.opts.timeout)
	defer cancel()
	if c, err := db.connect(ctx); err == nil { // which compares everything
		c.close()
	}
	if db.anyBehind() {
		return true
	}
	db.checking.Store(false)
	return db.anyBehind() && !db.checking.Swap(true) // one may have fallen behind meanwhile
}

func (db *DB) anyBehind() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, t := range db.tables {
		if t.usable() != nil && !t.hasEnded() {
			return true
		}
	}
	return false
}
