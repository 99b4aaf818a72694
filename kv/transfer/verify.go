package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// maxDifferences is the number of differences that are listed.
const maxDifferences = 20

// Comparison is the result of Verify.
type Comparison struct {
	// Source and Target are the revisions compared.
	Source, Target kv.Revision
	// Equal counts the keys that are equal.
	Equal int64
	// Expired keys are missing in the target because their lease has expired.
	Expired int64
	// Changed counts keys that could not be compared: the source changed them after the
	// copy, and has compacted the revision of the copy.
	Changed int64
	// Different counts all differences; Differences lists the first ones.
	Different   int64
	Differences []string
}

func (c *Comparison) differ(format string, args ...any) {
	c.Different++
	if len(c.Differences) < maxDifferences {
		c.Differences = append(c.Differences, fmt.Sprintf(format, args...))
	}
}

// Verify compares src at the revision at (0 for now) with the present dst. With Merge, it
// ignores keys that only dst has.
func Verify(ctx context.Context, src SourceReader, at kv.Revision, dst kv.Keyspace, opts Options) (*Comparison, error) {
	opts.fill()
	total, now, err := count(ctx, src, opts.Span)
	if err != nil {
		return nil, fmt.Errorf("read the source: %w", err)
	}
	if at == 0 {
		at = now
	}
	opts.Progress.phase("verify", total)
	out, err := verify(ctx, scan(ctx, src, opts.Span, at), 0, dst, opts)
	if errors.Is(err, kv.ErrCompacted) {
		// Keys that have not changed since can still be compared.
		if total, now, err = count(ctx, src, opts.Span); err != nil {
			return nil, fmt.Errorf("read the source: %w", err)
		}
		opts.Progress.phase("verify", total)
		out, err = verify(ctx, scan(ctx, src, opts.Span, now), at, dst, opts)
		at = now
	}
	if err != nil {
		return nil, err
	}
	out.Source = at
	return out, nil
}

// verify compares a sequence with the target. If copiedAt is set, the sequence is newer
// than the copy, and keys changed in between are not compared.
func verify(ctx context.Context, here keys, copiedAt kv.Revision, dst kv.Keyspace, opts Options) (*Comparison, error) {
	_, rev, err := count(ctx, dst, opts.Span)
	if err != nil {
		return nil, fmt.Errorf("read the target: %w", err)
	}
	out := &Comparison{Target: rev}
	alive := map[kv.LeaseID]bool{}
	err = join(here, scan(ctx, dst, opts.Span, rev), func(s, d *kv.KeyValue) error {
		if s != nil {
			opts.Progress.step(s)
		}
		switch {
		case s == nil && opts.Existing == Merge:
		case copiedAt > 0 && (s == nil || s.ModRevision > copiedAt):
			out.Changed++
		case s == nil:
			out.differ("key %q exists only in the target", d.Key)
		case d == nil && s.Lease != 0:
			ok, err := leaseLives(ctx, dst, s.Lease, alive)
			if err != nil {
				return err
			}
			if ok {
				out.differ("key %q is missing in the target", s.Key)
			} else {
				out.Expired++
			}
		case d == nil:
			out.differ("key %q is missing in the target", s.Key)
		case s.Lease != d.Lease:
			out.differ("key %q is attached to lease %x in the source and to %x in the target", s.Key, s.Lease, d.Lease)
		case !equal(s, d):
			out.differ("key %q has different values: %d bytes in the source, %d bytes in the target", s.Key, len(s.Value), len(d.Value))
		default:
			out.Equal++
		}
		return nil
	})
	return out, err
}

func leaseLives(ctx context.Context, dst kv.Keyspace, id kv.LeaseID, known map[kv.LeaseID]bool) (bool, error) {
	if lives, ok := known[id]; ok {
		return lives, nil
	}
	_, err := dst.TimeToLive(ctx, id, false)
	if err != nil && !errors.Is(err, kv.ErrLeaseNotFound) {
		return false, fmt.Errorf("look up lease %x in the target: %w", id, err)
	}
	known[id] = err == nil
	return err == nil, nil
}
