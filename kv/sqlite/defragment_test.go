package sqlite

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// fill writes values and removes their history, so that most of the file is free.
func fill(t *testing.T, table kv.Table) {
	t.Helper()
	for i := range 200 {
		write(t, table, fmt.Sprint("key", i%2), strings.Repeat("v", 50_000))
	}
	head, err := table.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := table.SetCompacted(t.Context(), head.Revision); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = table.Sweep(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
	}
}

func size(t *testing.T, db *DB) int64 {
	t.Helper()
	fi, err := os.Stat(db.path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Size()
}

// TestDefragment checks that the file shrinks while another goroutine writes, and keeps its
// data.
func TestDefragment(t *testing.T) {
	db := openTest(t)
	table := openTable(t, db, "default")
	for round := range 2 {
		fill(t, table)
		if err := db.writer.empty(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := size(t, db)
		ctx, stop := context.WithCancel(t.Context())
		written := make(chan int)
		go func() {
			n := 0
			for ; ctx.Err() == nil; n++ {
				write(t, table, "other", fmt.Sprint(n))
			}
			written <- n
		}()
		err := db.Defragment(t.Context())
		stop()
		n := <-written
		if err != nil {
			t.Fatal(err)
		}
		if err := db.writer.empty(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := size(t, db); after > before/10 {
			t.Errorf("round %d: %d bytes before, %d after", round, before, after)
		}
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if got := dump(t, table, 0); !strings.Contains(got, fmt.Sprint("other=", n-1)) || !strings.Contains(got, "key1=vvv") {
			t.Errorf("round %d: the data are %.200s", round, got)
		}
	}
}
