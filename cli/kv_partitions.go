package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/server"
)

// byParent sorts names of keyspaces so that partitions follow the keyspace that
// they belong to.
func byParent(names []string) []string {
	parent := func(name string) string {
		if of, _, ok := kv.ParsePartitionName(name); ok {
			return of
		}
		return name
	}
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b string) int {
		if c := strings.Compare(parent(a), parent(b)); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return names
}

// withPartitions is a keyspace and what it is split into.
func withPartitions(ctx context.Context, db *server.Datastore, keyspace string) ([]string, error) {
	there, err := db.Keyspaces(ctx)
	if err != nil {
		return nil, err
	}
	names := []string{keyspace}
	for _, prefix := range kv.PartitionPrefixes(keyspace, there) {
		names = append(names, kv.PartitionName(keyspace, prefix))
	}
	return names, nil
}

// withoutPartitions leaves the keyspaces that are none themselves.
func withoutPartitions(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, _, ok := kv.ParsePartitionName(name)
		return ok
	})
}

// whole reads keyspaces with their partitions.
type whole interface {
	source
	reader
}

// openWhole opens a keyspace with all its partitions for reading.
func openWhole(ctx context.Context, db *server.Datastore, keyspace string) (whole, error) {
	names, err := withPartitions(ctx, db, keyspace)
	if err != nil {
		return nil, err
	}
	var readers []*inspect.Reader
	for _, name := range names {
		table, err := openTable(ctx, db, name)
		if err != nil {
			return nil, err
		}
		readers = append(readers, inspect.NewReader(table, db, clock.RealClock{}))
	}
	if len(readers) == 1 {
		return readers[0], nil
	}
	return inspect.NewPartitionedReader(readers[0], readers[1:]), nil
}

// refusePartitioned keeps from writing into a keyspace that is split, by those
// whose transactions know of no partitions.
func refusePartitioned(ctx context.Context, db *server.Datastore, keyspace string) error {
	names, err := withPartitions(ctx, db, keyspace)
	if err != nil || len(names) == 1 {
		return err
	}
	_, prefix, _ := kv.ParsePartitionName(names[1])
	return fmt.Errorf("keyspace %q is split (%s): %w: write into one that is not, and split that afterwards; or put this one together again with atoll kv merge --prefix %s",
		keyspace, quoted(names[1:]), kv.ErrInvalidRequest, prefix)
}

// stages shows the stages of a split or merge.
func stages(m *meter) func(stage string, done, total int64) {
	last := ""
	return func(stage string, done, total int64) {
		if stage != last {
			m.phase(stage, total)
			last = stage
		}
		m.set(done, total)
	}
}

// compactAll compacts a keyspace and each of its partitions, by how much each shall
// keep.
func (o *compactOptions) compactAll(ctx context.Context, out, progress io.Writer) error {
	names := []string{o.keyspace}
	if o.datastore != "" {
		db, err := server.OpenDatastoreToRead(ctx, o.datastore)
		if err != nil {
			return err
		}
		names, err = withPartitions(ctx, db, o.keyspace)
		if err = first(err, db.Close()); err != nil {
			return err
		}
	}
	if len(names) > 1 && o.keep < 0 {
		fmt.Fprintf(progress, "keyspace %q is split: --revision is one of its own; compact its partitions by their names: %s\n", o.keyspace, quoted(names[1:]))
		names = names[:1]
	}
	for _, name := range names {
		one := *o
		one.keyspace = name
		if len(names) > 1 {
			fmt.Fprintf(out, "keyspace %q: ", name)
		}
		if err := one.run(ctx, out, progress); err != nil {
			return err
		}
	}
	return nil
}

// toReadUnder opens what holds the keys under a prefix: one keyspace or partition,
// with its revisions, if that is all; otherwise the keyspace with its partitions.
func (p *place) toReadUnder(ctx context.Context, keyspace, prefix string) (_ reader, _ io.Closer, err error) {
	if err := p.check(); err != nil || p.endpoint != "" {
		return p.toRead(ctx, keyspace)
	}
	db, err := server.OpenDatastoreToRead(ctx, p.datastore)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = first(err, db.Close())
		}
	}()
	names, err := withPartitions(ctx, db, keyspace)
	if err != nil {
		return nil, nil, err
	}
	at := keyspace
	for _, name := range names[1:] {
		_, of, _ := kv.ParsePartitionName(name)
		if strings.HasPrefix(prefix, of) {
			at = name
		} else if strings.HasPrefix(of, prefix) {
			ks, err := openWhole(ctx, db, keyspace)
			return ks, db, err
		}
	}
	table, err := openTable(ctx, db, at)
	if err != nil {
		return nil, nil, err
	}
	return inspect.NewReader(table, db, clock.RealClock{}), db, nil
}
