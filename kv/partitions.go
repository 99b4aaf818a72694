package kv

import (
	"bytes"
	"context"
	"fmt"
	"strings"
)

// A keyspace can be partitioned: the keys under a prefix then live in a partition, a
// keyspace of its own with its own revisions, log and head. A partition's name contains its
// parent's name and the prefix, so opening the parent finds its partitions in the database.

// partitionMark separates parent and prefix in a partition's name. In the prefix,
// everything but printable ASCII is escaped as %XX.
const partitionMark = "@partition:"

// PartitionName returns the name of the keyspace that holds parent's keys under prefix.
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

// ParsePartitionName splits the name of a partition into parent and prefix; ok is false for
// any other keyspace.
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
	// Each partition has exactly one name: any other spelling is not a partition.
	if parent == "" || prefix == "" || PartitionName(parent, prefix) != name {
		return "", "", false
	}
	return parent, prefix, true
}

// PartitionNames returns the bounds of the names of parent's partitions, compared bytewise:
// from <= name < to. A name between them can still be another keyspace's.
func PartitionNames(parent string) (from, to string) {
	last := len(partitionMark) - 1
	return parent + partitionMark, parent + partitionMark[:last] + string(partitionMark[last]+1)
}

// PartitionPrefixes returns the prefixes of parent's partitions among the given keyspace
// names, in the order of the names.
func PartitionPrefixes(parent string, names []string) (prefixes []string) {
	for _, name := range names {
		if of, prefix, ok := ParsePartitionName(name); ok && of == parent {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// CheckPartition returns an error if a keyspace whose partitions have the prefixes existing
// cannot get one for prefix.
func CheckPartition(parent, prefix string, existing []string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("split keyspace %q at %q: %w: %s", parent, prefix, ErrInvalidRequest, fmt.Sprintf(format, args...))
	}
	switch {
	case prefix == "":
		return refuse("an empty prefix is the whole keyspace; specify the prefix of the keys to split off, such as /registry/events/")
	case strings.Contains(parent, partitionMark):
		return refuse("it is a partition itself; specify its parent keyspace")
	case !strings.HasSuffix(prefix, "/"):
		return refuse("the prefix must end in /, or it would include unrelated keys: %q also matches %q", prefix, prefix+"s/")
	case len(prefix) > MaxPartitionPrefix:
		return refuse("the prefix is longer than %d bytes", MaxPartitionPrefix)
	}
	for _, other := range existing {
		if bytes.HasPrefix([]byte(other), []byte(prefix)) || strings.HasPrefix(prefix, other) {
			if other == prefix {
				return fmt.Errorf("split keyspace %q at %q: %w", parent, prefix, ErrPartitionExists)
			}
			return refuse("it overlaps the partition for %q; merge that partition first", other)
		}
	}
	return nil
}

// NamingKeyError returns the error for a partition whose prefix, without its last slash, is
// itself an existing key. Clients read that key to find out where the partition is, as
// Kubernetes does.
func NamingKeyError(prefix string) error {
	return fmt.Errorf("%w: key %q exists, but must be only a prefix of the partition's keys; delete the key or choose another prefix",
		ErrInvalidRequest, strings.TrimSuffix(prefix, "/"))
}

// MaxPartitionPrefix is the maximum length of a partition's prefix, in bytes.
const MaxPartitionPrefix = 512

// Splitter is a Backend that can split and merge keyspaces. Each operation is one
// transaction: after a crash it has happened as a whole, or not at all.
//
// Engines that have the keyspace open, in any process, notice at their next access to the
// database (ErrRepartitioned), and before they return anything that is no longer true. For
// a Backend that only one process can open, no engine may have this keyspace open.
type Splitter interface {
	// Split moves the keys under prefix to a new partition. They keep their values,
	// revisions, versions and leases. The partition starts one revision after the
	// keyspace's head, and that is its compaction revision. Watches from an older revision
	// must list again; a watch that has received everything continues without a gap. In the
	// keyspace's own history the keys are deleted, in one revision. If the keyspace was
	// never written to, the partition is new, too.
	//
	// Errors: ErrKeyNotFound (no such keyspace), ErrPartitionExists, ErrInvalidRequest.
	Split(ctx context.Context, keyspace, prefix string, opts SplitOptions) (*SplitResult, error)
	// Merge moves a partition's keys back into its keyspace and removes the partition. The
	// keyspace advances to a revision above all that either has had. That revision creates
	// all of the keys and becomes the compaction revision, so all watches of the keyspace
	// must list again.
	// Errors: ErrKeyNotFound (no such partition).
	Merge(ctx context.Context, keyspace, prefix string, opts SplitOptions) (*SplitResult, error)
}

// SplitOptions are the options of a Split or Merge.
type SplitOptions struct {
	// EmptyOnly refuses to move any keys. A keyspace that does not exist is created.
	EmptyOnly bool
	// DryRun counts the keys that would move, and changes nothing.
	DryRun bool
	// Step is called at the begin of each stage, and with the number of keys done, if
	// known. It may be nil.
	Step func(stage string, done, total int64)
}

// SplitResult describes the outcome of a Split or Merge.
type SplitResult struct {
	Keys int64
	// Leases counts the leases that moved keys are attached to.
	Leases int64
	// Revision is the current revision of the receiving keyspace.
	Revision Revision
}

// PartitionLeaseTTL returns the time to live, in seconds, of a lease's copy in a partition.
// The lease in the parent decides when its keys are deleted. The copy must not expire
// before it, whatever delays a renewal.
func PartitionLeaseTTL(ttl int64) int64 { return min(2*ttl+30, 9_000_000_000) }

// Partitioned is a Keyspace with several independent sequences of revisions.
type Partitioned interface {
	// Partition returns the number of the sequence that a span belongs to; revisions are
	// comparable only within one. ok is false if the span covers more than one.
	Partition(span Span) (n int, ok bool)
}

// Prober is a Keyspace of several parts, which can be unavailable on their own.
type Prober interface {
	// Probe reads from each part, and returns the error of the first one that is not
	// served.
	Probe(ctx context.Context) error
}

// Probe reads from all parts of a keyspace, to find out whether it is served.
func Probe(ctx context.Context, ks Keyspace) error {
	if p, ok := ks.(Prober); ok {
		return p.Probe(ctx)
	}
	_, err := ks.Range(ctx, RangeRequest{Span: Span{Start: []byte{0}}, CountOnly: true})
	return err
}
