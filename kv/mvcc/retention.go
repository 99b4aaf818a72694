package mvcc

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-dev/atoll/kv"
)

// Retention configures automatic compaction. History beyond any of the bounds is compacted;
// with the zero value only clients compact.
type Retention struct {
	// Age: younger history is kept, as in etcd's periodic mode.
	Age time.Duration
	// Revisions is the number of revisions to keep, as in etcd's revision mode.
	Revisions int64
	// MaxChanges bounds the changes of keys that are kept, and so the space of history,
	// regardless of its age.
	MaxChanges int64
	// Floor is the age below which MaxChanges compacts nothing, so that watches slightly
	// behind, and paginated lists, can continue; 2 minutes if 0.
	Floor time.Duration
}

const (
	defaultFloor = 2 * time.Minute
	// revisionsInterval is how often etcd checks in its revision mode.
	revisionsInterval = 5 * time.Minute
	// Checks per Age, and per Floor.
	checksPerAge   = 10
	checksPerFloor = 4
	// maxSamples bounds the memory for samples.
	maxSamples = 1000
)

func (r *Retention) fill() {
	if r.Floor == 0 {
		r.Floor = defaultFloor
	}
}

// interval returns the time between checks; 0 if there are no bounds.
func (r *Retention) interval() (d time.Duration) {
	least := func(n time.Duration) {
		if n > 0 && (d == 0 || n < d) {
			d = n
		}
	}
	least(r.Age / checksPerAge)
	if r.Revisions > 0 {
		least(revisionsInterval)
	}
	if r.MaxChanges > 0 {
		least(r.Floor / checksPerFloor)
	}
	return d
}

// sample is the revision of a keyspace at a time.
type sample struct {
	at  time.Time
	rev kv.Revision
}

// decision is the outcome of a check.
type decision struct {
	rev kv.Revision // to compact at; 0: do not compact
	// early reports whether MaxChanges requires more than the other bounds.
	early bool
}

// decide chooses the revision to compact at. samples are ascending. h is the current
// history; if the table cannot report it, only the head is set.
func (r *Retention) decide(now time.Time, samples []sample, h kv.History) (c decision) {
	if r.Age > 0 {
		c.rev = newestUntil(samples, now.Add(-r.Age))
	}
	if r.Revisions > 0 {
		c.rev = max(c.rev, h.Revision-r.Revisions)
	}
	if r.MaxChanges > 0 && h.Changes > r.MaxChanges {
		if rev := r.forMaxChanges(now, samples, h); rev > max(c.rev, h.Compacted) {
			c = decision{rev, true}
		}
	}
	if c.rev <= max(h.Compacted, 1) {
		return decision{}
	}
	return c
}

// forMaxChanges returns the earliest sampled revision that leaves a quarter of MaxChanges
// free, so that the next compaction is not needed soon; or the latest one that Floor
// permits.
func (r *Retention) forMaxChanges(now time.Time, samples []sample, h kv.History) (rev kv.Revision) {
	perRevision := float64(h.Changes) / float64(max(h.Revision-h.Compacted, 1))
	for _, m := range samples {
		if m.at.After(now.Add(-r.Floor)) {
			break
		}
		rev = m.rev
		if perRevision*float64(h.Revision-rev) <= float64(r.MaxChanges)*3/4 {
			break
		}
	}
	return rev
}

// newestUntil returns the revision of the last sample that is not after a time.
func newestUntil(samples []sample, until time.Time) (rev kv.Revision) {
	for _, m := range samples {
		if m.at.After(until) {
			break
		}
		rev = m.rev
	}
	return rev
}

// addSample adds a sample and drops those that no decision needs any more.
func (r *Retention) addSample(samples []sample, m sample, compacted kv.Revision) []sample {
	if n := len(samples); n == 0 || samples[n-1].rev != m.rev {
		samples = append(samples, m)
	}
	for len(samples) > 1 && samples[1].rev <= compacted {
		samples = samples[1:]
	}
	if len(samples) <= maxSamples {
		return samples
	}
	// Drop every second sample of the older half: these need not be exact.
	thin := samples[:0:0]
	for i, m := range samples {
		if i%2 == 0 || i > maxSamples/2 {
			thin = append(thin, m)
		}
	}
	return slices.Clip(thin)
}

// retain compacts history beyond the bounds of Options.Retention.
func (k *Keyspace) retain() {
	r := k.opts.Retention
	every := r.interval()
	var samples []sample
	last := kv.Revision(0)
	known := k.compacted.Load()
	for {
		samples = r.addSample(samples, sample{k.opts.Clock.Now(), k.revision()}, k.compacted.Load())
		select {
		case <-k.opts.Clock.After(every):
		case <-k.ctx.Done():
			return
		}
		// A table that is followed has told its revision meanwhile: thousands of idle keyspaces need no query.
		if k.shared && k.watchdog.silence() > every {
			_, _ = k.heads.get(k.ctx) // without it the decision is still correct, but may be late
		}
		// One of several servers is enough: skip this check if another has compacted since
		// the last.
		before := known
		known = k.compacted.Load()
		if known > before && known > last {
			continue
		}
		h := kv.History{Head: kv.Head{Revision: k.revision(), Compacted: known}}
		if r.MaxChanges > 0 {
			// If this read fails, the next check reads it.
			if got, err := k.History(k.ctx); err == nil {
				h = got
			}
		}
		c := r.decide(k.opts.Clock.Now(), samples, h)
		if c.rev <= last {
			continue
		}
		// Another server may have compacted further. Other failures are retried with the
		// next check.
		ctx, span := k.background(k.ctx, "kv.retain", trace.WithAttributes(attribute.Bool("kv.early", c.early)))
		_, err := k.Compact(ctx, c.rev, false)
		finish(span, err)
		if err == nil && c.early && k.opts.Observer.EarlyCompaction != nil {
			k.opts.Observer.EarlyCompaction()
		}
		if err == nil || isCompacted(err) {
			last = c.rev
		}
	}
}
