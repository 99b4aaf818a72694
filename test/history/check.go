package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Report is what came of a history.
type Report struct {
	Totals
	// Violations of the contract, in words.
	Violations []string
	// Linearizable: an order of all calls was found that explains every answer.
	Linearizable bool
	// Undecided: the search for one took too long. What the revisions say was
	// checked nevertheless.
	Undecided bool
}

// Totals counts what a history consists of.
type Totals struct {
	Calls, Reads, Writes     int
	Changes                  int // acknowledged
	Refused, Unknown, Turned int // Turned out to have happened, of those unknown
	Revisions                int
	Watches, Resumed         int // Resumed: watches that went on after an end
	Relisted                 int
	Events, Progress         int
}

// Add adds those of another history.
func (t *Totals) Add(o Totals) {
	t.Calls += o.Calls
	t.Reads += o.Reads
	t.Writes += o.Writes
	t.Changes += o.Changes
	t.Refused += o.Refused
	t.Unknown += o.Unknown
	t.Turned += o.Turned
	t.Revisions += o.Revisions
	t.Watches += o.Watches
	t.Resumed += o.Resumed
	t.Relisted += o.Relisted
	t.Events += o.Events
	t.Progress += o.Progress
}

func (t Totals) String() string {
	return fmt.Sprintf("%d calls (%d reads, %d writes: %d changed something, %d refused, %d of unknown outcome, of which %d had happened), %d revisions; "+
		"%d watches, resumed %d times, %d times by reading anew: %d events and %d progress notifications checked",
		t.Calls, t.Reads, t.Writes, t.Changes, t.Refused, t.Unknown, t.Turned, t.Revisions, t.Watches, t.Resumed, t.Relisted, t.Events, t.Progress)
}

// maxViolations bounds what one mistake can fill a report with.
const maxViolations = 20

func (r *Report) violated(format string, args ...any) {
	if len(r.Violations) < maxViolations {
		r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
	}
}

// Check decides. Nobody may call or watch any more, and every watcher should
// have come to the end. limit bounds the search for an order.
func (r *Recorder) Check(limit time.Duration) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := &Report{}
	for _, s := range r.strange {
		report.violated("%s", s)
	}
	l := gather(r.watchers)
	report.count(r)
	report.Revisions = int(l.head - 1)
	r.setFloors()

	byRevision := r.attribute(l, report)
	states := r.replay(l, byRevision, report)
	for _, w := range r.watchers {
		if err := w.check(l, states); err != nil {
			report.violated("watcher %s: %v", w.name, err)
		}
	}
	search(r.calls, limit, report)
	return report
}

func (r *Report) count(h *Recorder) {
	for _, c := range h.calls {
		r.Calls++
		if c.Kind.writes() {
			r.Writes++
		} else {
			r.Reads++
		}
		switch {
		case c.Outcome == Refused:
			r.Refused++
		case c.Outcome == Unknown:
			r.Unknown++
		case c.Changed:
			r.Changes++
		}
	}
	r.Watches = len(h.watchers)
	for _, w := range h.watchers {
		for i, s := range w.seen {
			r.Events += len(s.response.Events)
			if s.response.Progress {
				r.Progress++
			}
			if s.relisted != nil {
				r.Relisted++
			}
			if s.resumed && i > 0 {
				r.Resumed++
			}
		}
	}
}

// setFloors finds for each call what had been told before it began.
func (r *Recorder) setFloors() {
	type moment struct {
		tick  int64
		call  *Call
		begin bool
	}
	var moments []moment
	for _, c := range r.calls {
		moments = append(moments, moment{c.Begin, c, true})
		if c.Outcome == Answered && c.Kind != Past {
			moments = append(moments, moment{c.End, c, false})
		}
	}
	slices.SortFunc(moments, func(a, b moment) int { return cmp.Compare(a.tick, b.tick) })
	told := kv.Revision(1)
	for _, m := range moments {
		if m.begin {
			m.call.floor = told
		} else {
			told = max(told, m.call.Revision)
		}
	}
}

