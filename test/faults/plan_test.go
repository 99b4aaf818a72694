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

// plan has the steps of a run. The seed alone determines it.
type plan struct {
	seed      uint64
	processes bool // servers are processes of their own
	lasts     time.Duration
	// minRevision is a revision that the run must reach, however slow the machine is.
	minRevision kv.Revision
	// recovery limits the time after the last fault until every server answers and every watch has
	// caught up.
	recovery   time.Duration
	conditions conditions
	steps      []step
	// tamper injects a bug into the engine, to test that the checks detect it.
	tamper func(kv.SharedTable) kv.Table
}

// conditions of the connections for the whole run.
type conditions struct {
	name   string
	faults pgproxy.Faults
	poll   time.Duration // poll interval of servers, where the database cannot notify
}

// step is one fault, for a while.
type step struct {
	at, lasts time.Duration
	kind      stepKind
	server    int
	faults    pgproxy.Faults // of a storm
	jump      jump
	// The direction of a partition, and whether it drops data.
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

// possible has the faults that the stage supports.
type possible struct {
	proxy, database bool
	// distributed: the conditions are those of a distributed database.
	distributed bool
	// lockless: the database may lose locks.
	lockless bool
}

// servers is the number of servers.
const servers = 3

func serverName(n int) string { return string(rune('a' + n)) }

// One run in longRun lasts long minRevision for timeouts to expire.
const longRun = 20

func makePlan(seed uint64, lasts time.Duration, can possible) *plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := &plan{seed: seed, processes: seed%2 == 1, lasts: lasts, minRevision: 50, recovery: recovery}
	long := r.IntN(longRun) == 0
	if long {
		p.lasts = max(lasts, 9*time.Second)
	}
	if can.proxy {
		p.conditions = allConditions()[r.IntN(len(allConditions()))]
	}
	if can.distributed {
		p.conditions = conditions{name: "distributed database, emulated", faults: pgproxy.Faults{
			ToServer: time.Millisecond, ToClient: time.Millisecond, Fail: 0.005, FailCommit: 0.03}}
		if can.lockless {
			p.conditions.faults.LoseLock = 0.1
		}
	}
	// Each server, and the database, has its own faults, one after the other. Faults of different servers
	// may overlap: all may be down at once.
	for n := range servers {
		for at := p.pause(r); at < p.lasts; at += p.pause(r) {
			s := step{at: at, server: n, kind: serverFault(r, p.processes, can)}
			switch s.kind {
			case kills:
				s.lasts = millis(r, 10, 400)
			case freezes, partitions:
				s.direction, s.lossy = pgproxy.Direction(1+r.IntN(3)), r.IntN(2) == 0
				s.lasts = millis(r, 50, 700)
				if long && r.IntN(2) == 0 {
					// Longer than a database lets a silent session hold locks.
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

// sort sorts the steps by their times.
func (p *plan) sort() {
	slices.SortStableFunc(p.steps, func(a, b step) int { return int(a.at - b.at) })
}

func millis(r *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+r.IntN(max(1, to-from))) * time.Millisecond
}

// pause returns the time between two faults of a server.
func (p *plan) pause(r *rand.Rand) time.Duration { return millis(r, 100, 1500) }

func serverFault(r *rand.Rand, processes bool, can possible) stepKind {
	kinds := []stepKind{kills, jumps}
	if processes {
		kinds = append(kinds, kills, freezes, freezes)
	}
	if can.proxy {
		kinds = append(kinds, partitions, partitions, cuts, storms, storms)
	}
	return kinds[r.IntN(len(kinds))]
}

func allConditions() []conditions {
	calm := conditions{name: "calm"}
	return []conditions{calm, calm,
		{name: "distant", faults: pgproxy.Faults{ToServer: 4 * time.Millisecond, ToClient: 4 * time.Millisecond}},
		{name: "contention", faults: pgproxy.Faults{Fail: 0.01, FailCommit: 0.05, Codes: []string{pgproxy.Serialization, pgproxy.Deadlock}}},
		// According to the documentation of distributed databases with PostgreSQL's protocol: retries,
		// no notifications, no advisory locks.
		{name: "distributed database", poll: 20 * time.Millisecond, faults: pgproxy.Faults{
			ToServer: time.Millisecond, ToClient: time.Millisecond, Fail: 0.005, FailCommit: 0.03,
			Refuse: pgproxy.Listen | pgproxy.AdvisoryLocks,
		}},
	}
}

// storm returns faults of one kind at a high rate.
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
	kind := "in the test's process"
	if p.processes {
		kind = "in separate processes"
	}
	fmt.Fprintf(&b, "seed %d: servers %s, connections %s, %v", p.seed, kind, p.conditions.name, p.lasts)
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
				b.WriteString(", dropping data")
			}
		}
	}
	return b.String()
}
