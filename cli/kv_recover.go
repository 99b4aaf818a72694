package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/kv/transfer"
	"github.com/atoll-dev/atoll/server"
)

type recoverOptions struct {
	datastore string
	keyspaces []string
	all       bool
	bump      int64
	dryRun    bool
}

func newKVRecoverCommand() *cobra.Command {
	opts := recoverOptions{bump: defaultBump}
	cmd := &cobra.Command{
		Use:   "recover --datastore URL (--keyspace NAME | --all)",
		Short: "Recover a database that has lost acknowledged writes",
		Long: `Recover a database that has lost acknowledged writes: a lagging standby was promoted,
the database was restored to an earlier point in time, or the files of an SQLite database are
damaged. Servers that detect this refuse to serve (` + "`database is behind what it acknowledged`" + `) or to
start (` + "`database is damaged`" + `).

Damaged files are kept under other names. The database gets the state of the last commit before the
damage, which is checked completely, and the lost revisions are printed. If the damaged part is not needed,
nothing is lost. This requires space for a second copy of the database.

If the former primary can be brought back, do that instead: then nothing is lost. This
command accepts the loss. It keeps the remaining data. For each keyspace,

  - the revision advances by --bump, beyond every revision that any server can have
    returned, so that no revision is used for two different changes;
  - the history up to there counts as compacted, so every client that resumes from an
    older revision is told to list again, as Kubernetes clients do automatically;
  - its identity changes, so servers that remember the lost history refuse to serve until
    they are restarted.

Stop all servers of the database first, and start them afterwards: it is refused while
servers of a PostgreSQL are alive. Also restart clients that keep revisions and do not list
again after a compaction.`,
		Example: `  # Show the current state, and what would be done
  atoll kv recover --datastore postgres://atoll@db.example.com/atoll --all --dry-run

  # Recover
  atoll kv recover --datastore postgres://atoll@db.example.com/atoll --all`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(); err != nil {
				return err
			}
			return opts.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	addDatastoreFlag(flags, &opts.datastore)
	flags.StringSliceVar(&opts.keyspaces, "keyspace", nil, "Only these keyspaces.")
	flags.BoolVar(&opts.all, "all", false, "All keyspaces of the datastore.")
	flags.Int64Var(&opts.bump, "bump", opts.bump, "How many revisions to advance: more than were created since the point in time that the database was restored to.")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "Only print the current state and what would be done.")
	return cmd
}

// maxBump keeps revisions far from the end of their range.
const maxBump = 1 << 52

func (o *recoverOptions) check() (err error) {
	switch {
	case o.all && len(o.keyspaces) > 0:
		return errors.New("--all and --keyspace are mutually exclusive")
	case !o.all && len(o.keyspaces) == 0:
		return errors.New("no keyspace: set --keyspace or --all. If the whole database was restored, all keyspaces are affected")
	case o.bump < 1 || o.bump > maxBump:
		return fmt.Errorf("--bump %d is out of range: must be from 1 to %d", o.bump, int64(maxBump))
	}
	o.datastore, err = datastoreURL(o.datastore)
	return err
}

func (o *recoverOptions) run(ctx context.Context, out io.Writer) (err error) {
	if done, err := o.repair(ctx, out); err != nil || done {
		return err
	}
	if err := o.preview(ctx, out); err != nil || o.dryRun {
		return err
	}
	db, err := server.OpenDatastoreToRecover(ctx, o.datastore, false)
	if err != nil {
		return explainInUse(err, "it cannot be recovered: stop it")
	}
	defer func() { err = first(err, db.Close()) }()
	shown := o.keyspaces
	if o.all {
		// With those about the datastore itself, which may lack something too.
		if o.keyspaces, err = db.Backend.Keyspaces(ctx); err != nil {
			return err
		}
	}
	for _, name := range o.keyspaces {
		table, err := db.Open(ctx, name)
		if err != nil {
			return err
		}
		to, err := transfer.Recover(ctx, table, o.bump)
		if errors.Is(err, kv.ErrUnknownOutcome) {
			return fmt.Errorf("recover keyspace %q: %w\nIt is safe to run it again: revisions then advance once more", name, err)
		}
		if err != nil {
			return fmt.Errorf("recover keyspace %q: %w", name, err)
		}
		if slices.Contains(shown, name) {
			fmt.Fprintf(out, "keyspace %q recovered at revision %d\n", name, to)
		}
	}
	fmt.Fprintln(out, "start the servers of this database")
	return nil
}

// repair repairs damaged files. It reports whether nothing remains to be done.
func (o *recoverOptions) repair(ctx context.Context, out io.Writer) (done bool, err error) {
	found, err := server.RepairDatastore(ctx, o.datastore, o.dryRun || !o.all)
	if err != nil || found == nil {
		return false, explainInUse(err, "it cannot be recovered: stop it")
	}
	if !o.all {
		return false, errors.New("the files of the database are damaged, which affects all keyspaces: use --all")
	}
	fmt.Fprintln(out, found.Damage)
	for _, kept := range found.Kept {
		fmt.Fprintf(out, "kept the damaged file as %s\n", kept)
	}
	if found.Complete {
		fmt.Fprintln(out, "nothing is lost: the damaged part of the log was no longer needed")
	} else {
		fmt.Fprintln(out, "the commits after the damage are lost:")
		w := newTable(out)
		fmt.Fprintln(w, "KEYSPACE\tREVISION\tLOST UP TO")
		for _, k := range found.Keyspaces {
			last := "unknown"
			switch {
			case k.Last == k.Revision:
				last = "<none>"
			case k.Last > 0:
				last = fmt.Sprint(k.Last)
			}
			fmt.Fprintf(w, "%s\t%d\t%s\n", k.Name, k.Revision, last)
		}
		if err := w.Flush(); err != nil {
			return false, err
		}
	}
	switch {
	case o.dryRun:
		fmt.Fprintln(out, "nothing was changed (dry run)")
	case found.Complete:
		fmt.Fprintln(out, "start the server of this database")
	}
	return o.dryRun || found.Complete, nil
}

// preview prints the state of the keyspaces and what is going to happen. It fills in
// their names.
func (o *recoverOptions) preview(ctx context.Context, out io.Writer) (err error) {
	db, err := server.OpenDatastoreToRecover(ctx, o.datastore, true)
	if err != nil {
		return err
	}
	defer func() { err = first(err, db.Close()) }()
	if o.all {
		o.keyspaces, err = db.Keyspaces(ctx)
	} else {
		// Partitions are affected like their keyspace.
		var all, parts []string
		for _, name := range o.keyspaces {
			if parts, err = withPartitions(ctx, db, name); err != nil {
				break
			}
			all = append(all, parts...)
		}
		o.keyspaces = all
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s:\n", db.URL())
	w := newTable(out)
	fmt.Fprintln(w, "KEYSPACE\tREVISION\tCOMPACTED\tKEYS\tNEW REVISION")
	for _, name := range o.keyspaces {
		table, err := openTable(ctx, db, name)
		if err != nil {
			return err
		}
		head, err := table.Head(ctx)
		if err != nil {
			return err
		}
		keys, err := inspect.NewReader(table, db, clock.RealClock{}).Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), CountOnly: true})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", name, head.Revision, head.Compacted, keys.Count, head.Revision+o.bump)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if o.dryRun {
		fmt.Fprintln(out, "nothing was changed (dry run). The errors of servers that refuse to serve have their last known revision: the changes between that and the current revision are lost")
	}
	return nil
}
