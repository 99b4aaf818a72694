package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/infra/testproviders/host"
	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

func TestTypesAreTheSameEachTime(t *testing.T) {
	one, other := New(1500), New(1500)
	if !reflect.DeepEqual(one.Resources, other.Resources) {
		t.Error("two providers have different types")
	}
	if len(one.Resources) != 1500 {
		t.Errorf("it has %d types", len(one.Resources))
	}
	kinds := map[string]bool{}
	for name, schema := range one.Resources {
		if len(schema.Block.Attributes) != attributes || len(schema.Block.BlockTypes) != blocks {
			t.Errorf("%s has %d attributes and %d blocks", name, len(schema.Block.Attributes), len(schema.Block.BlockTypes))
		}
		seen := map[string]bool{}
		for _, a := range schema.Block.Attributes {
			seen[a.Name] = true
			kinds[a.Type.String()] = true
		}
		if len(seen) != attributes {
			t.Errorf("%s has attributes with one name", name)
		}
	}
	if len(kinds) != 7 {
		t.Errorf("there are attributes of %d types", len(kinds))
	}
}

// TestLives takes some types through their life, with a new server for each call, as after a
// restart.
func TestLives(t *testing.T) {
	dir := t.TempDir()
	fresh := func() *host.Host { return host.Start(t, New(12), fmt.Sprintf(`{"directory":%q}`, dir)) }
	for i := range 12 {
		made := fresh().Make(host.Thing{Type: typeName(i)}, `{"name":"a"}`)
		read, says := fresh().Read(made)
		if len(says) > 0 || host.Show(read.State) != host.Show(made.State) {
			t.Fatalf("%s: read %s, %q", typeName(i), host.Show(read.State), says)
		}
		if same := fresh().Plan(read, `{"name":"a"}`); host.Show(same.Planned) != host.Show(read.State) {
			t.Errorf("%s: with nothing to do it plans %s", typeName(i), host.Show(same.Planned))
		}
		if replaced := fresh().Plan(read, `{"name":"a","zone":"z"}`).Replace; len(replaced) != 1 {
			t.Errorf("%s: another zone replaces because of %q", typeName(i), replaced)
		}
		fresh().Make(fresh().Make(made, `{"name":"b"}`), "")
	}
	entries, err := world.ReadLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, e := range entries {
		counts[e.Call]++
		if e.Call == "update" && strings.Join(e.Changed, " ") != "name revision" {
			t.Errorf("the update changed %q", e.Changed)
		}
	}
	delete(counts, "configure")
	if got, want := fmt.Sprint(counts), "map[create:12 delete:12 read:12 update:12]"; got != want {
		t.Errorf("the log has %s, want %s", got, want)
	}
}

func TestQuietReads(t *testing.T) {
	dir := t.TempDir()
	h := host.Start(t, New(1), fmt.Sprintf(`{"directory":%q,"log_reads":false}`, dir))
	h.Read(h.Make(host.Thing{Type: typeName(0)}, `{"name":"a"}`))
	entries, err := world.ReadLog(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("the log has %v, %v", entries, err)
	}
}
