package faults_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// plan is what a run is to go through. It follows from the seed alone.
type plan struct {
	seed      uint64
	processes bool // servers are processes of their own
	lasts     time.Duration
	// enough is a revision that the run goes on to, on a machine that is slow.
	enough kv.Revision
	// recovery is how long it may take, after the last fault, until every server
	// answers and every watch has caught up.
	recovery time.Duration
	weather  weather
	steps    []step
	// tamper makes the engine wrong, to see whether that is seen.
	tamper func(kv.SharedTable) kv.Table
}

// weather is what connections are like all the time.
type weather struct {
	name   string
	faults pgproxy.Faults
	poll   time.Duration // of servers, where the database cannot notify
}

// step is one thing that goes wrong, for a while.
type step struct {
	at, lasts time.Duration
	kind      stepKind
	server    int
	faults    pgproxy.Faults // of a storm
	jump      jump
	// Of a partition: what does not get through, and whether it is lost.
	direction pgproxy.Direction
	lossy     bool
}

type stepKind string

const (
	kills      stepKind = "kill"
	freezes    stepKind = "freeze"
	partitions stepKind = "partition from the database"
	cuts       stepKind = "cut connections"
	storms     stepKind = "storm"
	crashes    stepKind = "crash of the database"
	pauses     stepKind = "pause of the database"
	compacts   stepKind = "compaction"
	jumps      stepKind = "jump of the clock"
	severs     stepKind = "cut of the network"
)

// possible is what the stage allows.
type possible struct {
	proxy, database bool
	// distributed: the weather is a distributed database's.
	distributed bool
	// lockless: it may lose locks.
	lockless bool
}

// servers is how many there are.
const servers = 3

func serverName(n int) string { return string(rune('a' + n)) }

// longRun is one of how many that lasts long enough for time-outs to run out.
const longRun = 20

func makePlan(seed uint64, lasts time.Duration, can possible) *plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := &plan{seed: seed, processes: seed%2 == 1, lasts: lasts, enough: 50, recovery: recovery}
	long := r.IntN(longRun) == 0
	if long {
		p.lasts = max(lasts, 9*time.Second)
	}
	if can.proxy {
		p.weather = weathers()[r.IntN(len(weathers()))]
	}
	if can.distributed {
		p.weather = weather{name: "distributed database, emulated", faults: pgproxy.Faults{
			ToServer: time.Millisecond, ToClient: time.Millisecond, Fail: 0.005, FailCommit: 0.03}}
		if can.lockless {
			p.weather.faults.LoseLock = 0.1
		}
	}
	// Each server has its own troubles, one after the other, and so has the
	// database. Those of one may overlap with another's: all may be down at once.
	for n := range servers {
		for at := p.pause(r); at < p.lasts; at += p.pause(r) {
			s := step{at: at, server: n, kind: serverTrouble(r, p.processes, can)}
			switch s.kind {
			case kills:
				s.lasts = millis(r, 10, 400)
			case freezes, partitions:
				s.direction, s.lossy = pgproxy.Direction(1+r.IntN(3)), r.IntN(2) == 0
				s.lasts = millis(r, 50, 700)
				if long && r.IntN(2) == 0 {
					// Longer than a database lets a silent session hold anything.
					s.lasts = millis(r, 4000, 6500)
				}
			case jumps:
				s.jump = randomJump(r)
			case storms:
				s.lasts, s.faults = millis(r, 100, 600), storm(r)
			}
			p.steps = append(p.steps, s)
			at += s.lasts
		}
	}
	if can.database && r.IntN(4) == 0 {
		s := step{at: millis(r, 200, int(p.lasts.Milliseconds())*2/3), kind: crashes}
		if r.IntN(2) == 0 {
			s.kind, s.lasts = pauses, millis(r, 50, 700)
		}
		p.steps = append(p.steps, s)
	}
	for at := millis(r, 100, 600); at < p.lasts; at += millis(r, 100, 800) {
		p.steps = append(p.steps, step{at: at, kind: compacts, server: r.IntN(servers)})
	}
	p.sort()
	return p
}

// sort puts the steps in the order in which they are taken.
func (p *plan) sort() {
	slices.SortStableFunc(p.steps, func(a, b step) int { return int(a.at - b.at) })
}

func millis(r *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+r.IntN(max(1, to-from))) * time.Millisecond
}

// pause is how long a server is left alone.
func (p *plan) pause(r *rand.Rand) time.Duration { return millis(r, 100, 1500) }

func serverTrouble(r *rand.Rand, processes bool, can possible) stepKind {
	kinds := []stepKind{kills, jumps}
	if processes {
		kinds = append(kinds, kills, freezes, freezes)
	}
	if can.proxy {
		kinds = append(kinds, partitions, partitions, cuts, storms, storms)
	}
	return kinds[r.IntN(len(kinds))]
}

func weathers() []weather {
	calm := weather{name: "calm"}
	return []weather{calm, calm,
		{name: "distant", faults: pgproxy.Faults{ToServer: 4 * time.Millisecond, ToClient: 4 * time.Millisecond}},
		{name: "contention", faults: pgproxy.Faults{Fail: 0.01, FailCommit: 0.05, Codes: []string{pgproxy.Serialization, pgproxy.Deadlock}}},
		// What is documented of databases that are distributed and speak
		// PostgreSQL's protocol: retries, no notifications, no advisory locks.
		{name: "distributed database", poll: 20 * time.Millisecond, faults: pgproxy.Faults{
			ToServer: time.Millisecond, ToClient: time.Millisecond, Fail: 0.005, FailCommit: 0.03,
			Refuse: pgproxy.Listen | pgproxy.AdvisoryLocks,
		}},
	}
}

// storm is a while in which one thing goes wrong often.
func storm(r *rand.Rand) pgproxy.Faults {
	codes := []string{pgproxy.Serialization, pgproxy.Deadlock, pgproxy.AdminShutdown}
	all := []pgproxy.Faults{
		{LoseCommitReply: 0.3},
		{AbandonCommit: 0.3},
		{LoseCommitReply: 0.1, AbandonCommit: 0.1, FailCommit: 0.1},
		{Cut: 0.01},
		{Fail: 0.1, Codes: codes},
		{FailCommit: 0.4, Codes: codes},
		{Fail: 0.02, FailCommit: 0.1, Codes: codes, Cut: 0.002, LoseCommitReply: 0.05},
		{ToServer: millis(r, 1, 40), ToClient: millis(r, 1, 40)},
	}
	return all[r.IntN(len(all))]
}

func (p *plan) String() string {
	var b strings.Builder
	kind := "in one process"
	if p.processes {
		kind = "processes"
	}
	fmt.Fprintf(&b, "seed %d: servers %s, weather %s, %v", p.seed, kind, p.weather.name, p.lasts)
	for _, s := range p.steps {
		fmt.Fprintf(&b, "\n  %6dms %s", s.at.Milliseconds(), s.kind)
		switch s.kind {
		case crashes, pauses:
		default:
			fmt.Fprintf(&b, ", server %s", serverName(s.server))
		}
		if s.lasts > 0 {
			fmt.Fprintf(&b, ", for %v", s.lasts)
		}
		switch s.kind {
		case storms:
			fmt.Fprintf(&b, ": %v", s.faults)
		case jumps:
			fmt.Fprintf(&b, ", %v", s.jump)
		case partitions, severs:
			fmt.Fprintf(&b, ", %v", s.direction)
			if s.lossy {
				b.WriteString(", losing what is sent")
			}
		}
	}
	return b.String()
}
