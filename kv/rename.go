package kv

import (
	"context"
	"fmt"
	"strings"
)

// Renamer is a Dropper that can give a keyspace another name. Nothing is copied: the cost does not
// depend on the size of the keyspace.
type Renamer interface {
	Dropper
	// Rename durably gives a keyspace another name, with all of its partitions, in one
	// transaction: after a crash all of them have the new name, or none. Values, revisions,
	// history and leases stay. From its return on
	//
	//   - every call of an engine that has the keyspace open, in any process, fails with
	//     ErrRenamed or ErrRepartitioned, and its watches end. So no engine writes under the
	//     old name what an engine under the new name does not see;
	//   - Open, OpenExisting, Keyspaces and Partitions do not know the old name. It can be used
	//     again at once, for a new keyspace at revision 1.
	//
	// It waits for commits under way. Their changes are there under the new name. After
	// ErrUnknownOutcome or ErrUnavailable, repeat it: ErrKeyNotFound then means that the
	// keyspace has the new name, if no other caller drops or renames it.
	//
	// Errors: ErrKeyNotFound (no keyspace has the name from), ErrKeyspaceExists (another one
	// has the name to), ErrInvalidRequest.
	Rename(ctx context.Context, from, to string) error
}

// CheckRename returns an error if a keyspace of the first name can never get the second one.
func CheckRename(from, to string) error {
	refuse := func(why string) error {
		return fmt.Errorf("rename keyspace %q to %q: %w: %s", from, to, ErrInvalidRequest, why)
	}
	switch {
	case to == "" || strings.ContainsRune(to, 0):
		return refuse("the new name must not be empty or contain zero bytes")
	case from == to:
		return refuse("both names are the same")
	case strings.Contains(from, partitionMark):
		return refuse("it is a partition, whose name has that of its keyspace: rename that")
	case strings.Contains(to, partitionMark):
		return refuse("the new name is that of a partition: only a split creates those")
	}
	return nil
}

// RenamedPartition returns the name of a partition after its keyspace got another name.
func RenamedPartition(partition, from, to string) string {
	return to + strings.TrimPrefix(partition, from)
}
