package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/server"
)

func newKVCheckCommand() *cobra.Command {
	var datastore, keyspace string
	cmd := &cobra.Command{
		Use:   "check --datastore URL",
		Short: "Verify the log of keyspaces against their current state",
		Long: `Verify a datastore: the database's own structure, where it supports that; and for each
keyspace, that replaying the log from the compaction revision results in the current
state, and that keys and leases agree.

Every finding is printed, and the exit code is 1 if there are any. The command changes
nothing and can run while servers use the datastore. It reads all data.`,
		Example: `  atoll kv check --datastore sqlite:///var/lib/atoll/atoll.db`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			datastore, err := datastoreURL(datastore)
			if err != nil {
				return err
			}
			return checkDatastore(cmd.Context(), datastore, keyspace, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	addDatastoreFlag(flags, &datastore)
	flags.StringVar(&keyspace, "keyspace", "", "Only this keyspace. The default is all.")
	return cmd
}

func checkDatastore(ctx context.Context, datastore, keyspace string, out, progress io.Writer) (err error) {
	db, err := server.OpenDatastoreReadOnly(ctx, datastore)
	if err != nil {
		return err
	}
	defer func() { err = first(err, db.Close()) }()
	findings := 0
	report := func(finding string) {
		findings++
		fmt.Fprintln(out, finding)
	}
	var names []string
	if keyspace != "" {
		if names, err = withPartitions(ctx, db, keyspace); err != nil {
			return err
		}
	} else {
		if names, err = db.Keyspaces(ctx); err != nil {
			return err
		}
		if c, ok := db.Backend.(kv.Checker); ok {
			fmt.Fprintln(progress, "checking the database ...")
			for _, f := range findingsOf(c.Check(ctx)) {
				report(f.Error())
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	for _, name := range names {
		table, err := openTable(ctx, db, name)
		if err != nil {
			return err
		}
		meter := newMeter(progress, fmt.Sprintf("checking keyspace %q", name), "rows")
		err = inspect.Check(ctx, table, func(done, _ int64) { meter.set(done, 0) },
			func(f string) { report(fmt.Sprintf("keyspace %q: %s", name, f)) })
		meter.stop()
		if err != nil {
			return fmt.Errorf("check keyspace %q: %w", name, err)
		}
	}
	if findings > 0 {
		return fmt.Errorf("%d findings in %s: before writing to this datastore again, restore a backup into another one and compare them", findings, db.URL())
	}
	fmt.Fprintf(out, "checked %s: no findings\n", quoted(names))
	return nil
}

// findingsOf splits joined errors.
func findingsOf(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
