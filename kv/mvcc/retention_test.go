package mvcc

import (
	"slices"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

func TestRetentionDecides(t *testing.T) {
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	// A hundred revisions a minute, for ten minutes.
	var marks []mark
	for i := range 11 {
		marks = append(marks, mark{start.Add(time.Duration(i) * time.Minute), kv.Revision(100 * i)})
	}
	now := start.Add(10 * time.Minute)
	head := kv.Head{Revision: 1000}
	for name, c := range map[string]struct {
		Retention
		kv.History
		want cut
	}{
		"nothing":                      {Retention{}, kv.History{Head: head}, cut{}},
		"age":                          {Retention{Age: 3 * time.Minute}, kv.History{Head: head}, cut{700, false}},
		"age, between two looks":       {Retention{Age: 150 * time.Second}, kv.History{Head: head}, cut{700, false}},
		"age, too young":               {Retention{Age: time.Hour}, kv.History{Head: head}, cut{}},
		"age, compacted":               {Retention{Age: 3 * time.Minute}, kv.History{Head: kv.Head{Revision: 1000, Compacted: 700}}, cut{}},
		"revisions":                    {Retention{Revisions: 250}, kv.History{Head: head}, cut{750, false}},
		"revisions, few":               {Retention{Revisions: 2000}, kv.History{Head: head}, cut{}},
		"changes within their bound":   {Retention{MaxChanges: 1000}, kv.History{Head: head, Changes: 1000}, cut{}},
		"changes, down to 3/4":         {Retention{MaxChanges: 800}, kv.History{Head: head, Changes: 1000}, cut{400, true}},
		"changes, ten a revision":      {Retention{MaxChanges: 8000}, kv.History{Head: head, Changes: 10000}, cut{400, true}},
		"changes, not below the floor": {Retention{MaxChanges: 10}, kv.History{Head: head, Changes: 1000}, cut{800, true}},
		"changes, floor compacted":     {Retention{MaxChanges: 10}, kv.History{Head: kv.Head{Revision: 1000, Compacted: 800}, Changes: 200}, cut{}},
		"changes, age goes further":    {Retention{MaxChanges: 800, Age: time.Minute}, kv.History{Head: head, Changes: 1000}, cut{900, false}},
		"changes go further than age":  {Retention{MaxChanges: 100, Age: 5 * time.Minute}, kv.History{Head: head, Changes: 1000}, cut{800, true}},
	} {
		c.Retention.fill()
		if got := c.decide(now, marks, c.History); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestRetentionMarks: what is noted stays ascending, and does not grow for ever.
func TestRetentionMarks(t *testing.T) {
	r := Retention{MaxChanges: 1 << 40}
	r.fill()
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var marks []mark
	for i := range 100_000 {
		m := mark{start.Add(time.Duration(i) * time.Minute), kv.Revision(i / 2)}
		marks = r.note(marks, m, 10)
	}
	if len(marks) > maxMarks || len(marks) < maxMarks/2 {
		t.Errorf("%d marks", len(marks))
	}
	if !slices.IsSortedFunc(marks, func(a, b mark) int { return a.at.Compare(b.at) }) {
		t.Error("marks are out of order")
	}
	if first, last := marks[0], marks[len(marks)-1]; first.rev != 10 || last.rev != 49_999 {
		t.Errorf("marks from %v to %v", first, last)
	}
	if marks = r.note(marks, marks[len(marks)-1], 49_999); len(marks) != 1 {
		t.Errorf("%d marks of what is compacted", len(marks))
	}
}
