// Package pace decides which objects begin to leave a cluster now, and which wait: so many a second, and so many at
// the same time. Objects of a higher priority leave first.
//
// It is pure: the time is an argument, and so is how many objects are leaving.
package pace

import (
	"container/heap"
	"time"
)

// turnTimeout is how long an object has to use its turn. Perhaps it was deleted, or a user has to correct its policy.
const turnTimeout = 30 * time.Second

// Limits of a Line.
type Limits struct {
	// Rate is how many objects a second begin to leave; none do if it is 0.
	Rate int32
	// Most is how many objects leave at the same time; 0 means any number.
	Most int32
}

// Line has the objects that wait until they may leave one cluster, and those whose turn it is. It is not safe for
// concurrent use.
type Line[K comparable] struct {
	limits  Limits
	waiting queue[K]
	// turns are the objects that may leave and have not been seen to leave, by when their turn came.
	turns map[K]time.Time
	// tokens is how many turns are available at a time (a token bucket).
	tokens float64
	at     time.Time
}

// NewLine returns an empty line. compare orders objects of equal priority that began to wait at the same time.
func NewLine[K comparable](compare func(a, b K) int) *Line[K] {
	return &Line[K]{turns: map[K]time.Time{}, tokens: 1, waiting: queue[K]{places: map[K]*place[K]{}, compare: compare}}
}

// burst is how many turns there may be at once, so that a high rate does not need a timer for each object.
func (l *Line[K]) burst() float64 { return max(1, float64(l.limits.Rate)/10) }

// SetLimits sets the limits from a time on.
func (l *Line[K]) SetLimits(limits Limits, now time.Time) {
	if l.limits != limits {
		l.refill(now)
		l.limits = limits
		l.tokens = min(l.tokens, l.burst())
	}
}

func (l *Line[K]) refill(now time.Time) {
	if !l.at.IsZero() && now.After(l.at) {
		l.tokens = min(l.burst(), l.tokens+now.Sub(l.at).Seconds()*float64(l.limits.Rate))
	}
	if now.After(l.at) {
		l.at = now
	}
}

// Ask reports whether it is an object's turn to leave. Otherwise the object waits in the line.
func (l *Line[K]) Ask(object K, priority int32, now time.Time) bool {
	if _, its := l.turns[object]; its {
		return true
	}
	l.waiting.add(object, priority, now)
	return false
}

// Next returns the objects whose turn it is now: those of the highest priority, and of equal priority those that wait
// longest. leaving is how many objects are seen to leave. A turn that was not used ends, and the object is returned too:
// it asks again, if it still leaves. again is when there may be further turns; 0 means after something else has changed.
func (l *Line[K]) Next(now time.Time, leaving int) (next []K, again time.Duration) {
	l.refill(now)
	for object, since := range l.turns {
		if now.Sub(since) >= turnTimeout {
			delete(l.turns, object)
			next = append(next, object)
		}
	}
	for l.waiting.Len() > 0 && l.limits.Rate > 0 && (l.limits.Most == 0 || leaving+len(l.turns) < int(l.limits.Most)) {
		if l.tokens < 1 {
			// Rounded up, so that there is a whole token then.
			return next, time.Duration((1-l.tokens)/float64(l.limits.Rate)*float64(time.Second)) + time.Microsecond
		}
		l.tokens--
		object := heap.Pop(&l.waiting).(*place[K]).object
		l.turns[object] = now
		next = append(next, object)
	}
	if len(l.turns) > 0 {
		again = turnTimeout
	}
	return next, again
}

// Forget removes an object that is seen to leave, or does not leave. It reports whether the object was in the line.
func (l *Line[K]) Forget(object K) bool {
	_, waited := l.waiting.places[object]
	_, its := l.turns[object]
	had := waited || its
	delete(l.turns, object)
	l.waiting.remove(object)
	return had
}

// Len returns how many objects wait, and how many may leave and have not been seen to.
func (l *Line[K]) Len() (waiting, turns int) { return l.waiting.Len(), len(l.turns) }

// place is an object that waits.
type place[K comparable] struct {
	object   K
	priority int32
	since    time.Time
	index    int
}

// queue is a heap of places.
type queue[K comparable] struct {
	list    []*place[K]
	places  map[K]*place[K]
	compare func(a, b K) int
}

func (q *queue[K]) add(object K, priority int32, now time.Time) {
	p, waits := q.places[object]
	if !waits {
		p = &place[K]{object: object, priority: priority, since: now}
		q.places[object] = p
		heap.Push(q, p)
		return
	}
	if p.priority != priority {
		p.priority = priority
		heap.Fix(q, p.index)
	}
}

func (q *queue[K]) remove(object K) {
	if p, waits := q.places[object]; waits {
		heap.Remove(q, p.index)
	}
}

func (q *queue[K]) Len() int { return len(q.list) }

func (q *queue[K]) Less(i, j int) bool {
	a, b := q.list[i], q.list[j]
	switch {
	case a.priority != b.priority:
		return a.priority > b.priority
	case !a.since.Equal(b.since):
		return a.since.Before(b.since)
	}
	return q.compare(a.object, b.object) < 0
}

func (q *queue[K]) Swap(i, j int) {
	q.list[i], q.list[j] = q.list[j], q.list[i]
	q.list[i].index, q.list[j].index = i, j
}

func (q *queue[K]) Push(x any) {
	p := x.(*place[K])
	p.index = len(q.list)
	q.list = append(q.list, p)
}

func (q *queue[K]) Pop() any {
	last := len(q.list) - 1
	p := q.list[last]
	q.list[last] = nil
	q.list = q.list[:last]
	delete(q.places, p.object)
	return p
}
