package pace

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestOrder(t *testing.T) {
	l := NewLine(cmp.Compare[string])
	l.SetLimits(Limits{Rate: 10}, start)
	now := start
	for _, o := range []struct {
		name     string
		priority int32
	}{{"d", 0}, {"b", 5}, {"c", 0}, {"a", -1}} {
		if l.Ask(o.name, o.priority, now) {
			t.Errorf("%s may leave at once", o.name)
		}
	}
	l.Ask("e", 0, now.Add(time.Millisecond))
	l.Ask("c", 5, now.Add(time.Millisecond)) // its pods have another class now
	var order []string
	for range 5 {
		next, again := l.Next(now, 0)
		if order = append(order, next...); len(order) < 5 {
			now = now.Add(again)
		}
	}
	if want := []string{"b", "c", "d", "e", "a"}; !slices.Equal(order, want) {
		t.Errorf("%v leave, want %v", order, want)
	}
	if took := now.Sub(start); took < 400*time.Millisecond || took > 401*time.Millisecond {
		t.Errorf("five objects begin to leave within %s", took)
	}
	if !l.Ask("a", -1, now) {
		t.Error("a has had its turn, and may not leave")
	}
	if !l.Forget("a") || l.Forget("a") || l.Ask("a", -1, now) {
		t.Error("a has left, and need not wait again")
	}
}

func TestLimitsChange(t *testing.T) {
	l := NewLine(cmp.Compare[int])
	for i := range 100 {
		l.Ask(i, 0, start)
	}
	if next, again := l.Next(start.Add(time.Hour), 0); len(next) > 0 || again != 0 {
		t.Errorf("without limits, %v leave, and again after %s", next, again)
	}
	now := start.Add(2 * time.Hour)
	l.SetLimits(Limits{Rate: 5, Most: 3}, now)
	var all []int
	for range 100 {
		next, again := l.Next(now, 2)
		all, now = append(all, next...), now.Add(min(max(again, time.Millisecond), 100*time.Millisecond))
	}
	if !slices.Equal(all, []int{0}) {
		t.Errorf("with two that leave and at most three, %v leave", all)
	}
	if next, _ := l.Next(now.Add(turnTimeout), 2); !slices.Equal(next, []int{0, 1}) {
		t.Errorf("0 does not use its turn, and is to ask again, after which it is 1's turn; got %v", next)
	}
	l.Forget(1)
	now = now.Add(turnTimeout)
	if next, _ := l.Next(now, 3); len(next) > 0 {
		t.Errorf("a fourth leaves: %v", next)
	}
	l.SetLimits(Limits{}, now)
	if next, _ := l.Next(now.Add(time.Hour), 0); len(next) > 0 {
		t.Errorf("paused, and %v leave", next)
	}
	// Nothing is saved up in a pause.
	l.SetLimits(Limits{Rate: 20}, now.Add(time.Hour))
	if next, _ := l.Next(now.Add(time.Hour), 0); len(next) > 2 {
		t.Errorf("after the pause, %v leave at once", next)
	}
}

// TestProperties: with random askers, limits and times, no more leave than the limits permit, each object has at most
// one turn, a higher priority comes first, and all leave.
func TestProperties(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		limits := Limits{Rate: 1 + rng.Int32N(50), Most: rng.Int32N(6)}
		l := NewLine(cmp.Compare[int])
		now := start
		l.SetLimits(limits, now)
		burst := max(1, float64(limits.Rate)/10)
		priorities, waiting, leaving, left := map[int]int32{}, map[int]bool{}, map[int]bool{}, map[int]bool{}
		var times []time.Time
		n := 1 + rng.IntN(40)
		fail := func(what string) { t.Fatalf("seed %d, %+v: %s", seed, limits, what) }
		for step := 0; len(left) < n; step++ {
			if step > 5000 {
				fail(fmt.Sprintf("only %d of %d have left", len(left), n))
			}
			for i := len(priorities); i < n && rng.IntN(3) > 0; i++ {
				priorities[i], waiting[i] = rng.Int32N(3), true
				if l.Ask(i, priorities[i], now) {
					fail("an object need not wait")
				}
			}
			next, again := l.Next(now, len(leaving))
			for _, i := range next {
				if !waiting[i] {
					fail(fmt.Sprintf("%d has a turn and does not wait", i))
				}
				delete(waiting, i)
				for other := range waiting {
					if priorities[other] > priorities[i] && !slices.Contains(next, other) {
						fail(fmt.Sprintf("%d leaves before %d", i, other))
					}
				}
				if !l.Ask(i, priorities[i], now) {
					fail(fmt.Sprintf("%d has a turn, and has to wait", i))
				}
				leaving[i] = true
				l.Forget(i)
				times = append(times, now)
			}
			if limits.Most > 0 && len(leaving) > int(limits.Most) {
				fail(fmt.Sprintf("%d leave at the same time", len(leaving)))
			}
			if again == 0 && len(waiting) > 0 && (limits.Most == 0 || len(leaving) < int(limits.Most)) {
				fail("objects wait for nothing")
			}
			for i := range leaving {
				if rng.IntN(2) == 0 {
					delete(leaving, i)
					left[i] = true
				}
			}
			now = now.Add(max(again, time.Duration(rng.IntN(200))*time.Millisecond))
		}
		for i := range times {
			for j := i; j < len(times); j++ {
				if most := burst + times[j].Sub(times[i]).Seconds()*float64(limits.Rate); float64(j-i+1) > most+0.001 {
					fail(fmt.Sprintf("%d begin to leave within %s", j-i+1, times[j].Sub(times[i])))
				}
			}
		}
		if waits, turns := l.Len(); waits+turns > 0 {
			fail("something is left in the line")
		}
	}
}
