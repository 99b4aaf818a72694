package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/atoll-dev/atoll/kv"
)

// Open implements kv.Backend.
func (db *DB) Open(ctx context.Context, keyspace string) (kv.Table, error) {
	// Only Split creates a partition, never a server that only knows its name.
	_, _, partition := kv.ParsePartitionName(keyspace)
	return db.open(ctx, keyspace, !partition && !db.opts.readOnly)
}

// OpenExisting implements kv.Backend.
func (db *DB) OpenExisting(ctx context.Context, keyspace string) (kv.Table, error) {
	return db.open(ctx, keyspace, false)
}

// open opens a keyspace. It always looks up the name: another server may have dropped the
// keyspace that this one has open, and a new one may have the name.
func (db *DB) open(ctx context.Context, keyspace string, create bool) (kv.Table, error) {
	if keyspace == "" || strings.ContainsRune(keyspace, 0) {
		return nil, fmt.Errorf("open keyspace %q: %w: the name must not be empty or contain zero bytes", keyspace, kv.ErrInvalidRequest)
	}
	db.mu.Lock()
	old := db.tables[keyspace]
	db.mu.Unlock()
	if old != nil && !old.hasEnded() && old.usable() != nil {
		return old, nil // the database lacks something, and may lack the keyspace, too
	}
	origin := make([]byte, tokenSize)
	rand.Read(origin)
	t := newTable(db, keyspace)
	// If two servers create it at once, the second one changes nothing and finds the first
	// one's.
	err := db.read(ctx, "open keyspace", db.opts.timeout, func(c *conn) error {
		for range 2 {
			found, err := t.find(c)
			if err != nil || found {
				return err
			}
			if !create {
				return fmt.Errorf("database %s: %w", db.where, kv.ErrKeyNotFound)
			}
			c.send(qNewKeyspace, []byte(keyspace), origin)
			c.sync()
			if err := c.flush(); err != nil {
				return err
			}
			if _, err := c.result(nil); err != nil {
				return err
			}
			if err := c.ready(); err != nil {
				return err
			}
		}
		found, err := t.find(c)
		if err == nil && !found {
			err = fmt.Errorf("%w: created, but not found", kv.ErrUnavailable)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open keyspace %q: %w", keyspace, err)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if other := db.tables[keyspace]; other != nil && other.id == t.id && !other.hasEnded() {
		return other, nil
	}
	if old != nil && old.id == t.id {
		t.newest = old.floor() // all known commits must still exist
	}
	db.tables[keyspace] = t
	return t, nil
}

// find looks up the keyspace by its name.
func (t *table) find(c *conn) (found bool, err error) {
	c.send(qKeyspace, []byte(t.name))
	c.sync()
	if err := c.flush(); err != nil {
		return false, err
	}
	_, err = c.result(func(cols *columns) error {
		t.id, t.origin, found = cols.int32(), cols.bytes(), true
		return nil
	})
	if err != nil {
		return false, err
	}
	return found, c.ready()
}

// Keyspaces implements kv.Backend.
func (db *DB) Keyspaces(ctx context.Context) (names []string, err error) {
	err = db.query(ctx, "list keyspaces", func(c *conn) { names = nil; c.send(qKeyspaces) }, func(cols *columns) error {
		names = append(names, string(cols.next()))
		return nil
	})
	return names, err
}

// Partitions implements kv.Backend.
func (db *DB) Partitions(ctx context.Context, keyspace string) ([]string, error) {
	from, to := kv.PartitionNames(keyspace)
	var names []string
	err := db.query(ctx, "list partitions", func(c *conn) { names = nil; c.send(qPartitions, []byte(from), []byte(to)) }, func(cols *columns) error {
		names = append(names, string(cols.next()))
		return nil
	})
	return kv.PartitionPrefixes(keyspace, names), err
}
