package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/transfer"
	"github.com/atoll-dev/atoll/server"
)

type restoreOptions struct {
	file      string
	to        side
	keyspaces []string
	existing  existingFlags
	dryRun    bool
	bump      int64
}

func newKVRestoreCommand() *cobra.Command {
	opts := restoreOptions{to: side{flag: "to"}, bump: defaultBump}
	cmd := &cobra.Command{
		Use:   "restore --from FILE --to URL",
		Short: "Restore keyspaces from a backup",
		Long: `Restore keyspaces from a file that 'atoll kv backup' wrote. The whole file is verified
before anything is written, and the restored data is compared with it afterwards.

For clients that know newer revisions than the backup's, revisions must not go back. So a
restored keyspace begins --bump revisions above the backup and counts as compacted there:
every client that resumes from an old revision is told to list again. The number must
exceed the revisions created since the backup; the default is ample.`,
		Example: `  # Show the contents
  atoll kv restore --from /backup/atoll-2026-11-21 --to sqlite:///var/lib/atoll/new.db --dry-run

  # Restore into a new database; the server must be stopped
  atoll kv restore --from /backup/atoll-2026-11-21 --to sqlite:///var/lib/atoll/new.db`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(); err != nil {
				return err
			}
			return opts.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&opts.file, "from", "", "Backup file.")
	flags.StringVar(&opts.to.url, "to", "", "URL of the datastore, such as sqlite:///path/to/file.db, or an etcd server: etcd://host:port. The default is $"+DatastoreVariable+". Use that for a URL with a password.")
	flags.StringSliceVar(&opts.keyspaces, "keyspace", nil, "Only these keyspaces of the backup. The default is all.")
	opts.existing.addFlags(flags)
	flags.Int64Var(&opts.bump, "bump", opts.bump, "How far above the backup's revision a restored keyspace begins; -1 keeps the backup's revision, and requires that clients are restarted.")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "Only verify the file and print its contents.")
	opts.to.addTLSFlags(flags)
	return cmd
}

func (o *restoreOptions) check() error {
	if o.file == "" {
		return errors.New("no backup file: set --from")
	}
	if _, err := o.existing.mode(); err != nil {
		return err
	}
	return o.to.check()
}

func (o *restoreOptions) run(ctx context.Context, out, progress io.Writer) (err error) {
	meter := newMeter(progress, "read "+o.file, "keys")
	defer meter.stop()
	a, err := transfer.OpenArchive(ctx, o.file, meterProgress(meter))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	var sections []*transfer.Section
	for i := range a.Sections {
		if len(o.keyspaces) == 0 {
			sections = append(sections, &a.Sections[i])
		}
	}
	for _, name := range o.keyspaces {
		s, err := a.Section(name)
		if err != nil {
			return err
		}
		sections = append(sections, s)
	}
	fmt.Fprintf(out, "%s is valid, created %s\n", o.file, a.Created.Format(time.RFC3339))
	for _, s := range sections {
		fmt.Fprintf(out, "keyspace %q at revision %d: %d keys, %s, %d leases\n", s.Name, s.Revision, s.Keys, bytesText(s.Bytes), len(s.Leases))
	}
	if o.dryRun {
		return nil
	}
	if o.to.remote() {
		if err := o.checkRemote(ctx, sections); err != nil {
			return err
		}
	}
	for _, s := range sections {
		if err := o.restore(ctx, a, s, meter, out); err != nil {
			return fmt.Errorf("restore keyspace %q: %w", s.Name, err)
		}
	}
	return nil
}

// checkRemote returns an error for an etcd in which revisions would go back.
func (o *restoreOptions) checkRemote(ctx context.Context, sections []*transfer.Section) error {
	if len(sections) != 1 {
		return errors.New("the backup has several keyspaces and an etcd holds only one: select it with --keyspace")
	}
	if o.bump < 0 {
		return nil
	}
	t, err := o.to.openTarget(ctx, 0)
	if err != nil {
		return err
	}
	st, err := t.Status(ctx)
	if err = errors.Join(err, t.Close()); err != nil {
		return err
	}
	if s := sections[0]; st.Revision <= s.Revision {
		return fmt.Errorf("the etcd is at revision %d and the backup at %d: its revision cannot be raised over etcd's protocol, "+
			"so it would go back for its clients. Stop all clients and use --bump -1", st.Revision, s.Revision)
	}
	return nil
}

func (o *restoreOptions) restore(ctx context.Context, a *transfer.Archive, s *transfer.Section, meter *meter, out io.Writer) (err error) {
	mode, err := o.existing.mode()
	if err != nil {
		return err
	}
	raise := kv.Revision(0)
	if o.bump >= 0 {
		raise = s.Revision + o.bump
	}
	to := o.to
	to.keyspace = s.Name
	dst, err := to.openTarget(ctx, raise)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if err := dst.begin(ctx, mode, server.Incomplete{What: "a restore from " + o.file,
		Remedy: "atoll kv restore --from " + shellWord(o.file) + " --to " + shellWord(dst.place()) + " --mirror"}); err != nil {
		return err
	}
	opts := transfer.Options{Existing: mode, Progress: meterProgress(meter)}
	res, err := transfer.Restore(ctx, a, s, dst, opts)
	if err != nil {
		return interrupted(ctx, explainNotEmpty(err))
	}
	fmt.Fprintf(out, "keyspace %q restored: %d put, %d already equal, %d deleted; now at revision %d\n", s.Name, res.Put, res.Equal, res.Deleted, res.Target)
	compared, err := transfer.VerifyRestore(ctx, a, s, dst, opts)
	if err != nil {
		return interrupted(ctx, err)
	}
	if err := reportVerified(out, compared); err != nil {
		return err
	}
	return dst.end(ctx)
}
