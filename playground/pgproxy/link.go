package pgproxy

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Faults configures faults and their chances, between 0 and 1. The zero value is a transparent proxy.
type Faults struct {
	// ToServer and ToClient delay messages; together they are added to every round trip.
	ToServer, ToClient time.Duration
	// Cut is the chance that a message, in either direction, ends its connection.
	Cut float64
	// LoseCommitReply is the chance that the connection ends after a COMMIT is executed and before its
	// answer.
	LoseCommitReply float64
	// AbandonCommit is the chance that a COMMIT is forwarded and the client's connection ends at
	// once, while the server still executes it.
	AbandonCommit float64
	// Fail is the chance that a statement fails before it is executed. FailCommit is the chance that
	// a COMMIT fails and its transaction is rolled back.
	Fail, FailCommit float64
	// MisreportCommit is the chance that a COMMIT is executed and reported as an error, as by a
	// distributed database that does not know its outcome.
	MisreportCommit float64
	// Codes are the SQLSTATE codes to choose from; if empty, Serialization. A message may follow a
	// code, after a space: databases have errors that differ only in their messages.
	Codes []string
	// Refuse has the features that this database lacks.
	Refuse Features
	// LoseLock is the chance that a statement prepared with FOR UPDATE takes no locks on its
	// connection. CockroachDB's serializable transactions lose locks when a range moves, and only
	// their order is kept.
	LoseLock float64
	// SequenceCache is the cache size of identity columns created from now on: each session reserves so
	// many numbers at a time, so numbers are not in order over sessions.
	SequenceCache int
}

// String lists the faults.
func (f Faults) String() string {
	var parts []string
	if f.ToServer+f.ToClient > 0 {
		parts = append(parts, fmt.Sprintf("%v to the server and %v back", f.ToServer, f.ToClient))
	}
	for _, c := range []struct {
		name   string
		chance float64
	}{
		{"cut", f.Cut}, {"lose the reply to COMMIT", f.LoseCommitReply}, {"abandon COMMIT", f.AbandonCommit},
		{"fail", f.Fail}, {"fail COMMIT", f.FailCommit}, {"misreport COMMIT", f.MisreportCommit}, {"lose a lock", f.LoseLock},
	} {
		if c.chance > 0 {
			parts = append(parts, fmt.Sprintf("%s %g %%", c.name, 100*c.chance))
		}
	}
	if len(f.Codes) > 0 {
		parts = append(parts, "with "+strings.Join(f.Codes, " or "))
	}
	if f.Refuse != 0 {
		parts = append(parts, "without "+f.Refuse.String())
	}
	if f.SequenceCache > 0 {
		parts = append(parts, fmt.Sprintf("sequences cached by %d", f.SequenceCache))
	}
	if len(parts) == 0 {
		return "no faults"
	}
	return strings.Join(parts, ", ")
}

// SQLSTATE codes to fail with. AdminShutdown ends the connection as well.
const (
	Serialization = "40001"
	Deadlock      = "40P01"
	AdminShutdown = "57P01"

	featureNotSupported = "0A000"
)

// Features of PostgreSQL that other databases with its protocol lack.
type Features uint8

const (
	Listen Features = 1 << iota
	Notify
	AdvisoryLocks
)

// Kinds of faults in Counts. Failed statements are counted as "failed CODE", failed commits as
// "failed commit CODE", executed ones that were reported as failed as "misreported commit CODE".
const (
	Cuts               = "connections cut"
	CommitRepliesLost  = "replies to COMMIT lost"
	CommitsAbandoned   = "COMMITs abandoned"
	FeaturesRefused    = "features refused"
	SequencesCached    = "sequences cached"
	LocksLost          = "connections that lost locks"
	Freezes            = "freezes"
	Lost               = "connections lost in a partition"
	failedPrefix       = "failed "
	failedCommitPrefix = "failed commit "
	misreportedPrefix  = "misreported commit "
)

// Counts maps each kind of fault to the number of times that it happened.
type Counts map[string]int64

// Add adds the counts of other.
func (c Counts) Add(other Counts) {
	for kind, n := range other {
		c[kind] += n
	}
}

func (c Counts) String() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, kind+": "+strconv.FormatInt(c[kind], 10))
	}
	return strings.Join(parts, ", ")
}

type counts struct {
	mu sync.Mutex
	of Counts
}

func (c *counts) add(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = Counts{}
	}
	c.of[kind]++
}

func (c *counts) snapshot() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		return Counts{}
	}
	return maps.Clone(c.of)
}

// Link has all connections of one client.
type Link struct {
	name    string
	proxy   *Proxy
	blocked gates

	mu       sync.Mutex
	faults   Faults
	opened   uint64 // connections so far
	sessions map[*session]struct{}
	dropping Direction
}

// Set sets the faults from now on.
func (l *Link) Set(f Faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = f
}

// Cut ends all connections of the client.
func (l *Link) Cut() {
	l.mu.Lock()
	sessions := slices.Collect(maps.Keys(l.sessions))
	l.mu.Unlock()
	for _, s := range sessions {
		l.proxy.counts.add(Cuts)
		s.cut()
	}
}

func (l *Link) current() Faults {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.faults
}

// serve runs a session until it ends.
func (l *Link) serve(client net.Conn, startup *pgproto3.StartupMessage) {
	if e := l.proxy.emulated; e != nil {
		renamed := map[string]string{}
		for name, value := range startup.Parameters {
			renamed[e.setting(name)] = value
		}
		startup.Parameters = renamed
	}
	raw, err := startup.Encode(nil)
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(l.proxy.ctx)
	defer cancel()
	s := &session{link: l, ctx: ctx, cancel: cancel, client: client, statements: map[string]class{}, portals: map[string]class{}}
	l.mu.Lock()
	l.opened++
	number := l.opened
	l.sessions[s] = struct{}{}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.sessions, s)
	}()
	name := fnv.New64a()
	_, _ = name.Write([]byte(l.name))
	// Each direction has a random source of its own, because their interleaving depends on the
	// machine.
	s.upChance = rand.New(rand.NewPCG(l.proxy.config.Seed, name.Sum64()+2*number))
	s.downChance = rand.New(rand.NewPCG(l.proxy.config.Seed, name.Sum64()+2*number+1))
	if !l.blocked.wait(ctx, Both) {
		return
	}
	if s.server, err = l.proxy.dial(ctx); err != nil {
		return // like an unreachable database: the connection ends
	}
	s.run(raw)
}
