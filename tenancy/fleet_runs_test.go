package tenancy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"
)

// TestFleetIdle: a mark is removed only if exactly this one was seen for long enough, and there was no Cluster since.
func TestFleetIdle(t *testing.T) {
	begin := time.Now()
	f := FleetIdle{Settle: time.Minute}
	for i, tt := range []struct {
		after    time.Duration
		mark     string
		clusters int64
		want     bool
	}{
		{0, "a", 0, false},
		{59 * time.Second, "a", 0, false},
		{60 * time.Second, "a", 1, false},
		{119 * time.Second, "a", 0, false},
		{120 * time.Second, "b", 0, false}, // another Cluster is being created
		{179 * time.Second, "b", 0, false},
		{180 * time.Second, "b", 0, true},
		{300 * time.Second, "", 0, false},
	} {
		if got := f.Observe(begin.Add(tt.after), tt.mark, tt.clusters); got != tt.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

// TestChooseFleets: fleets that run keep their places, and others wait for free ones.
func TestChooseFleets(t *testing.T) {
	marks := map[string]string{"a": "3/x", "b": "2/x", "c": "1/x", "d": "2/y", "e": "of an earlier version"}
	for places, want := range map[int]fleetChoice{
		1: {wait: []string{"e", "b", "d", "a"}},
		3: {start: []string{"e"}, wait: []string{"b", "d", "a"}},
		5: {start: []string{"e", "b", "d"}, wait: []string{"a"}},
		9: {start: []string{"e", "b", "d", "a"}},
	} {
		got := chooseFleets(marks, map[string]int{"c": 0, "gone": 0}, places)
		if !slices.Equal(got.start, want.start) || !slices.Equal(got.wait, want.wait) {
			t.Errorf("%d places: %+v, want %+v", places, got, want)
		}
	}
}

// TestNextMark: each mark is another one, and keeps the place of the first.
func TestNextMark(t *testing.T) {
	first, err := nextMark("")
	if err != nil {
		t.Fatal(err)
	}
	second, err := nextMark(first)
	if err != nil || second == first || sinceOf(second) != sinceOf(first) {
		t.Errorf("%s after %s: %v", second, first, err)
	}
	if other, err := nextMark(""); err != nil || sinceOf(other) <= sinceOf(first) {
		t.Errorf("%s after %s: %v", other, first, err)
	}
	if former, err := nextMark("of-an-earlier-version"); err != nil || sinceOf(former) != "" {
		t.Errorf("%s: %v", former, err)
	}
}

// fleetMarks are marks that a test changes.
type fleetMarks struct {
	mu      sync.Mutex
	marks   map[string]string
	running map[string]bool
	waits   []string
	fails   int
	changed chan struct{}
}

func (f *fleetMarks) set(marks map[string]string) {
	f.mu.Lock()
	f.marks = marks
	f.mu.Unlock()
	f.changed <- struct{}{}
}

func (f *fleetMarks) await(t *testing.T, want ...string) {
	t.Helper()
	f.awaitIn(t, f.running, want...)
}

// awaitIn waits until a set has these paths and no others.
func (f *fleetMarks) awaitIn(t *testing.T, set map[string]bool, want ...string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		f.mu.Lock()
		got := slices.Sorted(maps.Keys(set))
		f.mu.Unlock()
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v, want %v", got, want)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestRunFleets: marked workspaces have a fleet as long as there are places. One that fails is run again, and one without a mark makes room for
// another.
func TestRunFleets(t *testing.T) {
	f := &fleetMarks{running: map[string]bool{}, changed: make(chan struct{}), fails: 1}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- RunFleets(ctx, FleetConfig{Max: 2, Changed: f.changed, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
			Marks: func() map[string]string {
				f.mu.Lock()
				defer f.mu.Unlock()
				return maps.Clone(f.marks)
			},
			Waits: func(_ context.Context, path string) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.waits = append(f.waits, path)
			},
			Run: func(ctx context.Context, path string) error {
				f.mu.Lock()
				if path == "a" && f.fails > 0 {
					f.fails--
					f.mu.Unlock()
					return errors.New("it fails once")
				}
				f.running[path] = true
				f.mu.Unlock()
				<-ctx.Done()
				f.mu.Lock()
				defer f.mu.Unlock()
				delete(f.running, path)
				return nil
			}})
	}()
	f.set(map[string]string{"a": "1", "b": "1", "c": "1"})
	f.await(t, "a", "b")
	f.set(map[string]string{"a": "2", "b": "1", "c": "1"})
	f.await(t, "a", "b")
	f.set(map[string]string{"a": "2", "c": "1"})
	f.await(t, "a", "c")
	f.set(nil)
	f.await(t)
	f.set(map[string]string{"b": "1"})
	f.await(t, "b")
	f.mu.Lock()
	if !slices.Equal(f.waits, []string{"c"}) {
		t.Errorf("%v waited", f.waits)
	}
	f.mu.Unlock()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.await(t)
}

// TestManyFleets: of 100 workspaces that are marked at once, as many run as there are places, and the others wait. Each gets a place in the order of
// the marks when another one has no Clusters any more, and its wait ends then.
func TestManyFleets(t *testing.T) {
	const all, places = 100, 32
	f := &fleetMarks{running: map[string]bool{}, changed: make(chan struct{})}
	waiting := map[string]bool{}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- RunFleets(ctx, FleetConfig{Max: places, Changed: f.changed, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
			Marks: func() map[string]string {
				f.mu.Lock()
				defer f.mu.Unlock()
				return maps.Clone(f.marks)
			},
			Waits: f.during(waiting),
			Run: func(ctx context.Context, path string) error {
				f.during(f.running)(ctx, path)
				return nil
			}})
	}()
	marks, inOrder := map[string]string{}, []string{}
	for i := range all {
		path := fmt.Sprintf("w%03d", (i*37)%all) // the order is not that of the paths
		marks[path], inOrder = fmt.Sprintf("%03d/x", i), append(inOrder, path)
	}
	for first := range all - places + 1 {
		f.set(maps.Clone(marks))
		f.await(t, slices.Sorted(slices.Values(inOrder[first:first+places]))...)
		f.awaitIn(t, waiting, slices.Sorted(slices.Values(inOrder[first+places:]))...)
		delete(marks, inOrder[first])
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.await(t)
}

// during returns a function that has a path in a set until its context ends.
func (f *fleetMarks) during(set map[string]bool) func(context.Context, string) {
	return func(ctx context.Context, path string) {
		f.mu.Lock()
		set[path] = true
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(set, path)
	}
}
