package kv

import (
	"context"
	"fmt"
)

// Dropper is a Backend that can drop keyspaces. Drop takes a keyspace away from all users at
// once; Purge then frees its space in short steps, so that a large keyspace costs other
// keyspaces no long transaction.
type Dropper interface {
	Backend
	// Drop durably drops a keyspace with all of its partitions, in one transaction: after a
	// crash all of them are dropped, or none. From its return on
	//
	//   - every call of an engine that has the keyspace open, in any process, fails with
	//     ErrDropped. Its watches end with that error, too. Writes acknowledged before are
	//     lost with the keyspace, and none is acknowledged afterwards;
	//   - Open, OpenExisting, Keyspaces and Partitions do not know the keyspace. Its name
	//     can be used again at once, for a new keyspace at revision 1.
	//
	// It waits for commits under way. After ErrUnknownOutcome or ErrUnavailable, repeat it:
	// ErrKeyNotFound then means that the keyspace was dropped. Until then, no caller may use
	// the name again, because the repetition would drop the new keyspace.
	//
	// Errors: ErrKeyNotFound (no such keyspace), ErrInvalidRequest (it is a partition).
	Drop(ctx context.Context, keyspace string) error
	// Purge removes up to limit rows of dropped keyspaces, in a short transaction of its own
	// that locks no row which writers of other keyspaces wait for. more reports whether
	// there are more such rows. After a crash at any point, the next call continues. Several
	// servers may call it at the same time: rows that another one is removing do not count.
	Purge(ctx context.Context, limit int) (more bool, err error)
}

// CheckDrop returns an error if a keyspace of that name can never be dropped.
func CheckDrop(keyspace string) error {
	if parent, prefix, ok := ParsePartitionName(keyspace); ok {
		return fmt.Errorf("drop keyspace %q: %w: it is a partition; drop its keyspace %q, or merge the partition for %q into it",
			keyspace, ErrInvalidRequest, parent, prefix)
	}
	return nil
}
