package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/transfer"
	"github.com/atoll-dev/atoll/server"
)

type copyOptions struct {
	from, to                   side
	existing                   existingFlags
	prefix                     string
	follow, dryRun, verifyOnly bool
	bump                       int64
}

func newKVCopyCommand() *cobra.Command {
	opts := copyOptions{
		from: side{flag: "from", keyspace: server.Workspace}, to: side{flag: "to", keyspace: server.Workspace},
		bump: defaultBump,
	}
	cmd := &cobra.Command{
		Use:   "copy --from URL --to URL",
		Short: "Copy a live keyspace, from or to etcd or a datastore",
		Long: `Copy the state of a live keyspace at one revision into another, compare the two,
and with --follow go on copying every change until interrupted.

Each side is an etcd server or 'atoll kv serve' (etcd://host:port, or
etcds://host:port with TLS; several hosts separated by commas), or a datastore
(sqlite:///path/to/file.db). A source datastore may be in use by servers.
Leases are granted in the target under their ids, with their full time to live.

A copy that was interrupted is finished by running it again with --mirror.

The target numbers its changes itself: revisions, and so the resource versions
of Kubernetes, differ from the source's. A new keyspace in a datastore begins
--bump revisions above the source, so they never go back, and clients that go on
from an old one are told to list again. In an etcd that cannot be arranged:
restart its clients after the move.`,
		Example: `  # Move a cluster's etcd into a datastore: copy and follow, stop the API servers, wait for
  # "0 behind", interrupt, compare, and start the API servers on the new one
  atoll kv copy --from etcds://10.0.0.1:2379 --from-cacert ca.crt --from-cert client.crt --from-key client.key \
    --to sqlite:///var/lib/kv/kv.db --follow
  atoll kv copy --from etcds://10.0.0.1:2379 … --to sqlite:///var/lib/kv/kv.db --verify-only

  # And back
  atoll kv copy --from sqlite:///var/lib/kv/kv.db --to etcd://127.0.0.1:2379`,
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
	flags.StringVar(&opts.from.url, "from", "", "Where to copy from: etcd://host:port, etcds://host:port or a datastore's URL.")
	flags.StringVar(&opts.to.url, "to", "", "Where to copy to: the same.")
	flags.StringVar(&opts.from.keyspace, "from-keyspace", opts.from.keyspace, "Name of the keyspace in the datastore of --from.")
	flags.StringVar(&opts.to.keyspace, "to-keyspace", opts.to.keyspace, "Name of the keyspace in the datastore of --to; it is made if it is new.")
	flags.StringVar(&opts.prefix, "prefix", "", "Only keys that begin so.")
	flags.BoolVar(&opts.follow, "follow", false, "After the copy, apply every change of the source to the target until interrupted.")
	opts.existing.addFlags(flags)
	flags.BoolVar(&opts.dryRun, "dry-run", false, "Only say what would be done.")
	flags.BoolVar(&opts.verifyOnly, "verify-only", false, "Copy nothing, only compare both sides as they are now.")
	flags.Int64Var(&opts.bump, "bump", opts.bump, "How far above the source's revision a new keyspace in a datastore begins; -1 leaves it at its own.")
	opts.from.addTLSFlags(flags)
	opts.to.addTLSFlags(flags)
	return cmd
}

func (o *copyOptions) check() error {
	for _, s := range []*side{&o.from, &o.to} {
		if err := s.check(); err != nil {
			return err
		}
	}
	if o.from.url == o.to.url && (o.from.remote() || o.from.keyspace == o.to.keyspace) {
		return errors.New("--from and --to name the same keyspace")
	}
	if o.follow && (o.dryRun || o.verifyOnly) {
		return errors.New("--follow goes with neither --dry-run nor --verify-only")
	}
	_, err := o.existing.mode()
	return err
}

func (o *copyOptions) run(ctx context.Context, out, progress io.Writer) (err error) {
	mode, err := o.existing.mode()
	if err != nil {
		return err
	}
	from, closeFrom, err := o.from.openSource(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeFrom.Close()) }()
	st, err := from.Status(ctx)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	to, err := o.openTo(ctx, st.Revision)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()

	meter := newMeter(progress, "look at both sides", "keys")
	defer meter.stop()
	opts := transfer.Options{Existing: mode, DryRun: o.dryRun, Progress: meterProgress(meter)}
	if o.prefix != "" {
		opts.Span = kv.Prefix([]byte(o.prefix))
	}
	at := kv.Revision(0)
	if !o.verifyOnly {
		res, err := transfer.Copy(ctx, from, to, opts)
		if err != nil {
			return interrupted(ctx, explain(err))
		}
		reportCopied(out, res, o.dryRun)
		at = res.Source
	}
	if o.dryRun {
		return nil
	}
	compared, err := transfer.Verify(ctx, from, at, to, opts)
	if err != nil {
		return interrupted(ctx, err)
	}
	meter.stop()
	if err := reportVerified(out, compared); err != nil || !o.follow {
		return err
	}
	return o.followOn(ctx, from, to, at, opts, out, progress)
}

