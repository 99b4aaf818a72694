package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

const (
	// progressInterval is how often the source is asked for its progress.
	progressInterval = time.Second
	// finishTime is the time that an interrupted Follow may take to complete a revision.
	finishTime = 10 * time.Second
)

// FollowHooks are called by Follow. Nil functions are not called.
type FollowHooks struct {
	// Applied reports that the target has everything of the source up to this revision;
	// events is the number of changes since the last call.
	Applied func(source kv.Revision, events int)
	// Restarted reports that the source has compacted changes before they were read, and
	// that the two were made equal again by a copy.
	Restarted func(*Result)
	// Interrupted reports that the source or the target did not answer; Follow retries.
	Interrupted func(error)
}

// Follow applies every change of src after a revision that dst has to dst, in order, until
// ctx ends. It returns the revision of src that dst has reached, and an error only if
// continuing is impossible.
//
// Several transactions of src may become one in dst. While src is more than 100 keys ahead,
// they become several: dst equals a state of src only at the revisions passed to
// FollowHooks.Applied and at the returned one, unless there is an error.
func Follow(ctx context.Context, src SourceReader, dst kv.Keyspace, after kv.Revision, opts Options, hooks FollowHooks) (kv.Revision, error) {
	opts.fill()
	opts.Existing, opts.DryRun = Mirror, false
	f := &follower{
		copier: copier{src: src, dst: dst, Options: opts, leases: newLeases(dst, leaseTTL(src))},
		hooks:  hooks, applied: after,
	}
	keep, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.leases.keepAlive(keep, opts.Clock)
	}()
	defer func() { stop(); <-done }()
	if err := f.adoptLeases(ctx); err != nil && ctx.Err() == nil {
		return after, err
	}
	pause := firstPause
	for {
		before := f.applied
		err := f.watch(ctx)
		switch {
		case ctx.Err() != nil:
			return f.applied, nil
		case errors.Is(err, kv.ErrCompacted):
			res, err := f.copy(ctx)
			if err != nil {
				return f.applied, err
			}
			f.applied = res.Source
			if hooks.Restarted != nil {
				hooks.Restarted(res)
			}
			continue
		case err != nil && !isTransient(err) && !errors.Is(err, kv.ErrClosed):
			return f.applied, err
		}
		if f.applied > before {
			pause = firstPause
		}
		if hooks.Interrupted != nil {
			hooks.Interrupted(err)
		}
		select {
		case <-ctx.Done():
			return f.applied, nil
		case <-opts.Clock.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

type follower struct {
	copier
	hooks   FollowHooks
	applied kv.Revision
}

// adoptLeases finds the leases that an earlier copy has granted, to keep them alive.
func (f *follower) adoptLeases(ctx context.Context) error {
	ids, _, err := f.dst.LeaseList(ctx)
	if err != nil {
		return fmt.Errorf("list the target's leases: %w", err)
	}
	for _, id := range ids {
		_, err := f.src.TimeToLive(ctx, id, false)
		if errors.Is(err, kv.ErrLeaseNotFound) {
			continue // the target's own lease, or expired
		}
		if err == nil {
			err = f.leases.ensure(ctx, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// watch applies changes until the watch ends, and returns the reason.
func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := f.src.Watch(ctx, kv.WatchRequest{Span: f.Span, StartRevision: f.applied + 1})
	if err != nil {
		return err
	}
	ticker := f.Clock.After(progressInterval)
	w.RequestProgress()
	for {
		select {
		case res, open := <-w.Responses():
			switch {
			case !open:
				return fmt.Errorf("follow the source: %w: the watch ended", kv.ErrUnavailable)
			case res.Err != nil:
				return fmt.Errorf("follow the source: %w", res.Err)
			}
			if err := f.apply(ctx, res); err != nil {
				return err
			}
		case <-ticker:
			w.RequestProgress()
			ticker = f.Clock.After(progressInterval)
		}
	}
}

// apply advances the target to the source's state at the end of a response. Only the last
// change of each key counts. If all changes fit into one transaction they are written in
// one; otherwise, if the source is far ahead, several writers write them concurrently.
func (f *follower) apply(ctx context.Context, res kv.WatchResponse) error {
	ctx, release := f.finish(ctx)
	defer release()
	last := make(map[string]int, len(res.Events))
	for i := range res.Events {
		last[string(res.Events[i].KV.Key)] = i
	}
	w := newWriter(ctx, f.dst, f.leases, f.Clock)
	for i := range res.Events {
		e := &res.Events[i]
		if last[string(e.KV.Key)] != i {
			continue
		}
		var err error
		if e.Type == kv.EventDelete {
			err = w.delete(e.KV.Key)
		} else {
			err = w.put(&e.KV)
		}
		if err != nil {
			_, werr := w.flush()
			return errors.Join(err, werr)
		}
	}
	if _, err := w.flush(); err != nil {
		return err
	}
	f.applied = max(f.applied, res.Revision)
	if f.hooks.Applied != nil {
		f.hooks.Applied(f.applied, len(res.Events))
	}
	return nil
}

// finish returns a context that outlives ctx for a while, so that an interrupt leaves the
// target at a revision of the source and not between two.
func (f *follower) finish(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-f.Clock.After(finishTime):
			cancel()
		case <-out.Done():
		}
	})
	return out, func() { stop(); cancel() }
}
