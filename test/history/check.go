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

// Report is the result of checking a history.
type Report struct {
	Totals
	// Violations of the keyspace's contract, as text.
	Violations []string
	// Linearizable means that some order of all calls explains every answer.
	Linearizable bool
	// Undecided means that the search for an order exceeded its limit. The checks by revision were
	// done nevertheless.
	Undecided bool
}

// Totals counts the calls and events of a history.
type Totals struct {
	Calls, Reads, Writes       int
	Changes                    int // acknowledged
	Refused, Unknown, Happened int // Happened: of unknown outcome, found in the log
	Revisions                  int
	Watches, Resumed           int // Resumed: watches that continued after another one ended
	Relisted                   int
	Events, Progress           int
}

// Add adds the totals of another history.
func (t *Totals) Add(o Totals) {
	t.Calls += o.Calls
	t.Reads += o.Reads
	t.Writes += o.Writes
	t.Changes += o.Changes
	t.Refused += o.Refused
	t.Unknown += o.Unknown
	t.Happened += o.Happened
	t.Revisions += o.Revisions
	t.Watches += o.Watches
	t.Resumed += o.Resumed
	t.Relisted += o.Relisted
	t.Events += o.Events
	t.Progress += o.Progress
}

func (t Totals) String() string {
	return fmt.Sprintf("%d calls (%d reads, %d writes: %d changed something, %d refused, %d of unknown outcome, %d of them happened), %d revisions; "+
		"%d watches, resumed %d times, relisted %d times: %d events and %d progress notifications checked",
		t.Calls, t.Reads, t.Writes, t.Changes, t.Refused, t.Unknown, t.Happened, t.Revisions, t.Watches, t.Resumed, t.Relisted, t.Events, t.Progress)
}

// maxViolations limits the violations that one mistake adds to a report.
const maxViolations = 20

func (r *Report) violated(format string, args ...any) {
	if len(r.Violations) < maxViolations {
		r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
	}
}

// Check checks the recorded history. All calls and watches must have ended, and every watcher should
// have reached the last revision. limit bounds the search for an order of the calls.
func (r *Recorder) Check(limit time.Duration) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := &Report{}
	for _, s := range r.unexpected {
		report.violated("%s", s)
	}
	l := buildLog(r.watchers)
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

// setFloors sets the floor of each call: the highest revision in an answer that arrived before it began.
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
	known := kv.Revision(1)
	for _, m := range moments {
		if m.begin {
			m.call.floor = known
		} else {
			known = max(known, m.call.Revision)
		}
	}
}

