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

// jump is a jump of a server's clock.
type jump struct {
	By time.Duration
	// Monotonic: the monotonic clock jumps too, as on a machine that counts the time it was suspended.
	// It never goes back. Otherwise only the time of day jumps, as if an administrator set it.
	Monotonic bool
}

func (j jump) String() string {
	if j.Monotonic {
		return fmt.Sprintf("by %v, as after a suspend", j.By)
	}
	return fmt.Sprintf("by %v", j.By)
}

func randomJump(r *rand.Rand) jump {
	j := jump{By: millis(r, 60_000, 48*3_600_000).Truncate(time.Second), Monotonic: r.IntN(3) == 0}
	if !j.Monotonic && r.IntN(2) == 0 {
		j.By = -j.By
	}
	return j
}

// jumpyClock is the clock of a server's machine. Its jumps persist over restarts of the server.
type jumpyClock struct {
	clock.RealClock // timers stay real, so waits take no longer

	mu        sync.Mutex
	jumps     []jump // future jumps
	wall      time.Duration
	monotonic time.Duration
}

// newJumpyClock returns a clock that has already made the first jumps.
func newJumpyClock(jumps []jump, made int) *jumpyClock {
	c := &jumpyClock{jumps: jumps}
	for range made {
		c.jump()
	}
	return c
}

// jump makes the next jump, if any.
func (c *jumpyClock) jump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.jumps) == 0 {
		return
	}
	j := c.jumps[0]
	c.jumps = c.jumps[1:]
	if j.Monotonic {
		c.monotonic += j.By
	} else {
		c.wall += j.By
	}
}

func (c *jumpyClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return setTimeOfDay(time.Now().Add(c.monotonic), c.wall)
}

func (c *jumpyClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// setTimeOfDay changes the time of day of a time, but not its monotonic clock reading. Package time has
// no function for that, because only the operating system does it. So this relies on the representation
// of a time, and TestTimeOfDayJumps fails if that changes.
func setTimeOfDay(t time.Time, by time.Duration) time.Time {
	const secondsAt = 30 // the bits below are nanoseconds
	wall := (*uint64)(unsafe.Pointer(&t))
	*wall += uint64(by/time.Second) << secondsAt
	return t
}

func TestTimeOfDayJumps(t *testing.T) {
	c := newJumpyClock([]jump{{By: -5 * time.Hour}, {By: 7 * time.Hour}, {By: time.Hour, Monotonic: true}}, 0)
	begin, real := c.Now(), time.Now()
	offBy := func(step string, wantDay, wantDuration time.Duration) {
		t.Helper()
		const leeway = time.Minute
		if off := time.Duration(c.Now().Unix()-time.Now().Unix()) * time.Second; (off - wantDay).Abs() > leeway {
			t.Errorf("%s: the time of day is off by %v, want %v", step, off, wantDay)
		}
		if off := c.Since(begin) - time.Since(real); (off - wantDuration).Abs() > leeway {
			t.Errorf("%s: durations are off by %v, want %v", step, off, wantDuration)
		}
	}
	offBy("at first", 0, 0)
	c.jump()
	offBy("set back", -5*time.Hour, 0)
	c.jump()
	offBy("set forward", 2*time.Hour, 0)
	c.jump()
	offBy("after a suspend", 3*time.Hour, time.Hour)
	c.jump() // no jumps remain
	offBy("after all of them", 3*time.Hour, time.Hour)
}

// jumpsOf returns the jumps of a server's clock, in order.
func (p *plan) jumpsOf(server int) (all []jump) {
	for _, s := range p.steps {
		if s.kind == jumps && s.server == server {
			all = append(all, s.jump)
		}
	}
	return all
}

// TestClocks injects jumps of clocks alone, at a high rate. TestFaults and TestLeases inject them among
// other faults.
func TestClocks(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL")
	}
	t.Parallel()
	st := newStage(t)
	for _, processes := range []bool{false, true} {
		t.Run(fmt.Sprintf("processes=%v", processes), func(t *testing.T) {
			p := &plan{seed: seedOf(t), lasts: 2 * time.Second, minRevision: 50, recovery: recovery, processes: processes}
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

// seedOf returns the seed of the flag, or a random one.
func seedOf(t *testing.T) uint64 {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64N(1e9)
	}
	t.Logf("seed %d", seed)
	return seed
}
