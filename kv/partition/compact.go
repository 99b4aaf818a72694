package partition

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// A compaction names a revision of the parent: clients keep time by it ("what the
// keyspace was at five minutes ago"). What it means to a partition a timeline
// tells: pairs of a revision of the parent and the partition's at that time.

// timeline is a partition's, in memory only: after a restart nothing that was
// before is known, and nothing that is not known is compacted.
type timeline struct {
	mu      sync.Mutex
	samples []sample // both revisions rise
	// compacted is the last of the partition's own revisions that was asked for.
	compacted kv.Revision
}

type sample struct{ parent, own kv.Revision }

// maxSamples bounds a timeline: with one every 10 s, almost three hours in full,
// and what is older ever more coarsely.
const maxSamples = 1024

// add notes that the partition was at own before the parent was seen at parent. Of
// one parent revision the first sample counts: while the parent rests, "what it
// had then" is when that began, not now.
func (t *timeline) add(parent, own kv.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.samples); n > 0 && (t.samples[n-1].parent >= parent || t.samples[n-1].own > own) {
		return
	}
	if len(t.samples) == maxSamples {
		// Of the older half every other goes.
		kept := t.samples[:0]
		for i, s := range t.samples {
			if i%2 == 0 || i >= maxSamples/2 {
				kept = append(kept, s)
			}
		}
		t.samples = kept
	}
	t.samples = append(t.samples, sample{parent, own})
}

// at is the partition's revision when the parent was at rev, or an earlier one; 0
// if that is not known.
func (t *timeline) at(rev kv.Revision) kv.Revision {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := sort.Search(len(t.samples), func(i int) bool { return t.samples[i].parent > rev })
	if n == 0 {
		return 0
	}
	return t.samples[n-1].own
}

// raise notes a compaction, unless there was one as late already.
func (t *timeline) raise(own kv.Revision) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own <= t.compacted {
		return false
	}
	t.compacted = own
	return true
}

// sample notes where the partitions stand. They are read before the parent is, so
// a pair never says that a partition was further than it was. What cannot be read
// now is noted the next time.
func (l *layout) sample(ctx context.Context) {
	if len(l.parts) == 0 {
		return
	}
	own := make([]kv.Revision, len(l.parts))
	var err error
	for i, p := range l.parts {
		if own[i], err = head(ctx, p.engine); err != nil {
			own[i] = 0
		}
	}
	parent, err := head(ctx, l.parent)
	if err != nil {
		return
	}
	for i, p := range l.parts {
		if own[i] > 0 {
			p.times.add(parent, own[i])
		}
	}
}

func (k *Keyspace) sampleLoop() {
	for {
		select {
		case <-k.opts.Clock.After(k.opts.SampleInterval):
			k.layout.Load().sample(k.ctx)
		case <-k.ctx.Done():
			return
		}
	}
}

// Compact implements kv.Keyspace: rev is one of the parent's, and each partition
// is compacted at what it had then, or earlier.
func (k *Keyspace) Compact(ctx context.Context, rev kv.Revision, physical bool) (kv.Revision, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		l.sample(ctx)
		now, err := l.parent.Compact(ctx, rev, physical)
		if k.moved(ctx, l, try, err) {
			continue
		}
		if err != nil {
			return now, err
		}
		return now, l.compactParts(ctx, rev, physical)
	}
}

func (l *layout) compactParts(ctx context.Context, rev kv.Revision, physical bool) error {
	failed := make([]error, len(l.parts))
	var wg sync.WaitGroup
	for i, p := range l.parts {
		own := p.times.at(rev)
		if !p.times.raise(own) {
			continue
		}
		wg.Go(func() {
			_, err := p.engine.Compact(ctx, own, physical)
			// Compacted further, by its own retention or another server; or merged: then it
			// is the next compaction's business.
			if err != nil && !errors.Is(err, kv.ErrCompacted) && !errors.Is(err, kv.ErrRepartitioned) {
				failed[i] = fmt.Errorf("compacted at revision %d, but not partition %q: %w (the next compaction makes up for it)", rev, p.prefix, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}