// attribute finds the call that made each revision of the log. Writes of unknown outcome get their
// revision, or turn out not to have happened.
func (r *Recorder) attribute(l *log, report *Report) map[kv.Revision]*Call {
	made := map[kv.Revision]*Call{}
	var deletes []*Call // of unknown outcome
	for _, c := range r.calls {
		switch {
		case !c.Kind.writes():
		case c.Outcome == Answered && c.Changed:
			if other := made[c.Revision]; other != nil {
				report.violated("two writes were answered with revision %d: %v; %v", c.Revision, other, c)
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
			report.violated("a refused write happened, at revision %d: %v", rev, c)
			made[rev] = c
		case c.Outcome == Unknown:
			if other := made[rev]; other != nil {
				report.violated("revision %d was made by two writes: %v; %v", rev, other, c)
			}
			c.Revision, c.Changed = rev, true
			report.Happened++
			made[rev] = c
		}
	}
	for rev := kv.Revision(2); rev <= l.head; rev++ {
		if made[rev] != nil {
			continue
		}
		events := l.at[rev]
		if len(events) == 0 {
			report.violated("no watch over all keys got revision %d", rev)
			continue
		}
		// Any of several deletions of a key may have made this revision. The log does not depend on
		// the choice, and the search tries all of them.
		n := slices.IndexFunc(deletes, func(c *Call) bool {
			return len(events) == 1 && events[0].Type == kv.EventDelete && c.Keys[0] == string(events[0].KV.Key) && c.floor < rev
		})
		if n < 0 {
			report.violated("no call can have made revision %d: %s", rev, describeEvents(events))
			continue
		}
		made[rev] = deletes[n]
		report.Happened++
		deletes = slices.Delete(deletes, n, n+1)
	}
	return made
}

// replay applies the log, and compares every answer with the state at its revision. It returns the
// state after each revision.
func (r *Recorder) replay(l *log, made map[kv.Revision]*Call, report *Report) []state {
	answers := map[kv.Revision][]*Call{}
	for _, c := range r.calls {
		if c.Outcome != Answered {
			continue
		}
		if c.Revision < c.floor {
			report.violated("answered from revision %d after an answer from %d: %v", c.Revision, c.floor, c)
		}
		if c.Revision > l.head {
			report.violated("answered from revision %d, but watches only reached %d: %v", c.Revision, l.head, c)
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
			if err := c.checkWrite(l.at[rev], now); err != nil {
				report.violated("revision %d: %v: %v", rev, c, err)
			}
			if c.floor >= rev {
				report.violated("made revision %d after an answer from %d: %v", rev, c.floor, c)
			}
		}
		for _, e := range l.at[rev] {
			if err := now.apply(e); err != nil {
				report.violated("revision %d: %v", rev, err)
			}
		}
		states[rev] = cloneState(now)
		for _, c := range answers[rev] {
			if err := c.checkRead(now); err != nil {
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

// checkWrite compares a write that changed something with the events of its revision, and its answer
// with the state before.
func (c *Call) checkWrite(events []kv.Event, before state) error {
	var keys []string
	for _, e := range events {
		keys = append(keys, string(e.KV.Key))
		if deleted := e.Type == kv.EventDelete; deleted != (c.Kind == Delete) {
			return fmt.Errorf("but the events are %s", describeEvents(events))
		}
		if c.Kind != Delete && string(e.KV.Value) != c.Value {
			return fmt.Errorf("but the events are %s", describeEvents(events))
		}
	}
	if !slices.Equal(keys, c.Keys) {
		return fmt.Errorf("but the log has changes of [%s]", strings.Join(keys, " "))
	}
	if c.Kind == Swap && before[c.Keys[0]].ModRevision != c.Expect {
		return fmt.Errorf("but the key was %s", describeKey(before, c.Keys[0]))
	}
	if want := before.get(c.Keys); c.Outcome == Answered && c.Kind != Swap && !equalAll(c.Before, want) {
		return fmt.Errorf("the answer has the previous values %s, want %s", describeAll(c.Before), describeAll(want))
	}
	return nil
}

// checkRead compares the answer to a call that changed nothing with the state at its revision.
func (c *Call) checkRead(now state) error {
	switch c.Kind {
	case Delete:
		if found := now.get(c.Keys); len(found) > 0 {
			return fmt.Errorf("it deleted nothing, but found %s", describeAll(found))
		}
		return nil
	case Swap:
		if k := now[c.Keys[0]]; k.ModRevision == c.Expect {
			return fmt.Errorf("its condition failed, but the key was %s", describeKV(k))
		}
		fallthrough
	case Get:
		if want := now.get(c.Keys); !equalAll(c.Found, want) {
			return fmt.Errorf("it found %s, want %s", describeAll(c.Found), describeAll(want))
		}
	case List, Past:
		if want := now.list(AllKeys()); !equalAll(c.Found, want) {
			return fmt.Errorf("it found %s, want %s", describeAll(c.Found), describeAll(want))
		}
	default:
		return errors.New("it changed nothing")
	}
	return nil
}

// check compares all responses of a watcher with the log.
func (w *Watcher) check(l *log, states []state) error {
	through := kv.Revision(1)
	for i, s := range w.seen {
		if s.relisted != nil {
			rev := s.relisted.Revision
			if rev < through {
				return fmt.Errorf("relisted at revision %d after reaching %d", rev, through)
			}
			if rev < kv.Revision(len(states)) {
				if want := states[rev].list(w.span); !equalAll(s.relisted.KVs, want) {
					return fmt.Errorf("relisted at revision %d and found %s, want %s", rev, describeAll(s.relisted.KVs), describeAll(want))
				}
			}
			through = rev
			continue
		}
		r := s.response
		if r.Err != nil {
			if errors.Is(r.Err, kv.ErrCompacted) && (r.CompactRevision > s.compacting || through+1 >= s.compacting) {
				return fmt.Errorf("after revision %d it got a compaction at %d, but the highest requested was %d",
					through, r.CompactRevision, s.compacting)
			}
			continue
		}
		switch {
		case r.Revision < through:
			return fmt.Errorf("response %d goes back from revision %d to %d", i, through, r.Revision)
		case r.Progress && len(r.Events) > 0:
			return fmt.Errorf("response %d is a progress notification with events", i)
		}
		if r.Revision > l.head {
			return fmt.Errorf("response %d has revision %d, but the last change was %d", i, r.Revision, l.head)
		}
		if err := sameEvents(r.Events, l.expected(w, r.Events, through+1, r.Revision, s.compacting)); err != nil {
			return fmt.Errorf("response %d, from revision %d to %d: %w", i, through+1, r.Revision, err)
		}
		through = r.Revision
	}
	if through < l.head {
		return fmt.Errorf("it reached revision %d of %d", through, l.head)
	}
	return nil
}

// expected returns the events that a watcher should have got for a range of revisions.
func (l *log) expected(w *Watcher, got []kv.Event, from, upTo, compacting kv.Revision) []kv.Event {
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
	return fmt.Errorf("got events %s, want %s", describeEvents(got), describeEvents(want))
}
