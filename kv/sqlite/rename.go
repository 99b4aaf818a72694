package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Renamer = (*DB)(nil)

// Rename implements kv.Renamer. The keyspace keeps its ID, so no other row changes. The tables
// that have it open end in the transaction that renames: an engine that answers from memory must
// be the only one of its keyspace, and the next Open under the new name makes another one.
func (db *DB) Rename(ctx context.Context, from, to string) error {
	if err := kv.CheckRename(from, to); err != nil {
		return err
	}
	db.mu.Lock() // so that Open returns no table that is about to end
	defer db.mu.Unlock()
	var open []*table
	for name, t := range db.tables {
		if isPartOf(name, from) {
			open = append(open, t)
		}
	}
	err := db.writer.do(ctx, func(c *conn) error {
		if err := c.rename(from, to); err != nil {
			return err
		}
		for _, t := range open {
			t.renamed.Store(true) // for the writes that share this commit, or follow it
		}
		return nil
	})
	if err != nil && !errors.Is(err, kv.ErrUnknownOutcome) {
		for _, t := range open {
			t.renamed.Store(false)
		}
		return fmt.Errorf("rename keyspace %q to %q: %w", from, to, err)
	}
	// If the outcome is unknown, too: an engine that is opened next finds out.
	for _, t := range db.forget(from) {
		t.end.now(t.named(kv.ErrRenamed))
	}
	if err != nil {
		return fmt.Errorf("rename keyspace %q to %q: %w", from, to, err)
	}
	return nil
}

// isPartOf reports whether a name is that of a keyspace, or of one of its partitions.
func isPartOf(name, keyspace string) bool {
	from, to := kv.PartitionNames(keyspace)
	return name == keyspace || name >= from && name < to
}

func (c *conn) rename(from, to string) error {
	if _, err := c.findKeyspace(from); err != nil {
		return err
	}
	begin, end := kv.PartitionNames(from)
	parts, err := c.names(qPartitions, begin, end)
	if err != nil {
		return err
	}
	for _, name := range append([]string{from}, parts...) {
		renamed := kv.RenamedPartition(name, from, to)
		_, err := c.findKeyspace(renamed)
		if err == nil {
			return fmt.Errorf("%q: %w", renamed, kv.ErrKeyspaceExists)
		}
		if !errors.Is(err, kv.ErrKeyNotFound) {
			return err
		}
		s, err := c.stmt(qRename)
		if err != nil {
			return err
		}
		if err := errors.Join(s.BindText(1, name), s.BindText(2, renamed)); err != nil {
			return err
		}
		if err := s.Exec(); err != nil {
			return err
		}
	}
	return nil
}
