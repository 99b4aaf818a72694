package faults_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"k8s.io/utils/clock"
)

// jump is what happens to a server's clock.
type jump struct {
	By time.Duration
	// Whole: the clock that durations are measured with jumps, too, as on a
	// machine that has slept and counts that. It never goes back. Otherwise only
	// the time of day jumps, as when an administrator sets it.
	Whole bool
}

func (j jump) String() string {
	if j.Whole {
		return fmt.Sprintf("by %v, as after a sleep", j.By)
	}
	return fmt.Sprintf("by %v", j.By)
}

func randomJump(r *rand.Rand) jump {
	j := jump{By: millis(r, 60_000, 48*3_600_000).Truncate(time.Second), Whole: r.IntN(3) == 0}
	if !j.Whole && r.IntN(2) == 0 {
		j.By = -j.By
	}
	return j
}

// jumpyClock is the clock of a server's machine: it jumps, and a restart of
// the server does not put it right.
type jumpyClock struct {
	clock.RealClock // of which timers are: what waits does not wait longer

	mu    sync.Mutex
	jumps []jump // to come
	wall  time.Duration
	whole time.Duration
}

// newJumpyClock makes a clock that has made the first jumps already.
func newJumpyClock(jumps []jump, made int) *jumpyClock {
	c := &jumpyClock{jumps: jumps}
	for range made {
		c.jump()
	}
	return c
}

// jump takes the next jump.
func (c *jumpyClock) jump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.jumps) == 0 {
		return
	}
	j := c.jumps[0]
	c.jumps = c.jumps[1:]
	if j.Whole {
		c.whole += j.By
	} else {
		c.wall += j.By
	}
}

func (c *jumpyClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return setTimeOfDay(time.Now().Add(c.whole), c.wall)
}

func (c *jumpyClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// setTimeOfDay changes the time of day of a time, and not the reading of the
// monotonic clock that is in it. Package time has no way to do that: it happens
// to programs, they do not do it. So this goes by how a time is stored, and
// TestTimeOfDayJumps tells when that changes.
func setTimeOfDay(t time.Time, by time.Duration) time.Time {
	const secondsAt = 30 // the bits below are nanoseconds
	wall := (*uint64)(unsafe.Pointer(&t))
	*wall += uint64(by/time.Second) << secondsAt
	return t
}

func TestTimeOfDayJumps(t *testing.T) {
	c := newJumpyClock([]jump{{By: -5 * time.Hour}, {By: 7 * time.Hour}, {By: time.Hour, Whole: true}}, 0)
	begin, real := c.Now(), time.Now()
	offBy := func(what string, wantDay, wantDuration time.Duration) {
		t.Helper()
		const leeway = time.Minute
		if off := time.Duration(c.Now().Unix()-time.Now().Unix()) * time.Second; (off - wantDay).Abs() > leeway {
			t.Errorf("%s: the time of day is off by %v, not by %v", what, off, wantDay)
		}
		if off := c.Since(begin) - time.Since(real); (off - wantDuration).Abs() > leeway {
			t.Errorf("%s: durations are off by %v, not by %v", what, off, wantDuration)
		}
	}
	offBy("at first", 0, 0)
	c.jump()
	offBy("set back", -5*time.Hour, 0)
	c.jump()
	offBy("set forward", 2*time.Hour, 0)
	c.jump()
	offBy("after a sleep", 3*time.Hour, time.Hour)
	c.jump() // there is none
	offBy("after all of them", 3*time.Hour, time.Hour)
}

// jumpsOf are the jumps of a server's clock, in order.
func (p *plan) jumpsOf(server int) (all []jump) {
	for _, s := range p.steps {
		if s.kind == jumps && s.server == server {
			all = append(all, s.jump)
		}
	}
	return all
}

// TestClocks has nothing go wrong but clocks, and those all the time. In
// TestFaults and TestLeases they jump among other things.
func TestClocks(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL")
	}
	t.Parallel()
	st := newStage(t)
	for _, processes := range []bool{false, true} {
		t.Run(fmt.Sprintf("processes=%v", processes), func(t *testing.T) {
			p := &plan{seed: seedOf(t), lasts: 2 * time.Second, enough: 50, recovery: recovery, processes: processes}
			r := rand.New(rand.NewPCG(p.seed, 0))
			for at := 50 * time.Millisecond; at < p.lasts; at += millis(r, 10, 60) {
				p.steps = append(p.steps, step{at: at, server: r.IntN(servers), kind: jumps, jump: randomJump(r)})
			}
			run, o := perform(t, st, p)
			run.judge(t, o)
			t.Logf("%d jumps; %v", o.steps[jumps], o.Totals)
		})
	}
}

// seedOf is the seed that was asked for, or a random one.
func seedOf(t *testing.T) uint64 {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64N(1e9)
	}
	t.Logf("seed %d", seed)
	return seed
}
