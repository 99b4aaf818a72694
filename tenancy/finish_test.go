package tenancy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestObserve: the decisions about a run, second by second.
func TestObserve(t *testing.T) {
	type second struct {
		at     int
		due    string
		seen   Observation
		others bool
		want   verdict
	}
	loading, quiet := Observation{First: "configmaps"}, Observation{Synced: true, Objects: 5}
	left := func(n, objects int) Observation { return Observation{Synced: true, Left: n, Objects: objects} }
	for name, seconds := range map[string][]second{
		"reads, no others wait":                 {{1, "m", left(0, 5), false, goOn}, {10, "m", left(0, 6), false, done}},
		"reads, others wait":                    {{1, "m", left(1, 5), true, goOn}, {2, "m", left(0, 6), true, parks}},
		"reads, others wait, settled":           {{10, "m", left(0, 6), true, done}},
		"reads, a new mark":                     {{10, "n", left(0, 6), true, parks}},
		"nothing is left":                       {{1, "m", loading, false, goOn}, {2, "m", quiet, false, goOn}, {9, "m", quiet, false, goOn}, {10, "m", quiet, false, done}},
		"the last change must be some time ago": {{9, "m", left(1, 6), false, goOn}, {10, "m", quiet, false, goOn}, {11, "m", quiet, false, goOn}, {12, "m", quiet, false, done}},
		"a new mark begins the time again":      {{9, "m", quiet, false, goOn}, {10, "n", quiet, false, goOn}, {19, "n", quiet, false, goOn}, {20, "n", quiet, false, done}},
		"the mark is gone":                      {{1, "m", left(1, 1), false, goOn}, {2, "", left(1, 1), false, ended}},
		"something waits for someone else":      {{1, "m", left(1, 5), false, goOn}, {30, "m", left(1, 5), false, goOn}, {31, "m", left(1, 5), false, stuck}},
		"while it proceeds, it is not stuck":    {{1, "m", left(1, 500), false, goOn}, {30, "m", left(1, 400), false, goOn}, {59, "m", left(1, 300), false, goOn}, {300, "m", left(1, 200), false, goOn}},
		"its objects cannot be read":            {{1, "m", loading, false, goOn}, {59, "m", loading, false, goOn}, {60, "m", loading, false, stuck}},
		"others wait":                           {{119, "m", left(1, 500), true, goOn}, {120, "m", left(1, 400), true, yields}},
		"no others wait":                        {{120, "m", left(1, 500), false, goOn}, {121, "m", left(1, 400), true, yields}},
		"marked again and again":                {{1, "m", quiet, false, goOn}, {9, "n", quiet, true, goOn}, {118, "o", quiet, true, goOn}, {121, "p", quiet, true, yields}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			r := &run{due: "m", began: began, marked: began, changed: began, reads: strings.HasPrefix(name, "reads")}
			for _, s := range seconds {
				if got := r.observe(began.Add(time.Duration(s.at)*time.Second), s.due, s.seen, s.others); got != s.want {
					t.Fatalf("second %d: %s, want %s", s.at, got, s.want)
				}
			}
		})
	}
}

// markDue marks a workspace as a server would.
func (s *controlled) markDue(name, due string) {
	s.api.Merge(v1alpha1.WorkspaceResource, "", name, fmt.Sprintf(`{"status":{"due":%q}}`, due))
}

func (s *controlled) due(name string) string {
	is := &v1alpha1.Workspace{}
	s.api.Read(v1alpha1.WorkspaceResource, "", name, is)
	return is.Status.Due
}

// TestFinish: the controllers of a marked workspace run until nothing is left, and then the mark is gone. A mark that is written in the
// meantime stays, and the controllers go on. They also go on if a read shows more than their caches, or fails.
func TestFinish(t *testing.T) {
	var s *controlled
	var again bool
	seconds := time.Duration(0)
	finished := make(chan string, 10)
	reads := []Observation{{}, {Synced: true, Left: 1}, {Synced: true}}
	current := func() (Observation, error) {
		is := reads[0]
		reads = reads[1:]
		if !is.Synced {
			return is, errors.New("the database does not answer")
		}
		return is, nil
	}
	s = startController(t, func(_ context.Context, path string, observed Observed) error {
		for observed(Observation{Synced: true}, current) {
			s.clock.Step(time.Second)
			if seconds += time.Second; seconds > settleTime-2*time.Second && !again {
				again = true
				s.markDue("team", "second")
			}
			time.Sleep(time.Millisecond) // the watch
		}
		finished <- path
		return nil
	})
	s.create("team")
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
	s.markDue("team", "first")
	if name := <-finished; name != "team" || len(reads) > 0 || s.due("team") != "" || seconds < settleTime {
		t.Errorf("%s is finished after %s, and its mark is %q", name, seconds, s.due("team"))
	}
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
}

// TestFinishBelow: a workspace in another one is marked in that of the root. Its mark is removed when its controllers are done, and also
// if it does not exist any more.
func TestFinishBelow(t *testing.T) {
	var s *controlled
	s = startController(t, func(ctx context.Context, path string, observed Observed) error {
		if path == "team:gone" {
			return ErrNotFound
		}
		for ctx.Err() == nil && observed(Observation{Synced: true}, func() (Observation, error) { return Observation{Synced: true}, nil }) {
			s.clock.Step(time.Second)
			time.Sleep(time.Millisecond) // the watch
		}
		return nil
	})
	uid := s.create("team")
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
	marker := NewMarker(s.api.Dynamic(), s.clock, "one")
	for _, path := range []string{"team:child", "team:gone", "team:child:grandchild"} {
		if err := marker.Mark(t.Context(), Controllers, path, "uid of "+path); err != nil {
			t.Fatal(err)
		}
	}
	fakeapi.Eventually(t, "all marks are removed", func() error {
		s.clock.Step(firstRetry) // a removal that finds another version of the Workspace is tried again
		is := &v1alpha1.Workspace{}
		s.api.Read(v1alpha1.WorkspaceResource, "", "team", is)
		if len(is.Status.DueBelow) > 0 {
			return fmt.Errorf("%v are left", is.Status.DueBelow)
		}
		if string(is.UID) != uid || is.Status.Due != "" {
			return fmt.Errorf("%+v", is)
		}
		return nil
	})
}

