package history

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// log has the changes of each revision, as watches delivered them. Revision 1 has no changes.
type log struct {
	head kv.Revision
	at   map[kv.Revision][]kv.Event
	// values maps each value to the revision that wrote it.
	values map[string]kv.Revision
}

// buildLog builds a log from all watches over all keys.
func buildLog(watchers []*Watcher) *log {
	l := &log{head: 1, at: map[kv.Revision][]kv.Event{}, values: map[string]kv.Revision{}}
	for _, w := range watchers {
		if !w.whole() {
			continue
		}
		for _, s := range w.seen {
			l.add(s.response.Events)
		}
	}
	for rev, events := range l.at {
		l.head = max(l.head, rev)
		for _, e := range events {
			if e.Type == kv.EventPut {
				l.values[string(e.KV.Value)] = rev
			}
		}
	}
	return l
}

// add adds revisions that are missing or incomplete, and previous values that another watch could not
// deliver.
func (l *log) add(events []kv.Event) {
	for len(events) > 0 {
		rev := events[0].KV.ModRevision
		n := slices.IndexFunc(events, func(e kv.Event) bool { return e.KV.ModRevision != rev })
		if n < 0 {
			n = len(events)
		}
		known := l.at[rev]
		switch {
		case len(known) < n:
			l.at[rev] = slices.Clone(events[:n])
		case len(known) == n:
			for i := range known {
				if known[i].Prev == nil {
					known[i].Prev = events[i].Prev
				}
			}
		}
		events = events[n:]
	}
}

// state has the keys that exist at some revision.
type state map[string]kv.KeyValue

// apply applies an event, and returns an error if the event contradicts the state.
func (s state) apply(e kv.Event) error {
	key := string(e.KV.Key)
	old, existed := s[key]
	if e.Prev != nil && (!existed || !equal(*e.Prev, old)) {
		return fmt.Errorf("%s: the previous value was %s, not %s", describe(e), describeKey(s, key), describeKV(*e.Prev))
	}
	if e.Type == kv.EventDelete {
		delete(s, key)
		if !existed {
			return fmt.Errorf("%s: the key did not exist", describe(e))
		}
		return nil
	}
	s[key] = e.KV
	want := kv.KeyValue{Key: e.KV.Key, Value: e.KV.Value, CreateRevision: e.KV.ModRevision, ModRevision: e.KV.ModRevision, Version: 1}
	if existed {
		want.CreateRevision, want.Version = old.CreateRevision, old.Version+1
	}
	if !equal(e.KV, want) {
		return fmt.Errorf("%s: after %s, want %s", describe(e), describeKV(old), describeKV(want))
	}
	return nil
}

// list returns the keys of a span.
func (s state) list(span kv.Span) []kv.KeyValue {
	var found []kv.KeyValue
	for key, k := range s {
		if span.Contains([]byte(key)) {
			found = append(found, k)
		}
	}
	slices.SortFunc(found, func(a, b kv.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return found
}

// get returns the given keys that exist, in the given order.
func (s state) get(keys []string) []kv.KeyValue {
	var found []kv.KeyValue
	for _, key := range keys {
		if k, ok := s[key]; ok {
			found = append(found, k)
		}
	}
	return found
}

func equal(a, b kv.KeyValue) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && a.CreateRevision == b.CreateRevision &&
		a.ModRevision == b.ModRevision && a.Version == b.Version && a.Lease == b.Lease
}

func equalAll(a, b []kv.KeyValue) bool { return slices.EqualFunc(a, b, equal) }

func equalEvents(got, want kv.Event) bool {
	if got.Type != want.Type || !equal(got.KV, want.KV) || (got.Prev == nil) != (want.Prev == nil) {
		return false
	}
	return got.Prev == nil || equal(*got.Prev, *want.Prev)
}

// short shortens a value. Values may be long, but their beginnings are unique.
func short(value []byte) string {
	if len(value) > 20 {
		return fmt.Sprintf("%s… (%d bytes)", value[:20], len(value))
	}
	return string(value)
}

func describeKV(k kv.KeyValue) string {
	if k.ModRevision == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%s=%q (mod %d, create %d, version %d)", k.Key, short(k.Value), k.ModRevision, k.CreateRevision, k.Version)
}

func describeKey(s state, key string) string { return describeKV(s[key]) }

func describeAll(all []kv.KeyValue) string {
	s := "{"
	for i, k := range all {
		if i > 0 {
			s += ", "
		}
		s += describeKV(k)
	}
	return s + "}"
}

func describe(e kv.Event) string {
	if e.Type == kv.EventDelete {
		return fmt.Sprintf("deletion of %s at %d", e.KV.Key, e.KV.ModRevision)
	}
	return "put of " + describeKV(e.KV)
}

func describeEvents(events []kv.Event) string {
	s := "["
	for i, e := range events {
		if i > 0 {
			s += ", "
		}
		s += describe(e)
		if e.Prev != nil {
			s += " after " + describeKV(*e.Prev)
		}
	}
	return s + "]"
}
