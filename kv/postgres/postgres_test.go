package postgres

import (
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

func TestTable(t *testing.T) {
	table := openTable(t, openTest(t), "default")
	write(t, table, "a", "1", "b", "2", "a", "3", "b", "", "c", "5", "b", "6")
	for rev, want := range []string{
		2: "a=1@2", 3: "a=1@2 b=2@3", 4: "a=3@4 b=2@3", 5: "a=3@4", 6: "a=3@4 c=5@6", 7: "a=3@4 b=6@7 c=5@6",
	} {
		if rev < 2 {
			continue
		}
		if got := dump(t, table, kv.Revision(rev)); got != want {
			t.Errorf("at %d: %s, want %s", rev, got, want)
		}
	}
	if got := dump(t, table, 0); got != "a=3@4 b=6@7 c=5@6" {
		t.Error(got)
	}
	list, head, err := table.Changes(t.Context(), 3, 100, 2, true)
	if err != nil || len(list) != 2 || head.Revision != 7 {
		t.Fatal(list, head, err)
	}
	if c := list[0]; string(c.KV.Key) != "a" || c.Prev == nil || string(c.Prev.Value) != "1" || c.PrevRevision != 2 {
		t.Errorf("%+v", c)
	}
	if c := list[1]; !c.Deleted || string(c.Prev.Value) != "2" {
		t.Errorf("%+v", c)
	}
	if got, err := table.Inspect(t.Context()); err != nil || got.Keys != 3 || got.History != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := table.SetCompacted(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		var err error
		if more, err = table.Sweep(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
	}
	if got := dump(t, table, 6); got != "a=3@4 c=5@6" {
		t.Error(got)
	}
	if got := dump(t, table, 7); got != "a=3@4 b=6@7 c=5@6" {
		t.Error(got)
	}
	if got, err := table.Inspect(t.Context()); err != nil || got.Keys != 3 || got.History != 0 {
		t.Errorf("swept: %+v, %v", got, err)
	}
	if err := table.db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
