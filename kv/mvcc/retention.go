package mvcc

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-dev/atoll/kv"
)

// Retention says how much history an engine keeps by itself. What goes beyond
// any of the bounds is compacted; the zero value leaves compaction to clients.
type Retention struct {
	// Age: history younger than this stays, as in etcd's periodic mode.
	Age time.Duration
	// Revisions: so many stay, as in etcd's revision mode.
	Revisions int64
	// MaxChanges bounds the changes of keys that stay, and with them the space
	// that history takes, whatever its age.
	MaxChanges int64
	// Floor is the age up to which MaxChanges takes nothing, so that watches which
	// are a little behind, and lists in pages, can go on; 2 minutes if 0.
	Floor time.Duration
}

const (
	defaultFloor = 2 * time.Minute
	// revisionsEvery is how often etcd looks in its revision mode.
	revisionsEvery = 5 * time.Minute
	// Looks per Age, and per Floor.
	looksPerAge   = 10
	looksPerFloor = 4
	// maxMarks bounds the memory for what was noted.
	maxMarks = 1000
)

func (r *Retention) fill() {
	if r.Floor == 0 {
		r.Floor = defaultFloor
	}
}

// every is how often to look; 0 if there is nothing to look for.
func (r *Retention) every() (d time.Duration) {
	least := func(n time.Duration) {
		if n > 0 && (d == 0 || n < d) {
			d = n
		}
	}
	least(r.Age / looksPerAge)
	if r.Revisions > 0 {
		least(revisionsEvery)
	}
	if r.MaxChanges > 0 {
		least(r.Floor / looksPerFloor)
	}
	return d
}

// mark is where a keyspace stood at a time.
type mark struct {
	at  time.Time
	rev kv.Revision
}

// cut is what a look at a keyspace has led to.
type cut struct {
	rev kv.Revision // to compact at; 0 for not at all
	// early: MaxChanges goes further than the other bounds.
	early bool
}

// decide chooses the revision to compact at. marks are ascending, and h is the
// history as it is; of a table that cannot tell it, only the head.
func (r *Retention) decide(now time.Time, marks []mark, h kv.History) (c cut) {
	if r.Age > 0 {
		c.rev = newest(marks, now.Add(-r.Age))
	}
	if r.Revisions > 0 {
		c.rev = max(c.rev, h.Revision-r.Revisions)
	}
	if r.MaxChanges > 0 && h.Changes > r.MaxChanges {
		if rev := r.shrink(now, marks, h); rev > max(c.rev, h.Compacted) {
			c = cut{rev, true}
		}
	}
	if c.rev <= max(h.Compacted, 1) {
		return cut{}
	}
	return c
}

// shrink is the earliest revision noted that leaves a quarter of MaxChanges free,
// so that it is a while to the next time; or the latest that Floor permits.
func (r *Retention) shrink(now time.Time, marks []mark, h kv.History) (rev kv.Revision) {
	perRevision := float64(h.Changes) / float64(max(h.Revision-h.Compacted, 1))
	for _, m := range marks {
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

// newest is the revision of the last mark that is not after a time.
func newest(marks []mark, until time.Time) (rev kv.Revision) {
	for _, m := range marks {
		if m.at.After(until) {
			break
		}
		rev = m.rev
	}
	return rev
}

// note adds a mark and drops those that nothing can be decided by any more.
func (r *Retention) note(marks []mark, m mark, compacted kv.Revision) []mark {
	if n := len(marks); n == 0 || marks[n-1].rev != m.rev {
		marks = append(marks, m)
	}
	for len(marks) > 1 && marks[1].rev <= compacted {
		marks = marks[1:]
	}
	if len(marks) <= maxMarks {
		return marks
	}
	// Of the older half every second: they need not be exact.
	thin := marks[:0:0]
	for i, m := range marks {
		if i%2 == 0 || i > maxMarks/2 {
			thin = append(thin, m)
		}
	}
	return slices.Clip(thin)
}

// retain compacts what is beyond the bounds of Options.Retention.
func (k *Keyspace) retain() {
	r := k.opts.Retention
	every := r.every()
	var marks []mark
	last := kv.Revision(0)
	known := k.compacted.Load()
	for {
		marks = r.note(marks, mark{k.opts.Clock.Now(), k.revision()}, k.compacted.Load())
		select {
		case <-k.opts.Clock.After(every):
		case <-k.ctx.Done():
			return
		}
		if k.shared {
			_, _ = k.heads.ask(k.ctx) // what follows is right without it, if not as good
		}
		// Of several servers one is enough: this look is done if anybody has
		// compacted since the last.
		before := known
		known = k.compacted.Load()
		if known > before && known > last {
			continue
		}
		h := kv.History{Head: kv.Head{Revision: k.revision(), Compacted: known}}
		if r.MaxChanges > 0 {
			// What cannot be read now is read the next time.
			if got, err := k.History(k.ctx); err == nil {
				h = got
			}
		}
		c := r.decide(k.opts.Clock.Now(), marks, h)
		if c.rev <= last {
			continue
		}
		// Somebody else may have compacted further; other failures are tried
		// again with the next look.
		ctx, span := k.background(k.ctx, "kv.retain", trace.WithAttributes(attribute.Bool("kv.early", c.early)))
		_, err := k.Compact(ctx, c.rev, false)
		finish(span, err)
		if err == nil && c.early && k.opts.Observer.Cut != nil {
			k.opts.Observer.Cut()
		}
		if err == nil || isCompacted(err) {
			last = c.rev
		}
	}
}