// attribute finds for every revision of the log the call that made it. Writes
// of unknown outcome learn theirs, or that they did not happen.
func (r *Recorder) attribute(l *log, report *Report) map[kv.Revision]*Call {
	made := map[kv.Revision]*Call{}
	var deletes []*Call // of unknown outcome
	for _, c := range r.calls {
		switch {
		case !c.Kind.writes():
		case c.Outcome == Answered && c.Changed:
			if other := made[c.Revision]; other != nil {
				report.violated("two writes were told that they made revision %d: %v; %v", c.Revision, other, c)
			}
			made[c.Revision] = c
		case c.Outcome == Unknown && c.Kind == Delete:
			deletes = append(deletes, c)
		}
	}
	for _, c := range r.calls {
		rev := l.values[c.Value]
		switch {
		case !c.Kind.writes() || c.Kind == Delete || rev == 0:
		case c.Outcome == Refused:
			report.violated("a write that was refused happened, at revision %d: %v", rev, c)
			made[rev] = c
		case c.Outcome == Unknown:
			if other := made[rev]; other != nil {
				report.violated("revision %d was made by two writes: %v; %v", rev, other, c)
			}
			c.Revision, c.Changed = rev, true
			report.Turned++
			made[rev] = c
		}
	}
	for rev := kv.Revision(2); rev <= l.head; rev++ {
		if made[rev] != nil {
			continue
		}
		events := l.at[rev]
		if len(events) == 0 {
			report.violated("no watch over all keys was told of revision %d", rev)
			continue
		}
		// Which of several deletions of a key it was makes no difference to the
		// log, and the search tries them all.
		n := slices.IndexFunc(deletes, func(c *Call) bool {
			return len(events) == 1 && events[0].Type == kv.EventDelete && c.Keys[0] == string(events[0].KV.Key) && c.floor < rev
		})
		if n < 0 {
			report.violated("revision %d was made by nobody who may have: %s", rev, describeEvents(events))
			continue
		}
		made[rev] = deletes[n]
		report.Turned++
		deletes = slices.Delete(deletes, n, n+1)
	}
	return made
}

// replay goes through the log, and holds every answer against the state that
// it was given from. It returns the state after each revision.
func (r *Recorder) replay(l *log, made map[kv.Revision]*Call, report *Report) []state {
	answers := map[kv.Revision][]*Call{}
	for _, c := range r.calls {
		if c.Outcome != Answered {
			continue
		}
		if c.Revision < c.floor {
			report.violated("answered from revision %d after %d had been told: %v", c.Revision, c.floor, c)
		}
		if c.Revision > l.head {
			report.violated("answered from revision %d, but no watch came further than %d: %v", c.Revision, l.head, c)
		}
		if !c.Changed {
			rev := c.Revision
			if c.Kind == Past {
				rev = c.Expect
			}
			answers[rev] = append(answers[rev], c)
		}
	}
	now := state{}
	states := make([]state, l.head+1)
	for rev := kv.Revision(1); rev <= l.head; rev++ {
		if c := made[rev]; c != nil {
			if err := c.explains(l.at[rev], now); err != nil {
				report.violated("revision %d: %v: %v", rev, c, err)
			}
			if c.floor >= rev {
				report.violated("made revision %d after %d had been told: %v", rev, c.floor, c)
			}
		}
		for _, e := range l.at[rev] {
			if err := now.apply(e); err != nil {
				report.violated("revision %d: %v", rev, err)
			}
		}
		states[rev] = cloneState(now)
		for _, c := range answers[rev] {
			if err := c.agrees(now); err != nil {
				report.violated("%v: %v", c, err)
			}
		}
	}
	return states
}

func cloneState(s state) state {
	c := make(state, len(s))
	for k, v := range s {
		c[k] = v
	}
	return c
}

// explains holds a write that changed something against what happened, and its
// answer against the state before.
func (c *Call) explains(events []kv.Event, before state) error {
	var keys []string
	for _, e := range events {
		keys = append(keys, string(e.KV.Key))
		if deleted := e.Type == kv.EventDelete; deleted != (c.Kind == Delete) {
			return fmt.Errorf("but this happened: %s", describeEvents(events))
		}
		if c.Kind != Delete && string(e.KV.Value) != c.Value {
			return fmt.Errorf("but this was written: %s", describeEvents(events))
		}
	}
	if !slices.Equal(keys, c.Keys) {
		return fmt.Errorf("but the log has changes of [%s]", strings.Join(keys, " "))
	}
	if c.Kind == Swap && before[c.Keys[0]].ModRevision != c.Expect {
		return fmt.Errorf("but it was %s", describeKey(before, c.Keys[0]))
	}
	if want := before.of(c.Keys); c.Outcome == Answered && c.Kind != Swap && !equalAll(c.Before, want) {
		return fmt.Errorf("it was told that it replaced %s, but that was %s", describeAll(c.Before), describeAll(want))
	}
	return nil
}

