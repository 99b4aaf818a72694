package kvtest

import (
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// History checks the reported history of a new table while it is written, compacted and
// swept. write puts keys, each in its own revision and all in one commit.
func History(t *testing.T, table kv.HistoryReporter, write func(pairs ...string)) {
	t.Helper()
	kept := func(when string, want kv.History) {
		t.Helper()
		if got, err := table.History(t.Context()); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", when, got, err, want)
		}
	}
	kept("empty", kv.History{Head: kv.Head{Revision: 1}})
	for range 5 {
		write("a", "1", "b", "2")
	}
	kept("written", kv.History{Head: kv.Head{Revision: 11}, Changes: 10})
	if err := table.SetCompacted(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	kept("compacted", kv.History{Head: kv.Head{Revision: 11, Compacted: 7}, Changes: 4, Unswept: 6})
	if more, err := table.Sweep(t.Context(), 2); err != nil || !more {
		t.Fatal(more, err)
	}
	kept("half swept", kv.History{Head: kv.Head{Revision: 11, Compacted: 7}, Changes: 4, Unswept: 4})
	for more := true; more; {
		var err error
		if more, err = table.Sweep(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
	}
	kept("swept", kv.History{Head: kv.Head{Revision: 11, Compacted: 7}, Changes: 4})
	if err := table.SetCompacted(t.Context(), 11); err != nil {
		t.Fatal(err)
	}
	kept("compacted at the head", kv.History{Head: kv.Head{Revision: 11, Compacted: 11}, Unswept: 6})
}
