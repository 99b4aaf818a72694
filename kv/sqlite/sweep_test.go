package sqlite

import (
	"fmt"
	"testing"

	"github.com/ncruces/go-sqlite3"
)

// TestSweepReadsOnlyNewChanges checks that a sweep reads only the changes since the last
// one, regardless of the size of the log.
func TestSweepReadsOnlyNewChanges(t *testing.T) {
	db := openTest(t)
	table := openTable(t, db, "default")
	round := func(from, n int) {
		t.Helper()
		for i := range n / 10 {
			var pairs []string
			for j := range 10 {
				pairs = append(pairs, fmt.Sprint("key", from+10*i+j), "v")
			}
			write(t, table, pairs...)
		}
		head, err := table.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := table.SetCompacted(t.Context(), head.Revision); err != nil {
			t.Fatal(err)
		}
		for more := true; more; {
			if more, err = table.Sweep(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
		}
	}
	steps := func() (n int) {
		t.Helper()
		err := db.writer.do(t.Context(), func(c *conn) error {
			s, err := c.stmt(qSweepRows)
			if err == nil {
				n = s.Status(sqlite3.STMTSTATUS_VM_STEP, true)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	round(0, 5000)
	steps()
	const rows = 100
	round(5000, rows)
	// About 20 steps of SQLite's virtual machine for each row, and some for each call.
	if n := steps(); n > 60*rows {
		t.Errorf("sweeping %d changes took %d steps", rows, n)
	}
}
