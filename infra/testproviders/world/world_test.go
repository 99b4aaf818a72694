package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain lets this test binary be the process that TestKill kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("WORLD_TO_WORK_IN"); dir != "" {
		work(dir)
	}
	os.Exit(m.Run())
}

// work creates, changes and removes objects until it is killed.
func work(dir string) {
	w, err := Open(dir)
	if err != nil {
		panic(err)
	}
	for range 4 {
		go func() {
			for i := 0; ; i++ {
				id := NewID("thing")
				if err := errors.Join(w.Create(id, named(fmt.Sprint(i))), w.Update(id, named(fmt.Sprint(i, " again")))); err != nil {
					panic(err)
				}
				if i%2 == 0 {
					if err := w.Delete(id, false); err != nil {
						panic(err)
					}
				}
			}
		}()
	}
	select {}
}

func named(name string) map[string]json.RawMessage {
	encoded, _ := json.Marshal(name) // strings never fail
	return map[string]json.RawMessage{"name": encoded}
}

func open(t *testing.T, dir string) *World {
	t.Helper()
	w, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { w.Close() })
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestKill kills processes at random moments, two at a time in one world. Every object must be
// complete, and the log must explain its version.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	for range 5 {
		lines := len(entries(t, dir))
		var workers []*exec.Cmd
		for range 2 {
			worker := exec.Command(os.Args[0])
			worker.Env = append(os.Environ(), "WORLD_TO_WORK_IN="+dir)
			worker.Stderr = os.Stderr
			must(t, worker.Start())
			workers = append(workers, worker)
		}
		for tick := time.Tick(time.Millisecond); len(entries(t, dir)) < lines+60; <-tick {
			if t.Context().Err() != nil {
				t.Fatal("nothing is done")
			}
		}
		for _, worker := range workers {
			must(t, worker.Process.Kill())
			worker.Wait() // reports that it was killed
		}
		checkWhole(t, dir)
	}
}

func entries(t *testing.T, dir string) []Entry {
	t.Helper()
	all, err := ReadLog(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return all
}

func checkWhole(t *testing.T, dir string) {
	t.Helper()
	version := map[string]int{}
	for i, e := range entries(t, dir) {
		if e.Serial != int64(i+1) {
			t.Fatalf("line %d has serial %d", i+1, e.Serial)
		}
		if e.Call == "create" && version[e.ID] != 0 || e.Call == "update" && e.Version != version[e.ID]+1 {
			t.Errorf("%s of %s to version %d, which has version %d", e.Call, e.ID, e.Version, version[e.ID])
		}
		version[e.ID] = e.Version
		if e.Call == "delete" {
			version[e.ID] = -1
		}
	}
	objects, err := open(t, dir).Objects("thing") // reads each, and fails if one is incomplete
	must(t, err)
	for _, o := range objects {
		// The last line may be missing, because it is written after the change.
		if at := version[o.ID]; at == -1 || o.Version-at > 1 {
			t.Errorf("%s has version %d, the log says %d", o.ID, o.Version, at)
		}
	}
}

func TestTheLogGoesOnAfterATornLine(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	must(t, first.Note(Entry{Call: "read"}))
	file, err := os.OpenFile(filepath.Join(dir, "log.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteString(`{"serial":2,"call":"up`)
	must(t, errors.Join(err, file.Close()))
	must(t, open(t, dir).Note(Entry{Call: "delete"}))
	must(t, first.Note(Entry{Call: "create"}))
	all := entries(t, dir)
	if len(all) != 3 || all[1].Call != "delete" || all[2].Serial != 3 {
		t.Errorf("the log has %v", all)
	}
}

func TestTwoWorldsShareOneLog(t *testing.T) {
	dir := t.TempDir()
	worlds := []*World{open(t, dir), open(t, dir)}
	var done sync.WaitGroup
	for i := range 100 {
		done.Go(func() {
			if err := worlds[i%2].Note(Entry{Call: "read"}); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	all := entries(t, dir)
	for i, e := range all {
		if e.Serial != int64(i+1) {
			t.Fatalf("line %d has serial %d", i+1, e.Serial)
		}
	}
	if len(all) != 100 || all[0].Process == "" {
		t.Errorf("the log has %d lines, want 100 (%+v)", len(all), all[0])
	}
}

// TestUseOrDelete adds a reference while another goroutine deletes its target. At most one of them
// may succeed.
func TestUseOrDelete(t *testing.T) {
	w := open(t, t.TempDir())
	for i := range 200 {
		id, user := NewID("used"), NewID("user")
		must(t, w.Create(id, named(fmt.Sprint(i))))
		var used, deleted error
		var both sync.WaitGroup
		both.Go(func() { used = w.Use(id, user) })
		both.Go(func() { deleted = w.Delete(id, true) })
		both.Wait()
		if used == nil && deleted == nil {
			t.Fatal("it is deleted and in use")
		}
		if deleted != nil && !errors.Is(deleted, ErrInUse) || used != nil && !errors.Is(used, ErrGone) {
			t.Fatalf("use: %v; delete: %v", used, deleted)
		}
		if used == nil {
			must(t, w.Release(id, user))
			must(t, w.Delete(id, true))
		}
	}
}

func TestInvalidID(t *testing.T) {
	w := open(t, t.TempDir())
	for _, id := range []string{"", "thing", "thing-", "-1", "../thing-1", "thing-../../x", "a/b-1", "thing-1.json"} {
		if _, err := w.Get(id); !errors.Is(err, ErrGone) {
			t.Errorf("Get(%q): %v", id, err)
		}
		if err := w.Create(id, nil); err == nil {
			t.Errorf("Create(%q) created an object", id)
		}
	}
	if _, err := Open("here"); err == nil || !strings.Contains(err.Error(), "is not absolute") {
		t.Errorf("Open of a relative path: %v", err)
	}
}

func TestAttempts(t *testing.T) {
	w := open(t, t.TempDir())
	for i, key := range []string{"a", "a", "b", "a"} {
		n, err := w.Attempt(key)
		must(t, err)
		if want := []int{1, 2, 1, 3}[i]; n != want {
			t.Errorf("attempt %d of %s counts as %d", want, key, n)
		}
	}
}

func TestFindRequiresUniqueName(t *testing.T) {
	w := open(t, t.TempDir())
	must(t, w.Create(NewID("thing"), named("one")))
	must(t, w.Create(NewID("thing"), named("two")))
	must(t, w.Create(NewID("thing"), named("two")))
	if found, err := w.Find("thing", "one"); err != nil || found.Text("name") != "one" {
		t.Errorf("found %v, %v", found, err)
	}
	if _, err := w.Find("thing", "two"); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("found one of two: %v", err)
	}
	if _, err := w.Find("thing", "three"); !errors.Is(err, ErrGone) {
		t.Errorf("found a missing object: %v", err)
	}
}

// BenchmarkCreate creates objects, 16 at a time per core, like a busy host. Each is on disk as far
// as the log is concerned.
func BenchmarkCreate(b *testing.B) {
	w, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := w.Create(NewID("thing"), named("n")); err != nil {
				b.Error(err)
			}
		}
	})
}
