package postgres

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// numMarks is how many places in the log a table remembers.
const numMarks = 64

// marks remembers where in the log revisions end: whatever is above revision rev
// has log id next or a later one. So the log is read from there on, without
// asking the database where that is.
type marks struct {
	ring [numMarks]mark
	last int
}

type mark struct {
	rev  kv.Revision
	next int64
}

// add notes a place. Older ones than the last are of no use.
func (m *marks) add(rev kv.Revision, next int64) {
	if rev > m.ring[m.last].rev {
		m.last = (m.last + 1) % numMarks
		m.ring[m.last] = mark{rev, next}
	}
}

// after is the place from which to look for what is above a revision, 0 if
// none is known.
func (m *marks) after(rev kv.Revision) (best mark) {
	for _, one := range m.ring {
		if one.rev <= rev && one.rev > best.rev {
			best = one
		}
	}
	return best
}

// changesByID is Changes where the log is read by ids that are named. It takes
// one round trip if the place is known, as it is for whoever follows.
func (t *table) changesByID(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) (list []kv.Change, at kv.Head, err error) {
	from, at, err := t.placeAfter(ctx, after)
	if err != nil || from == 0 {
		return nil, at, err
	}
	q := qChanges
	if withPrev {
		q = qChangesPrev
	}
	limit = min(limit, 1<<40)
	// One row more shows whether the last revision is whole. What follows is read
	// only for one that is not.
	for batch, done := int64(limit)+1, false; !done; batch = max(batch, 256) {
		var part []kv.Change
		var next int64
		send := func(c *conn) { c.send(q, int4(t.id), int8(from), int8(batch)) }
		err = t.snapshot(ctx, "read log", send, func(c *conn, h head) error {
			at, part, next, done = h.Head, nil, from, false
			var rows int64
			_, err := c.result(func(cols *columns) error {
				rows++
				id := cols.int()
				ch := readChange(cols, withPrev, h.Compacted)
				switch rev := ch.KV.ModRevision; {
				case done || rev <= after:
				case rev > upTo, len(list)+len(part) >= limit && rev != lastRevision(list, part):
					done = true
				default:
					part = append(part, ch)
				}
				next = id + 1
				return nil
			})
			done = done || rows < batch
			return err
		})
		if err != nil {
			return nil, at, err
		}
		list, from = append(list, part...), next
	}
	number(list)
	return list, at, nil
}

// placeAfter finds the log id from which to look for what is above a
// revision, 0 if there is nothing.
func (t *table) placeAfter(ctx context.Context, after kv.Revision) (from int64, at kv.Head, err error) {
	t.mu.Lock()
	known := t.marks.after(after)
	t.mu.Unlock()
	if known.rev > 0 {
		return known.next, at, nil
	}
	err = t.snapshot(ctx, "read log", func(c *conn) { c.send(qCommitAfter, int4(t.id), int8(after)) }, func(c *conn, h head) error {
		at, from = h.Head, 0
		_, err := c.result(func(cols *columns) error { from = cols.int(); return nil })
		return err
	})
	return from, at, err
}

func lastRevision(lists ...[]kv.Change) (rev kv.Revision) {
	for _, list := range lists {
		if n := len(list); n > 0 {
			rev = list[n-1].KV.ModRevision
		}
	}
	return rev
}

// number counts the changes of each revision.
func number(list []kv.Change) {
	for i := range list {
		if i > 0 && list[i].KV.ModRevision == list[i-1].KV.ModRevision {
			list[i].Sub = list[i-1].Sub + 1
		}
	}
}
