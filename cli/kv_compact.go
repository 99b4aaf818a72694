package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/server"
)

// sweepStep is how many rows of the log one transaction deletes.
const sweepStep = 1000

type compactOptions struct {
	location
	keyspace         string
	revision, keep   int64
	physical, dryRun bool
}

func newKVCompactCommand() *cobra.Command {
	opts := compactOptions{keyspace: server.Workspace, keep: -1}
	cmd := &cobra.Command{
		Use:   "compact --datastore URL (--revision R | --keep-revisions N)",
		Short: "Compact the history of a keyspace",
		Long: `Compact the history of a keyspace before a revision. The state at that revision and all
later changes are kept; reads and watches of older revisions fail.

A running Atoll server or kube-apiserver compacts automatically every few minutes. If a
server has an SQLite database open, compact it through the server, with --endpoint.`,
		Example: `  # Show what would be dropped
  atoll kv compact --datastore sqlite:///var/lib/kv/kv.db --keep-revisions 1000 --dry-run

  # Compact, and wait until the space is freed
  atoll kv compact --datastore sqlite:///var/lib/kv/kv.db --keep-revisions 1000 --physical`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(); err != nil {
				return err
			}
			return opts.compactAll(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	opts.addFlags(flags)
	flags.StringVar(&opts.keyspace, "keyspace", opts.keyspace, "Name of the keyspace in the datastore.")
	flags.Int64Var(&opts.revision, "revision", 0, "Revision to compact at.")
	flags.Int64Var(&opts.keep, "keep-revisions", opts.keep, "Compact at the current revision less this many.")
	flags.BoolVar(&opts.physical, "physical", false, "Wait until the space has been freed. By default a server frees it later.")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "Only print what would be dropped.")
	return cmd
}

func (o *compactOptions) check() error {
	switch {
	case o.revision <= 0 && o.keep < 0:
		return errors.New("no revision: set --revision or --keep-revisions")
	case o.revision > 0 && o.keep >= 0:
		return errors.New("--revision and --keep-revisions are mutually exclusive")
	}
	return o.location.check()
}

func (o *compactOptions) run(ctx context.Context, out, progress io.Writer) (err error) {
	ks, closer, err := o.toRead(ctx, o.keyspace)
	if err != nil {
		return err
	}
	st, err := ks.Status(ctx)
	if err != nil {
		return errors.Join(err, closer.Close())
	}
	rev := o.revision
	if o.keep >= 0 {
		rev = st.Revision - o.keep
	}
	switch {
	case rev > st.Revision:
		err = fmt.Errorf("compact at revision %d: %w: the keyspace is at %d", rev, kv.ErrFutureRevision, st.Revision)
	case rev <= st.Compacted && o.keep >= 0:
		fmt.Fprintf(out, "nothing to compact: at revision %d, already compacted at %d\n", st.Revision, st.Compacted)
		return closer.Close()
	case rev <= st.Compacted:
		err = fmt.Errorf("compact at revision %d: %w: already compacted at %d", rev, kv.ErrCompacted, st.Compacted)
	case o.dryRun:
		var g inspect.Garbage
		if g, err = inspect.Reclaimable(ctx, ks, st.Compacted, rev); err == nil {
			fmt.Fprintf(out, "would compact revisions %d to %d: drops %d past versions and deletions, %s of keys and values (dry run)\n",
				st.Compacted, rev, g.Changes, bytesText(g.Bytes))
		}
	}
	if err != nil || o.dryRun {
		return errors.Join(err, closer.Close())
	}
	if err := closer.Close(); err != nil {
		return err
	}
	if err := o.compact(ctx, rev, progress); err != nil {
		return err
	}
	fmt.Fprintf(out, "compacted at revision %d\n", rev)
	return nil
}

func (o *compactOptions) compact(ctx context.Context, rev int64, progress io.Writer) (err error) {
	if o.endpoint != "" {
		client, err := o.openEndpoint(ctx)
		if err != nil {
			return err
		}
		if o.physical {
			fmt.Fprintln(progress, "compacting, and waiting until the server has freed the space ...")
		}
		_, err = etcd.Remote(client).Compact(ctx, rev, o.physical)
		return errors.Join(err, client.Close())
	}
	table, db, err := o.toWrite(ctx, o.keyspace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := table.SetCompacted(ctx, rev); err != nil {
		return err
	}
	if !o.physical {
		return nil
	}
	meter := newMeter(progress, "freeing space", "steps")
	defer meter.stop()
	for more := true; more; meter.add(1, 0) {
		if more, err = table.Sweep(ctx, sweepStep); err != nil {
			return fmt.Errorf("compacted at revision %d, but not all space was freed: %w (a server continues when it starts)", rev, err)
		}
	}
	return nil
}
