package history

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// Dump writes the whole record as text.
func (r *Recorder) Dump(to io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := slices.Clone(r.calls)
	slices.SortFunc(calls, func(a, b *Call) int { return cmp.Compare(a.Begin, b.Begin) })
	for _, c := range calls {
		s := fmt.Sprintf("%d-%d %v", c.Begin, c.End, c)
		if c.Outcome == Answered && !c.Changed {
			s += " found " + describeAll(c.Found)
		}
		if c.Outcome == Answered && len(c.Before) > 0 {
			s += " after " + describeAll(c.Before)
		}
		if _, err := fmt.Fprintln(to, s); err != nil {
			return err
		}
	}
	for _, w := range r.watchers {
		if _, err := fmt.Fprintf(to, "\nwatcher %s\n", w.name); err != nil {
			return err
		}
		for _, s := range w.seen {
			if _, err := fmt.Fprintln(to, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s seen) String() string {
	switch r := s.response; {
	case s.relisted != nil:
		return fmt.Sprintf("relisted at revision %d: %s", s.relisted.Revision, describeAll(s.relisted.KVs))
	case r.Err != nil:
		return fmt.Sprintf("ended: %v (compacted up to %d)", r.Err, r.CompactRevision)
	case r.Progress:
		return fmt.Sprintf("progress to revision %d", r.Revision)
	default:
		return fmt.Sprintf("up to revision %d: %s", r.Revision, describeEvents(r.Events))
	}
}
