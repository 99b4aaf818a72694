package kv

import (
	"bytes"
	"context"
	"fmt"
	"strings"
)

// A keyspace can be divided: what it holds under a prefix then lives in a
// partition, a keyspace of its own with its own revisions, log and head. Its name
// says of which keyspace and which prefix it is, so whoever opens the one finds
// the other in the database.

// partitionMark stands between the two in the name of a partition. What follows is
// the prefix, with everything but printable ASCII written as %XX.
const partitionMark = "@partition:"

// PartitionName is the name of the keyspace that holds what parent has under
// prefix.
func PartitionName(parent, prefix string) string {
	var b strings.Builder
	b.WriteString(parent + partitionMark)
	for i := range len(prefix) {
		if c := prefix[i]; c <= ' ' || c >= 0x7f || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// ParsePartitionName takes the name of a partition apart; ok is false for any other
// keyspace.
func ParsePartitionName(name string) (parent, prefix string, ok bool) {
	parent, escaped, ok := strings.Cut(name, partitionMark)
	if !ok {
		return "", "", false
	}
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '%' {
			b.WriteByte(escaped[i])
			continue
		}
		var c byte
		if i+2 >= len(escaped) {
			return "", "", false
		}
		if _, err := fmt.Sscanf(escaped[i+1:i+3], "%02X", &c); err != nil {
			return "", "", false
		}
		b.WriteByte(c)
		i += 2
	}
	prefix = b.String()
	// One name for each partition: what is written otherwise is none.
	if parent == "" || prefix == "" || PartitionName(parent, prefix) != name {
		return "", "", false
	}
	return parent, prefix, true
}

// PartitionPrefixes picks from the names of keyspaces the prefixes of parent's
// partitions, in the order of the names.
func PartitionPrefixes(parent string, names []string) (prefixes []string) {
	for _, name := range names {
		if of, prefix, ok := ParsePartitionName(name); ok && of == parent {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// CheckPartition tells whether a keyspace that has partitions for the prefixes
// there may get one for prefix.
func CheckPartition(parent, prefix string, there []string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("split keyspace %q at %q: %w: %s", parent, prefix, ErrInvalidRequest, fmt.Sprintf(format, args...))
	}
	switch {
	case prefix == "":
		return refuse("an empty prefix is the whole keyspace; name what shall have an order of its own, such as /registry/events/")
	case strings.Contains(parent, partitionMark):
		return refuse("it is a partition already; name the keyspace that it belongs to")
	case !strings.HasSuffix(prefix, "/"):
		return refuse("the prefix must end in /, or it would take keys of others with it: %q holds %q, too", prefix, prefix+"s/")
	case len(prefix) > MaxPartitionPrefix:
		return refuse("the prefix is longer than %d bytes", MaxPartitionPrefix)
	}
	for _, other := range there {
		if bytes.HasPrefix([]byte(other), []byte(prefix)) || strings.HasPrefix(prefix, other) {
			if other == prefix {
				return fmt.Errorf("split keyspace %q at %q: %w", parent, prefix, ErrPartitionExists)
			}
			return refuse("it overlaps the partition for %q; merge that one first", other)
		}
	}
	return nil
}

// NamingKeyError refuses a partition because the key exists that would only name it:
// that of the prefix without its last slash. Who reads that key asks where the
// partition stands, as Kubernetes does.
func NamingKeyError(prefix string) error {
	return fmt.Errorf("%w: there is a key %q itself, which shall only name what is below it; delete it or choose another prefix",
		ErrInvalidRequest, strings.TrimSuffix(prefix, "/"))
}

// MaxPartitionPrefix bounds the prefix of a partition, in bytes.
const MaxPartitionPrefix = 512

// Splitter is a Backend that can divide keyspaces. What it does it does in one
// transaction: after a crash it has happened as a whole, or not at all.
//
// Engines that have the keyspace open, in any process, find out at their next
// contact with the database (ErrRepartitioned), and before they have told
// anything that is not true any more. A Backend that only one process can open
// must have none open on this keyspace.
type Splitter interface {
	// Split gives what the keyspace holds under prefix to a new partition. Keys keep
	// their values, revisions, versions and leases. The partition is one revision
	// after the keyspace's head, and that is its compaction revision: who watches from
	// an older one lists again; who had heard everything goes on without a gap. In
	// the keyspace's own order the keys are deleted, in one revision. The partition of a
	// keyspace that was never written to is new, too.
	//
	// Errors: ErrKeyNotFound (no such keyspace), ErrPartitionExists,
	// ErrInvalidRequest.
	Split(ctx context.Context, keyspace, prefix string, opts SplitOptions) (*Moved, error)
	// Merge takes a partition's keys back into its keyspace and removes the
	// partition. The keyspace moves to a revision above all that either has had,
	// which makes all of the keys, and which becomes its compaction revision: all of
	// its watchers list again.
	// Errors: ErrKeyNotFound (no such partition).
	Merge(ctx context.Context, keyspace, prefix string, opts SplitOptions) (*Moved, error)
}

// SplitOptions of a Split or Merge.
type SplitOptions struct {
	// EmptyOnly refuses to move anything. A keyspace that is not there is made.
	EmptyOnly bool
	// DryRun counts what would be moved, and changes nothing.
	DryRun bool
	// Step is told of each stage that begins, and how many keys of it are done, as far
	// as that is known; it may be nil.
	Step func(stage string, done, total int64)
}

// Moved is what a Split or Merge has moved.
type Moved struct {
	Keys int64
	// Leases that keys which were moved are attached to.
	Leases int64
	// Revision that the receiving keyspace is at.
	Revision Revision
}

// PartitionLeaseTTL is the time to live, in seconds, of a lease's copy in a
// partition. The lease in the parent decides when the keys go; the copy must not
// end before it, whatever holds a renewal up.
func PartitionLeaseTTL(ttl int64) int64 { return min(2*ttl+30, 9_000_000_000) }

// Partitioned is a Keyspace of several orders of revisions.
type Partitioned interface {
	// Partition tells which of them a span lies in; revisions are comparable only
	// within one. ok is false if it lies in more than one.
	Partition(span Span) (n int, ok bool)
}
