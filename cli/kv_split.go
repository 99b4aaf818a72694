package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/server"
)

// splitOptions are those of split and merge.
type splitOptions struct {
	datastore, keyspace, prefix string
	dryRun                      bool
}

func newKVSplitCommand() *cobra.Command {
	opts := splitOptions{keyspace: server.Workspace}
	cmd := &cobra.Command{
		Use:   "split --datastore URL --prefix PREFIX",
		Short: "Give a part of a keyspace revisions and commits of its own",
		Long: `Move what a keyspace holds under a prefix into a partition: with its own
revisions, log and commits, so that its writes wait for no others. Clients do not
notice, but that those who watch the prefix from an older revision list again.

It is one transaction of the database. On SQLite the server must be stopped. On
PostgreSQL servers may run: writes to the keyspace wait meanwhile, or fail as
unavailable if it takes longer than 10 s, and the servers go on with the
partition by themselves. Make a backup first.`,
		Example: `  # What would be moved?
  atoll kv split --datastore sqlite:///var/lib/atoll/atoll.db --prefix /registry/events/ --dry-run

  # Events and leases each on their own
  atoll kv split --datastore "$ATOLL_DATASTORE" --prefix /registry/events/
  atoll kv split --datastore "$ATOLL_DATASTORE" --prefix /registry/leases/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), "split", (*server.Datastore).Split)
		},
	}
	opts.addFlags(cmd, "Keys that shall be moved begin so; it ends in /.")
	return cmd
}

func newKVMergeCommand() *cobra.Command {
	opts := splitOptions{keyspace: server.Workspace}
	cmd := &cobra.Command{
		Use:   "merge --datastore URL --prefix PREFIX",
		Short: "Undo a split",
		Long: `Take a partition's keys back into the keyspace that it was split from, and
remove the partition. The keyspace moves to a revision above all that either has had,
and forgets its history: all of its clients list again.

Like split it is one transaction, for which an SQLite server must be stopped.`,
		Example: `  atoll kv merge --datastore sqlite:///var/lib/atoll/atoll.db --prefix /registry/events/`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), "merge", (*server.Datastore).Merge)
		},
	}
	opts.addFlags(cmd, "Prefix of the partition, as atoll kv status shows it.")
	return cmd
}

func (o *splitOptions) addFlags(cmd *cobra.Command, prefixHelp string) {
	flags := cmd.Flags()
	flags.SortFlags = false
	addDatastoreFlag(flags, &o.datastore)
	flags.StringVar(&o.keyspace, "keyspace", o.keyspace, "Name of the keyspace in the datastore.")
	flags.StringVar(&o.prefix, "prefix", "", prefixHelp)
	flags.BoolVar(&o.dryRun, "dry-run", false, "Only say what would be moved.")
}

func (o *splitOptions) run(ctx context.Context, out, progress io.Writer, verb string,
	do func(*server.Datastore, context.Context, string, string, kv.SplitOptions) (*kv.SplitResult, error),
) (err error) {
	if o.datastore, err = datastoreURL(o.datastore); err != nil {
		return err
	}
	if o.prefix == "" {
		return errors.New("no prefix given: name one with --prefix, such as /registry/events/")
	}
	// Opening for writing makes a database that is not there.
	probe := place{datastore: o.datastore}
	_, closer, err := probe.toRead(ctx, o.keyspace)
	if err != nil {
		return err
	}
	if err := closer.Close(); err != nil {
		return err
	}
	db, err := server.OpenDatastore(ctx, o.datastore)
	if errors.Is(err, kv.ErrInUse) {
		return fmt.Errorf("%w\nStop the server that has it open, %s, and start the server again: it finds out by itself", err, verb)
	}
	if err != nil {
		return err
	}
	defer func() { err = first(err, db.Close()) }()
	meter := newMeter(progress, verb, "keys")
	moved, err := do(db, ctx, o.keyspace, o.prefix, kv.SplitOptions{DryRun: o.dryRun, Step: stages(meter)})
	meter.stop()
	switch {
	case errors.Is(err, kv.ErrKeyNotFound):
		return fmt.Errorf("%w: atoll kv status shows the keyspaces and partitions of %s", err, db.URL())
	case err != nil:
		return err
	case o.dryRun:
		fmt.Fprintf(out, "would move %d keys and %d leases (dry run)\n", moved.Keys, moved.Leases)
		return nil
	}
	to := kv.PartitionName(o.keyspace, o.prefix)
	if verb == "merge" {
		to = o.keyspace
	}
	fmt.Fprintf(out, "%s: moved %d keys and %d leases into %q, which is at revision %d\n", strings.ToUpper(verb[:1])+verb[1:], moved.Keys, moved.Leases, to, moved.Revision)
	return nil
}
