package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/kv/transfer"
	"github.com/atoll-dev/atoll/server"
)

type backupOptions struct {
	location
	keyspaces []string
	file      string
	overwrite bool
	compress  string
}

func newKVBackupCommand() *cobra.Command {
	opts := backupOptions{compress: "gzip"}
	cmd := &cobra.Command{
		Use:   "backup --datastore URL --to FILE",
		Short: "Back up keyspaces to a file, while they are in use",
		Long: `Back up keyspaces, each at one revision, to a file that 'atoll kv restore' restores into
any datastore. Servers keep running. The file is checksummed, readable only by its owner,
and appears only when it is complete. It does not contain history.`,
		Example: `  # All keyspaces of a datastore
  atoll kv backup --datastore sqlite:///var/lib/atoll/atoll.db --to /backup/atoll-$(date +%F)

  # An etcd, or a server run with 'atoll kv serve'
  atoll kv backup --endpoint http://127.0.0.1:2379 --to /backup/etcd`,
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
	opts.addFlags(flags)
	flags.StringSliceVar(&opts.keyspaces, "keyspace", nil, "Only these keyspaces of the datastore. The default is all.")
	flags.StringVar(&opts.file, "to", "", "File to write.")
	flags.BoolVar(&opts.overwrite, "overwrite", false, "Replace the file if it exists.")
	flags.StringVar(&opts.compress, "compress", opts.compress, "Compression: gzip or none.")
	return cmd
}

func (o *backupOptions) check() error {
	switch {
	case o.file == "":
		return errors.New("no output file: set --to")
	case o.compress != "gzip" && o.compress != "none":
		return fmt.Errorf("invalid --compress %q: must be gzip or none", o.compress)
	case o.endpoint != "" && len(o.keyspaces) > 1:
		return errors.New("several --keyspace values: an endpoint serves only one keyspace, and --keyspace sets its name in the backup")
	}
	return o.location.check()
}

func (o *backupOptions) run(ctx context.Context, out, progress io.Writer) (err error) {
	parts, closer, err := o.parts(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	meter := newMeter(progress, "back up", "keys")
	defer meter.stop()
	var sections []transfer.Section
	err = transfer.CreateFile(o.file, o.overwrite, func(w io.Writer) error {
		var err error
		sections, err = transfer.Backup(ctx, w, parts, transfer.BackupOptions{
			Plain: o.compress == "none", Created: time.Now(), Progress: meterProgress(meter),
		})
		return err
	})
	if err != nil {
		return err
	}
	meter.stop()
	fi, err := os.Stat(o.file)
	if err != nil {
		return err
	}
	for _, s := range sections {
		fmt.Fprintf(out, "keyspace %q backed up at revision %d: %d keys, %s, %d leases\n", s.Name, s.Revision, s.Keys, bytesText(s.Bytes), len(s.Leases))
	}
	for _, p := range parts {
		if w, ok := p.Source.(*inspect.PartitionedReader); ok {
			fmt.Fprintf(out, "keyspace %q: the backup includes its %d partitions. A restored keyspace has no partitions; split it again if necessary\n", p.Name, w.Partitions())
		}
	}
	fmt.Fprintf(out, "%s: %s\n", o.file, bytesText(fi.Size()))
	return nil
}

func (o *backupOptions) parts(ctx context.Context) ([]transfer.Part, io.Closer, error) {
	if o.endpoint != "" {
		client, err := o.openEndpoint(ctx)
		if err != nil {
			return nil, nil, err
		}
		name := server.Workspace
		if len(o.keyspaces) > 0 {
			name = o.keyspaces[0]
		}
		return []transfer.Part{{Name: name, Source: etcd.Remote(client)}}, client, nil
	}
	db, err := server.OpenDatastoreReadOnly(ctx, o.datastore)
	if err != nil {
		return nil, nil, err
	}
	names := o.keyspaces
	if len(names) == 0 {
		if names, err = db.Keyspaces(ctx); err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		names = withoutPartitions(names) // they are included in their keyspaces
	}
	var parts []transfer.Part
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		source, err := openWhole(ctx, db, name)
		if err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		parts = append(parts, transfer.Part{Name: name, Source: source})
	}
	return parts, db, nil
}
