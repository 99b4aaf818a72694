package partition

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// A compaction names a revision of the parent, by which clients keep time ("the keyspace's
// revision five minutes ago"). A timeline translates it for a partition: it is a list of
// pairs of a parent revision and the partition's revision at that time.

// timeline belongs to one partition and is only in memory. After a restart nothing is known
// about the time before, and what is unknown is not compacted.
type timeline struct {
	mu      sync.Mutex
	samples []sample // both revisions ascend
	// compacted is the highest own revision for which compaction was requested.
	compacted kv.Revision
}

type sample struct{ parent, own kv.Revision }

// maxSamples bounds a timeline. With one sample every 10 s, it covers almost three hours
// completely, and the time before ever more coarsely.
const maxSamples = 1024

// add records that the partition was at own before the parent was seen at parent. For one
// parent revision the first sample counts: while the parent is idle, its revision stands
// for the begin of that time, not for now.
func (t *timeline) add(parent, own kv.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.samples); n > 0 && (t.samples[n-1].parent >= parent || t.samples[n-1].own > own) {
		return
	}
	if len(t.samples) == maxSamples {
		// Drop every second sample of the older half.
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

// at returns the partition's revision when the parent was at rev, or an earlier one; 0 if
// that is unknown.
func (t *timeline) at(rev kv.Revision) kv.Revision {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := sort.Search(len(t.samples), func(i int) bool { return t.samples[i].parent > rev })
	if n == 0 {
		return 0
	}
	return t.samples[n-1].own
}

// recordCompaction records a compaction. It returns false if there was one at least as late.
func (t *timeline) recordCompaction(own kv.Revision) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own <= t.compacted {
		return false
	}
	t.compacted = own
	return true
}

// sample records the present revisions of the partitions. They are read before the
// parent's, so a pair never claims a partition revision that came later. A failed read is
// repeated with the next sample.
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

// Compact implements kv.Keyspace. rev is a parent revision; each partition is compacted at
// its own revision at that time, or an earlier one.
func (k *Keyspace) Compact(ctx context.Context, rev kv.Revision, physical bool) (kv.Revision, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		l.sample(ctx)
		now, err := l.parent.Compact(ctx, rev, physical)
		if k.shouldRetry(ctx, l, try, err) {
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
		if !p.times.recordCompaction(own) {
			continue
		}
		wg.Go(func() {
			_, err := p.engine.Compact(ctx, own, physical)
			// Its own retention or another server has compacted further; or it was merged,
			// and the next compaction covers it.
			if err != nil && !errors.Is(err, kv.ErrCompacted) && !errors.Is(err, kv.ErrRepartitioned) {
				failed[i] = fmt.Errorf("compacted at revision %d, except partition %q: %w (the next compaction includes it)", rev, p.prefix, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}
