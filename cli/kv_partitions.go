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

// byParent sorts names of keyspaces so that partitions follow their keyspace.
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

// withPartitions returns a keyspace and its partitions.
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

// withoutPartitions returns the keyspaces that are not partitions.
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

// refusePartitioned returns an error for a split keyspace. It is for writers whose
// transactions do not support partitions.
func refusePartitioned(ctx context.Context, db *server.Datastore, keyspace string) error {
	names, err := withPartitions(ctx, db, keyspace)
	if err != nil || len(names) == 1 {
		return err
	}
	_, prefix, _ := kv.ParsePartitionName(names[1])
	return fmt.Errorf("keyspace %q is split (%s): %w: write to a keyspace without partitions and split it afterwards, or undo the split with `atoll kv merge --prefix %s`",
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

// compactAll compacts a keyspace and each of its partitions, each relative to its own
// revision.
func (o *compactOptions) compactAll(ctx context.Context, out, progress io.Writer) error {
	names := []string{o.keyspace}
	if o.datastore != "" {
		db, err := server.OpenDatastoreReadOnly(ctx, o.datastore)
		if err != nil {
			return err
		}
		names, err = withPartitions(ctx, db, o.keyspace)
		if err = first(err, db.Close()); err != nil {
			return err
		}
	}
	if len(names) > 1 && o.keep < 0 {
		fmt.Fprintf(progress, "keyspace %q is split: --revision applies only to the keyspace itself. Compact its partitions by name: %s\n", o.keyspace, quoted(names[1:]))
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

// toReadUnder opens the keyspace or partition that holds all keys under a prefix, with
// its revisions. If the keys are in several, it opens the keyspace with all its
// partitions.
func (p *location) toReadUnder(ctx context.Context, keyspace, prefix string) (_ reader, _ io.Closer, err error) {
	if err := p.check(); err != nil || p.endpoint != "" {
		return p.toRead(ctx, keyspace)
	}
	db, err := server.OpenDatastoreReadOnly(ctx, p.datastore)
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
