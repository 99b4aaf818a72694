package faults_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/pgproxy"
	"github.com/atoll-dev/atoll/test/history"
)

// totals adds up the outcomes of all runs.
type totals struct {
	runs, processes       int
	took                  time.Duration
	history               history.Totals
	steps                 map[stepKind]int
	injected              pgproxy.Counts
	violations, undecided int
	slowest               time.Duration
}

func (s *totals) add(p *plan, o *outcome) {
	s.runs++
	if p.processes {
		s.processes++
	}
	s.history.Add(o.Totals)
	for kind, n := range o.steps {
		s.steps[kind] += n
	}
	s.injected.Add(o.injected)
	s.violations += len(o.Violations)
	if o.Undecided {
		s.undecided++
	}
	s.slowest = max(s.slowest, o.recovery)
}

func (s *totals) String() string {
	var steps []string
	for _, kind := range slices.Sorted(maps.Keys(s.steps)) {
		steps = append(steps, fmt.Sprintf("%s: %d", kind, s.steps[kind]))
	}
	return fmt.Sprintf("%d runs in %v, %d with servers in processes of their own\n  %v\n  steps: %s\n  connection faults: %v\n"+
		"  all servers and watches recovered at most %v after the last fault\n  violations: %d, undecided: %d",
		s.runs, s.took.Round(time.Second), s.processes, s.history, strings.Join(steps, ", "), s.injected,
		s.slowest.Round(time.Millisecond), s.violations, s.undecided)
}

// TestFaults performs runs with consecutive seeds.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL and takes most of a minute")
	}
	t.Parallel()
	first := *seedFlag
	if first == 0 {
		first = rand.Uint64N(1e9)
	}
	runs := *runsFlag
	if *seedFlag != 0 && runs == defaultRuns {
		runs = 1 // a given seed repeats one run
	}
	sum := &totals{steps: map[stepKind]int{}, injected: pgproxy.Counts{}}
	begin := time.Now()
	seeds := make(chan uint64, runs)
	for n := range runs {
		seeds <- first + uint64(n)
	}
	close(seeds)
	var mu sync.Mutex
	t.Run("stages", func(t *testing.T) {
		for n := range *stageFlag {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				st := newStage(t)
				for seed := range seeds {
					t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
						p := makePlan(seed, *timeFlag, st.possible())
						r, o := perform(t, st, p)
						mu.Lock()
						sum.add(p, o)
						mu.Unlock()
						r.judge(t, o)
					})
				}
			})
		}
	})
	sum.took = time.Since(begin)
	t.Log(sum)
}

// judge fails the test if the run found a violation.
func (r *run) judge(t *testing.T, o *outcome) {
	t.Helper()
	if testing.Verbose() {
		t.Logf("%v\n  %v\n  connection faults: %v; recovered in %v", r.plan, o.Totals, o.injected, o.recovery.Round(time.Millisecond))
	}
	if o.Undecided {
		t.Errorf("no decision within %v whether the calls are linearizable", searchLimit)
	}
	if len(o.Violations) == 0 {
		return
	}
	where := filepath.Join(t.ArtifactDir(), "history.txt")
	if f, err := os.Create(where); err == nil {
		fmt.Fprintf(f, "%v\n\n%s\n\n", r.plan, strings.Join(o.Violations, "\n"))
		_ = r.recorder.Dump(f)
		_ = f.Close()
	}
	t.Errorf("%d violations:\n%s\n\nrepeat: go test ./test/faults -v -seed %d\nall calls and events: %s (kept with -artifacts)\n%v",
		len(o.Violations), strings.Join(o.Violations, "\n"), r.plan.seed, where, r.plan)
}

// TestPlansFollowFromTheSeed: otherwise a failed run could not be repeated.
func TestPlansFollowFromTheSeed(t *testing.T) {
	kinds := map[stepKind]bool{}
	for seed := range uint64(100) {
		all := possible{proxy: true, database: true}
		a, b := makePlan(seed, time.Second, all), makePlan(seed, time.Second, all)
		if a.String() != b.String() {
			t.Errorf("%v\n%v", a, b)
		}
		for _, s := range a.steps {
			kinds[s.kind] = true
		}
		for _, s := range makePlan(seed, time.Second, possible{}).steps {
			if s.kind != kills && s.kind != freezes && s.kind != compacts && s.kind != jumps {
				t.Errorf("seed %d plans a %s, which is not possible there", seed, s.kind)
			}
		}
	}
	if len(kinds) != 9 {
		t.Errorf("a hundred seeds plan only %v", slices.Collect(maps.Keys(kinds)))
	}
}