// agrees holds an answer to a call that changed nothing against the state that
// it was given from.
func (c *Call) agrees(now state) error {
	switch c.Kind {
	case Delete:
		if found := now.of(c.Keys); len(found) > 0 {
			return fmt.Errorf("it deleted nothing, but there was %s", describeAll(found))
		}
		return nil
	case Swap:
		if k := now[c.Keys[0]]; k.ModRevision == c.Expect {
			return fmt.Errorf("it did not succeed, but there was %s", describeKV(k))
		}
		fallthrough
	case Get:
		if want := now.of(c.Keys); !equalAll(c.Found, want) {
			return fmt.Errorf("it found %s, but there was %s", describeAll(c.Found), describeAll(want))
		}
	case List, Past:
		if want := now.in(Whole()); !equalAll(c.Found, want) {
			return fmt.Errorf("it found %s, but there was %s", describeAll(c.Found), describeAll(want))
		}
	default:
		return errors.New("it changed nothing")
	}
	return nil
}

// check holds everything that a watcher was told against the log.
func (w *Watcher) check(l *log, states []state) error {
	through := kv.Revision(1)
	for i, s := range w.seen {
		if s.relisted != nil {
			rev := s.relisted.Revision
			if rev < through {
				return fmt.Errorf("read anew at revision %d, after it had come to %d", rev, through)
			}
			if rev < kv.Revision(len(states)) {
				if want := states[rev].in(w.span); !equalAll(s.relisted.KVs, want) {
					return fmt.Errorf("read anew at revision %d and found %s, but there was %s", rev, describeAll(s.relisted.KVs), describeAll(want))
				}
			}
			through = rev
			continue
		}
		r := s.response
		if r.Err != nil {
			if errors.Is(r.Err, kv.ErrCompacted) && (r.CompactRevision > s.compacting || through+1 >= s.compacting) {
				return fmt.Errorf("after revision %d it was told that everything up to %d was compacted, but that was wanted only up to %d",
					through, r.CompactRevision, s.compacting)
			}
			continue
		}
		switch {
		case r.Revision < through:
			return fmt.Errorf("response %d went back from revision %d to %d", i, through, r.Revision)
		case r.Progress && len(r.Events) > 0:
			return fmt.Errorf("response %d is progress and has events", i)
		}
		if r.Revision > l.head {
			return fmt.Errorf("response %d claims revision %d, but the last change was %d", i, r.Revision, l.head)
		}
		if err := sameEvents(r.Events, l.in(w, r.Events, through+1, r.Revision, s.compacting)); err != nil {
			return fmt.Errorf("response %d, from revision %d to %d: %w", i, through+1, r.Revision, err)
		}
		through = r.Revision
	}
	if through < l.head {
		return fmt.Errorf("it came to revision %d only, of %d", through, l.head)
	}
	return nil
}

// in is what a watcher should have been told of a piece of the log.
func (l *log) in(w *Watcher, got []kv.Event, from, upTo, compacting kv.Revision) []kv.Event {
	var want []kv.Event
	for rev := from; rev <= upTo; rev++ {
		for _, e := range l.at[rev] {
			if !w.span.Contains(e.KV.Key) {
				continue
			}
			if !w.prevs {
				e.Prev = nil
			}
			if n := len(want); rev <= compacting && n < len(got) && got[n].Prev == nil {
				e.Prev = nil
			}
			want = append(want, e)
		}
	}
	return want
}

func sameEvents(got, want []kv.Event) error {
	if slices.EqualFunc(got, want, equalEvents) {
		return nil
	}
	return fmt.Errorf("it was told of %s, but this happened: %s", describeEvents(got), describeEvents(want))
}
