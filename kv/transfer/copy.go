package transfer

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
)

// passes is the maximum number of attempts of a copy whose revision the source compacts
// meanwhile.
const passes = 5

// Options are the options of a copy.
type Options struct {
	// Span of the keys to copy; the zero value means all.
	Span     kv.Span
	Existing Existing
	// Change returns a key of the source as the target gets it, or keep false if the target does not get it. It does not change the key
	// itself. nil changes nothing. Only Copy and Restore call it.
	Change func(ctx context.Context, e kv.KeyValue) (changed kv.KeyValue, keep bool, err error)
	// DryRun counts the changes and writes nothing.
	DryRun   bool
	Progress ProgressHooks
	// Clock for pauses; the real one if nil.
	Clock clock.Clock
}

func (o *Options) fill() {
	if len(o.Span.Start) == 0 {
		o.Span = kv.Prefix(nil)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
}

// Result describes a completed copy.
type Result struct {
	// Source and Target are the revisions at which the two are equal, provided that no one
	// else wrote to the target. Target is 0 after a dry run.
	Source, Target kv.Revision
	// Keys and Bytes of the source.
	Keys, Bytes int64
	// Put, Deleted and Equal count the keys written, deleted and left unchanged in the
	// target.
	Put, Deleted, Equal int64
	Leases              int
}

// Copy copies the state of src at one revision into dst. No one else may write the same
// keys to dst meanwhile. If it fails or is interrupted, dst has a part of the keys; copying
// again with Mirror completes it.
// Errors: *NotEmptyError.
func Copy(ctx context.Context, src SourceReader, dst kv.Keyspace, opts Options) (*Result, error) {
	opts.fill()
	c := &copier{src: src, dst: dst, Options: opts, leases: newLeases(dst, leaseTTL(src))}
	return c.copy(ctx)
}

type copier struct {
	Options
	src    SourceReader
	dst    kv.Keyspace
	leases *leases
}

func (c *copier) copy(ctx context.Context) (*Result, error) {
	existing, at, err := count(ctx, c.dst, c.Span)
	if err != nil {
		return nil, fmt.Errorf("read the target: %w", err)
	}
	if existing > 0 && c.Existing == Refuse {
		return nil, &NotEmptyError{existing}
	}
	mode := c.Existing
	for pass := 1; ; pass++ {
		there := keys(noKeys)
		if existing > 0 {
			there = scan(ctx, c.dst, c.Span, at)
		}
		res, err := c.pass(ctx, there, mode)
		if err == nil || !errors.Is(err, kv.ErrCompacted) {
			return res, err
		}
		if mode == Merge || pass == passes {
			return nil, fmt.Errorf("%w: history was compacted during the copy; copy again when compactions are less frequent, "+
				"or with --mirror, which skips keys that are already equal", err)
		}
		// The first pass wrote an older state of the source, so from now on only a mirror
		// gives the right result. The target had no other keys.
		mode = Mirror
		if existing, at, err = count(ctx, c.dst, c.Span); err != nil {
			return nil, fmt.Errorf("read the target: %w", err)
		}
	}
}

// pass makes the target, whose present keys are given, equal to the source at one revision.
func (c *copier) pass(ctx context.Context, there keys, mode Existing) (*Result, error) {
	total, rev, err := count(ctx, c.src, c.Span)
	if err != nil {
		return nil, fmt.Errorf("read the source: %w", err)
	}
	c.Progress.phase("copy", total)
	return c.load(ctx, changed(ctx, scan(ctx, c.src, c.Span, rev), c.Change), there, rev, mode)
}

// changed calls change for each key of a sequence.
func changed(ctx context.Context, all keys, change func(context.Context, kv.KeyValue) (kv.KeyValue, bool, error)) keys {
	if change == nil {
		return all
	}
	return func(yield func(kv.KeyValue, error) bool) {
		for e, err := range all {
			keep := true
			if err == nil {
				e, keep, err = change(ctx, e)
			}
			if (keep || err != nil) && !yield(e, err) {
				return
			}
		}
	}
}

// load writes the source keys that the target lacks or has differently.
func (c *copier) load(ctx context.Context, here, there keys, rev kv.Revision, mode Existing) (*Result, error) {
	res := &Result{Source: rev}
	w := newWriter(ctx, c.dst, c.leases, c.Clock)
	err := join(here, there, func(s, d *kv.KeyValue) error {
		if s != nil {
			res.Keys++
			res.Bytes += size(s)
			c.Progress.step(s)
		}
		switch {
		case s == nil && mode != Mirror:
			return nil
		case s == nil:
			res.Deleted++
			if c.DryRun {
				return nil
			}
			return w.delete(d.Key)
		case d != nil && equal(s, d):
			res.Equal++
			if s.Lease != 0 && !c.DryRun {
				return c.leases.ensure(ctx, s.Lease)
			}
			return nil
		}
		res.Put++
		if c.DryRun {
			return nil
		}
		return w.put(s)
	})
	if err != nil {
		_, werr := w.flush()
		if werr != nil && ctx.Err() == nil {
			err = werr // the cause of the other error
		}
		return nil, err
	}
	if _, err := w.flush(); err != nil {
		return nil, err
	}
	res.Leases = c.leases.count()
	if !c.DryRun {
		if _, res.Target, err = count(ctx, c.dst, c.Span); err != nil {
			return nil, fmt.Errorf("read the target: %w", err)
		}
	}
	return res, nil
}
