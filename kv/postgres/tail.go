package postgres

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// numMarks is the number of positions that a table remembers.
const numMarks = 64

// marks remembers where revisions end in the log: every change above revision rev has log
// ID next or a later one. So the log is read from there on, without asking the database for
// the position.
type marks struct {
	ring [numMarks]mark
	last int
}

type mark struct {
	rev  kv.Revision
	next int64
}

// add records a position. Positions older than the last are useless.
func (m *marks) add(rev kv.Revision, next int64) {
	if rev > m.ring[m.last].rev {
		m.last = (m.last + 1) % numMarks
		m.ring[m.last] = mark{rev, next}
	}
}

// after returns the position from which to read changes above a revision, 0 if unknown.
func (m *marks) after(rev kv.Revision) (best mark) {
	for _, one := range m.ring {
		if one.rev <= rev && one.rev > best.rev {
			best = one
		}
	}
	return best
}

// changesByID implements Changes where the log is read from a given ID. It takes one round
// trip if the position is known, as it is for a tailing reader.
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
	// One more row shows whether the last revision is complete. Further rows are read only
	// if it is not.
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

// placeAfter returns the log ID from which to read changes above a revision, 0 if there are
// none.
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

// number numbers the changes of each revision.
func number(list []kv.Change) {
	for i := range list {
		if i > 0 && list[i].KV.ModRevision == list[i-1].KV.ModRevision {
			list[i].Sub = list[i-1].Sub + 1
		}
	}
}
