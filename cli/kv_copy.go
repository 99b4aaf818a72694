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
		Long: `Copy the state of a live keyspace at one revision to another keyspace, and compare the
two. With --follow, continue to copy every change until interrupted.

Each side is an etcd server or 'atoll kv serve' (etcd://host:port, or etcds://host:port
with TLS; several hosts separated by commas), or a datastore (sqlite:///path/to/file.db).
Servers may be using a source datastore. Leases are granted in the target with the same
IDs and their full time to live.

To finish an interrupted copy, run it again with --mirror.

The target assigns its own revisions, so revisions and Kubernetes' resource versions differ
from the source's. A new keyspace in a datastore begins --bump revisions above the source:
revisions never go back, and clients that resume from an old one are told to list again.
An etcd does not support that: restart its clients after the move.`,
		Example: `  # Move a cluster's etcd to a datastore: copy and follow, stop the API servers, wait for
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
	flags.StringVar(&opts.to.url, "to", "", "Where to copy to, in the same form. The default is $"+DatastoreVariable+". Use that for a URL with a password.")
	flags.StringVar(&opts.from.keyspace, "from-keyspace", opts.from.keyspace, "Name of the keyspace in the datastore of --from.")
	flags.StringVar(&opts.to.keyspace, "to-keyspace", opts.to.keyspace, "Name of the keyspace in the datastore of --to; it is created if it does not exist.")
	flags.StringVar(&opts.prefix, "prefix", "", "Only keys with this prefix.")
	flags.BoolVar(&opts.follow, "follow", false, "After the copy, apply every change of the source to the target until interrupted.")
	opts.existing.addFlags(flags)
	flags.BoolVar(&opts.dryRun, "dry-run", false, "Only print what would be done.")
	flags.BoolVar(&opts.verifyOnly, "verify-only", false, "Copy nothing; only compare the current state of both sides.")
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
		return errors.New("--from and --to are the same keyspace")
	}
	if o.follow && (o.dryRun || o.verifyOnly) {
		return errors.New("--follow cannot be used with --dry-run or --verify-only")
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

	meter := newMeter(progress, "compare both sides", "keys")
	defer meter.stop()
	opts := transfer.Options{Existing: mode, DryRun: o.dryRun, Progress: meterProgress(meter)}
	if o.prefix != "" {
		opts.Span = kv.Prefix([]byte(o.prefix))
	}
	at := kv.Revision(0)
	if !o.verifyOnly {
		if !o.dryRun {
			if err := to.begin(ctx, mode, server.Incomplete{What: "a copy of another keyspace",
				Remedy: "atoll kv copy --from SOURCE --to " + shellWord(to.place()) + " --to-keyspace " + o.to.keyspace + " --mirror"}); err != nil {
				return err
			}
		}
		res, err := transfer.Copy(ctx, from, to, opts)
		if err != nil {
			return interrupted(ctx, explainNotEmpty(err))
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
	if err := reportVerified(out, compared); err != nil {
		return err
	}
	if err := to.end(ctx); err != nil || !o.follow {
		return err
	}
	return o.followOn(ctx, from, to, at, opts, out, progress)
}

// openTo opens the target. If nothing is going to be written, it opens the target
// read-only, so that it does not change.
func (o *copyOptions) openTo(ctx context.Context, source kv.Revision) (*targetSide, error) {
	if (o.dryRun || o.verifyOnly) && !o.to.remote() {
		to, closer, err := o.to.openSource(ctx)
		var noKeyspace *noKeyspaceError
		if o.dryRun && (errors.Is(err, fs.ErrNotExist) || errors.As(err, &noKeyspace)) {
			return &targetSide{Keyspace: readOnly{source: empty{}}}, nil // it would be created
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

// readOnly is a keyspace of which only the read methods are called.
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

// empty is a keyspace that does not exist yet.
type empty struct{ source }

func (empty) Range(context.Context, kv.RangeRequest) (*kv.RangeResult, error) {
	return &kv.RangeResult{Revision: 1}, nil
}

func reportCopied(out io.Writer, res *transfer.Result, dryRun bool) {
	if dryRun {
		fmt.Fprintf(out, "would copy %d keys (%s): %d to put, %d already equal, %d to delete (dry run)\n",
			res.Keys, bytesText(res.Bytes), res.Put, res.Equal, res.Deleted)
		return
	}
	fmt.Fprintf(out, "copied %d keys (%s) and %d leases: %d put, %d already equal, %d deleted\n",
		res.Keys, bytesText(res.Bytes), res.Leases, res.Put, res.Equal, res.Deleted)
	fmt.Fprintf(out, "revision %d of the source is revision %d of the target: resource versions differ\n", res.Source, res.Target)
}

// followOn applies changes until ctx ends, and prints its progress.
func (o *copyOptions) followOn(ctx context.Context, from source, to kv.Keyspace, at kv.Revision, opts transfer.Options, out, progress io.Writer) error {
	fmt.Fprintf(out, "following from revision %d on; interrupt to stop\n", at)
	terminal := onTerminal(progress)
	interval := lineInterval
	if terminal {
		interval = time.Second
	}
	var changes int64
	var lastReport time.Time
	follower := transfer.FollowHooks{
		Applied: func(rev kv.Revision, events int) {
			changes += int64(events)
			if time.Since(lastReport) < interval {
				return
			}
			lastReport = time.Now()
			// If the source does not respond, the follower reports it.
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
			fmt.Fprintf(progress, "\nthe source was compacted beyond the current revision; copied again: %d put, %d deleted\n", res.Put, res.Deleted)
		},
		Interrupted: func(err error) { fmt.Fprintf(progress, "\nretrying: %v\n", err) },
	}
	rev, err := transfer.Follow(ctx, from, to, at, opts, follower)
	if terminal {
		fmt.Fprintln(progress)
	}
	if err != nil {
		return fmt.Errorf("%w\nThe target has everything up to revision %d of the source; run it again with --mirror to continue", err, rev)
	}
	fmt.Fprintf(out, "stopped: the target has everything up to revision %d of the source (%d changes followed)\n", rev, changes)
	return nil
}

// interrupted returns the error for an interrupted copy, with the next step.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted: the target has a part of the keys. Run it again with --mirror to finish; keys that are already equal are not copied again")
	}
	return err
}