// openTo opens the target; for a look only, so that it stays as it is, if
// nothing is going to be written.
func (o *copyOptions) openTo(ctx context.Context, source kv.Revision) (*targetSide, error) {
	if (o.dryRun || o.verifyOnly) && !o.to.remote() {
		to, closer, err := o.to.openSource(ctx)
		var noKeyspace *noKeyspaceError
		if o.dryRun && (errors.Is(err, fs.ErrNotExist) || errors.As(err, &noKeyspace)) {
			return &targetSide{Keyspace: readOnly{source: empty{}}}, nil // it would be made
		}
		if err != nil {
			return nil, err
		}
		return &targetSide{Keyspace: readOnly{source: to}, closers: []io.Closer{closer}}, nil
	}
	raise := kv.Revision(0)
	if o.bump >= 0 {
		raise = source + o.bump
	}
	return o.to.openTarget(ctx, raise)
}

// readOnly is a keyspace whose other methods nobody calls.
type readOnly struct {
	kv.Keyspace
	source source
}

func (r readOnly) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	return r.source.Range(ctx, req)
}

func (r readOnly) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	return r.source.TimeToLive(ctx, id, withKeys)
}

// empty is a keyspace that is not there yet.
type empty struct{ source }

func (empty) Range(context.Context, kv.RangeRequest) (*kv.RangeResult, error) {
	return &kv.RangeResult{Revision: 1}, nil
}

func reportCopied(out io.Writer, res *transfer.Result, dryRun bool) {
	if dryRun {
		fmt.Fprintf(out, "would copy %d keys (%s): %d to put, %d equal already, %d to delete (dry run)\n",
			res.Keys, bytesText(res.Bytes), res.Put, res.Equal, res.Deleted)
		return
	}
	fmt.Fprintf(out, "copied %d keys (%s) and %d leases: %d put, %d equal already, %d deleted\n",
		res.Keys, bytesText(res.Bytes), res.Leases, res.Put, res.Equal, res.Deleted)
	fmt.Fprintf(out, "revision %d of the source is revision %d of the target: resource versions differ\n", res.Source, res.Target)
}

// followOn applies changes until ctx ends, and says now and then how far it is.
func (o *copyOptions) followOn(ctx context.Context, from source, to kv.Keyspace, at kv.Revision, opts transfer.Options, out, progress io.Writer) error {
	fmt.Fprintf(out, "following from revision %d on; interrupt to stop\n", at)
	terminal := onTerminal(progress)
	interval := lineInterval
	if terminal {
		interval = time.Second
	}
	var changes int64
	var said time.Time
	heard := transfer.FollowHooks{
		Applied: func(rev kv.Revision, events int) {
			changes += int64(events)
			if time.Since(said) < interval {
				return
			}
			said = time.Now()
			// A source that does not answer now is the follower's to report.
			behind := "?"
			if st, err := from.Status(ctx); err == nil {
				behind = fmt.Sprint(max(st.Revision-rev, 0))
			}
			start, end := "", "\n"
			if terminal {
				start, end = "\r\x1b[K", ""
			}
			fmt.Fprintf(progress, "%sat revision %d of the source, %s behind, %d changes applied%s", start, rev, behind, changes, end)
		},
		Restarted: func(res *transfer.Result) {
			fmt.Fprintf(progress, "\nfell behind the source's compaction; copied again: %d put, %d deleted\n", res.Put, res.Deleted)
		},
		Interrupted: func(err error) { fmt.Fprintf(progress, "\ntrying again: %v\n", err) },
	}
	rev, err := transfer.Follow(ctx, from, to, at, opts, heard)
	if terminal {
		fmt.Fprintln(progress)
	}
	if err != nil {
		return fmt.Errorf("%w\nThe target has everything up to revision %d of the source; run it again with --mirror to go on", err, rev)
	}
	fmt.Fprintf(out, "stopped: the target has everything up to revision %d of the source (%d changes followed)\n", rev, changes)
	return nil
}

// interrupted says how to go on after an interrupt.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted: the target has a part; run it again with --mirror to finish, which leaves alone what is equal already")
	}
	return err
}