// TestStuck: a workspace that waits for someone else makes room for others, stays marked and is tried again; a new mark ends the wait.
func TestStuck(t *testing.T) {
	var s *controlled
	started := make(chan string, 10)
	s = startController(t, func(_ context.Context, path string, observed Observed) error {
		started <- s.due(path)
		for observed(Observation{Synced: true, Left: 1, First: "namespaces shop is being deleted"}, nil) {
			s.clock.Step(10 * time.Second)
		}
		return nil
	})
	s.create("team")
	s.markDue("team", "first")
	if due := <-started; due != "first" {
		t.Error(due)
	}
	fakeapi.Eventually(t, "it is tried again", func() error {
		s.clock.Step(firstRetry)
		if len(started) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	<-started
	if s.due("team") != "first" {
		t.Errorf("the mark is %q", s.due("team"))
	}
	s.markDue("team", "second")
	for due := range started { // without another wait
		if due == "second" {
			break
		}
	}
}

// TestTurns: no more than the limit run at a time, and one that runs for long makes room for those that wait.
func TestTurns(t *testing.T) {
	var s *controlled
	started := make(chan string, 200)
	running := make(chan struct{}, runs)
	s = startController(t, func(ctx context.Context, path string, observed Observed) error {
		select {
		case running <- struct{}{}:
		default:
			t.Error("too many run")
		}
		defer func() { <-running }()
		started <- path
		for n := 0; ctx.Err() == nil && observed(Observation{Synced: true, Left: 1, Objects: n}, nil); n++ {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	for i := range runs + 1 {
		name := fmt.Sprintf("team-%d", i)
		s.create(name)
		s.markDue(name, "m")
	}
	seen := map[string]bool{}
	for len(seen) < runs {
		seen[<-started] = true
	}
	fakeapi.Eventually(t, "the last one has a turn", func() error {
		s.clock.Step(time.Second)
		select {
		case name := <-started:
			seen[name] = true
		default:
		}
		if len(seen) <= runs {
			return errors.New("it waits")
		}
		return nil
	})
}

// TestPlace: the marks for placement are others than those for controllers. Each work is done for its own marks, and removes only these.
func TestPlace(t *testing.T) {
	var s *controlled
	var mu sync.Mutex
	done := map[string]int{}
	does := func(work string) func(context.Context, string, Observed) error {
		return func(ctx context.Context, path string, observed Observed) error {
			mu.Lock()
			done[work+" "+path]++
			mu.Unlock()
			for ctx.Err() == nil && observed(Observation{Synced: true}, func() (Observation, error) { return Observation{Synced: true}, nil }) {
				s.clock.Step(time.Second)
				time.Sleep(time.Millisecond) // the watch
			}
			return nil
		}
	}
	s = startController(t, does("controllers"), does("placement"))
	uid := s.create("team")
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
	marker := NewMarker(s.api.Dynamic(), s.clock, "one")
	for path, work := range map[string]Work{"team": Placement, "team:placed": Placement, "team:other": Controllers} {
		if err := marker.Mark(t.Context(), work, path, uid); err != nil {
			t.Fatal(err)
		}
	}
	fakeapi.Eventually(t, "all marks are removed", func() error {
		is := &v1alpha1.Workspace{}
		s.api.Read(v1alpha1.WorkspaceResource, "", "team", is)
		if status := is.Status; status.Due != "" || status.PlacementDue != "" || len(status.DueBelow)+len(status.PlacementDueBelow) > 0 {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"placement team", "placement team:placed", "controllers team:other"} {
		if done[want] == 0 {
			t.Errorf("%s was not done", want)
		}
	}
	if len(done) != 3 {
		t.Errorf("done: %v", done)
	}
}

// TestPark: workspaces that have nothing left to place give their place to those that wait, and lose their marks all the same.
func TestPark(t *testing.T) {
	var s *controlled
	var running, most atomic.Int32
	s = startController(t, func(context.Context, string, Observed) error { return nil }, func(ctx context.Context, _ string, observed Observed) error {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer running.Add(-1)
		for ctx.Err() == nil && observed(Observation{Synced: true}, func() (Observation, error) { return Observation{Synced: true}, nil }) {
			time.Sleep(time.Millisecond) // the clock
		}
		return nil
	})
	marker := NewMarker(s.api.Dynamic(), s.clock, "one")
	var names []string
	for i := range 3 * runs {
		name := fmt.Sprintf("team-%d", i)
		names = append(names, name)
		if err := marker.Mark(t.Context(), Placement, name, s.create(name)); err != nil {
			t.Fatal(err)
		}
	}
	fakeapi.Eventually(t, "all marks are removed", func() error {
		s.clock.Step(time.Second)
		for _, name := range names {
			is := &v1alpha1.Workspace{}
			if s.api.Read(v1alpha1.WorkspaceResource, "", name, is); is.Status.PlacementDue != "" {
				return fmt.Errorf("%s is due, and %d run", name, running.Load())
			}
		}
		return nil
	})
	if most.Load() > runs {
		t.Errorf("%d ran at the same time", most.Load())
	}
}
