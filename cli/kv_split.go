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

// splitOptions are the options of split and merge.
type splitOptions struct {
	datastore, keyspace, prefix string
	dryRun                      bool
}

func newKVSplitCommand() *cobra.Command {
	opts := splitOptions{keyspace: server.Workspace}
	cmd := &cobra.Command{
		Use:   "split --datastore URL --prefix PREFIX",
		Short: "Split a partition off a keyspace",
		Long: `Move the keys of a keyspace under a prefix to a partition, which has its own revisions,
log and commits: its writes do not wait for others. Clients that watch the prefix from an
older revision have to list again; others do not notice.

The split is one database transaction. On SQLite, stop the server first. On PostgreSQL,
servers may keep running: writes to the keyspace wait meanwhile, or fail as unavailable if
it takes longer than 10 s, and the servers then use the partition automatically. Make a
backup first.`,
		Example: `  # Show what would be moved
  atoll kv split --datastore sqlite:///var/lib/atoll/atoll.db --prefix /registry/events/ --dry-run

  # Split off events and leases
  atoll kv split --datastore "$ATOLL_DATASTORE" --prefix /registry/events/
  atoll kv split --datastore "$ATOLL_DATASTORE" --prefix /registry/leases/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), "split", (*server.Datastore).Split)
		},
	}
	opts.addFlags(cmd, "Prefix of the keys to move; it ends in /.")
	return cmd
}

func newKVMergeCommand() *cobra.Command {
	opts := splitOptions{keyspace: server.Workspace}
	cmd := &cobra.Command{
		Use:   "merge --datastore URL --prefix PREFIX",
		Short: "Undo a split",
		Long: `Move a partition's keys back to the keyspace that it was split from, and remove the
partition. The keyspace advances to a revision above all revisions of both, and its
history is compacted: all of its clients list again.

Like a split it is one transaction, and an SQLite server must be stopped.`,
		Example: `  atoll kv merge --datastore sqlite:///var/lib/atoll/atoll.db --prefix /registry/events/`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), "merge", (*server.Datastore).Merge)
		},
	}
	opts.addFlags(cmd, "Prefix of the partition, as shown by atoll kv status.")
	return cmd
}

func (o *splitOptions) addFlags(cmd *cobra.Command, prefixHelp string) {
	flags := cmd.Flags()
	flags.SortFlags = false
	addDatastoreFlag(flags, &o.datastore)
	flags.StringVar(&o.keyspace, "keyspace", o.keyspace, "Name of the keyspace in the datastore.")
	flags.StringVar(&o.prefix, "prefix", "", prefixHelp)
	flags.BoolVar(&o.dryRun, "dry-run", false, "Only print what would be moved.")
}

func (o *splitOptions) run(ctx context.Context, out, progress io.Writer, verb string,
	do func(*server.Datastore, context.Context, string, string, kv.SplitOptions) (*kv.SplitResult, error),
) (err error) {
	if o.datastore, err = datastoreURL(o.datastore); err != nil {
		return err
	}
	if o.prefix == "" {
		return errors.New("no prefix: set --prefix, for example to /registry/events/")
	}
	// Opening for writing would create a missing database.
	probe := location{datastore: o.datastore}
	_, closer, err := probe.toRead(ctx, o.keyspace)
	if err != nil {
		return err
	}
	if err := closer.Close(); err != nil {
		return err
	}
	db, err := server.OpenDatastore(ctx, o.datastore)
	if errors.Is(err, kv.ErrInUse) {
		return fmt.Errorf("%w\nStop the server that has it open, run %s, and start the server again: it detects the change automatically", err, verb)
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
		return fmt.Errorf("%w: run `atoll kv status` to list the keyspaces and partitions of %s", err, db.URL())
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
	fmt.Fprintf(out, "%s: moved %d keys and %d leases to %q, now at revision %d\n", strings.ToUpper(verb[:1])+verb[1:], moved.Keys, moved.Leases, to, moved.Revision)
	return nil
}
