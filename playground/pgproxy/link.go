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

// Faults says what goes wrong, and how often: chances are between 0 and 1.
// The zero value is a proxy that nobody notices.
type Faults struct {
	// ToServer and ToClient delay what passes; together they are added to every
	// round trip.
	ToServer, ToClient time.Duration
	// Cut is the chance that a connection ends at a message, in either direction.
	Cut float64
	// LoseCommitReply is the chance that a COMMIT is carried out, and the
	// connection ends instead of the answer.
	LoseCommitReply float64
	// AbandonCommit is the chance that a COMMIT is sent on and the client's
	// connection ends at once, while the server still works on it.
	AbandonCommit float64
	// Fail is the chance that a statement fails before it has done anything, and
	// FailCommit that a COMMIT does, and the transaction is rolled back.
	Fail, FailCommit float64
	// Codes to fail with, chosen at random: Serialization if there are none.
	Codes []string
	// Refuse are features that this database does not have.
	Refuse Features
	// LoseLock is the chance that a connection's statement prepared with FOR UPDATE
	// holds nothing: locks of serializable transactions of CockroachDB get lost when
	// a range moves, and only the order of transactions is kept.
	LoseLock float64
	// SequenceCache has identity columns that are made from now on give every
	// session so many numbers at a time, so that rows do not get theirs in order.
	SequenceCache int
}

// String tells what goes wrong.
func (f Faults) String() string {
	var parts []string
	if f.ToServer+f.ToClient > 0 {
		parts = append(parts, fmt.Sprintf("%v to the server and %v back", f.ToServer, f.ToClient))
	}
	for _, c := range []struct {
		what   string
		chance float64
	}{
		{"cut", f.Cut}, {"lose the reply to COMMIT", f.LoseCommitReply}, {"abandon COMMIT", f.AbandonCommit},
		{"fail", f.Fail}, {"fail COMMIT", f.FailCommit}, {"lose a lock", f.LoseLock},
	} {
		if c.chance > 0 {
			parts = append(parts, fmt.Sprintf("%s %g %%", c.what, 100*c.chance))
		}
	}
	if len(f.Codes) > 0 {
		parts = append(parts, "with "+strings.Join(f.Codes, " or "))
	}
	if f.Refuse != 0 {
		parts = append(parts, "without "+f.Refuse.String())
	}
	if f.SequenceCache > 0 {
		parts = append(parts, fmt.Sprintf("sequences in lots of %d", f.SequenceCache))
	}
	if len(parts) == 0 {
		return "no faults"
	}
	return strings.Join(parts, ", ")
}

// Codes to fail with. AdminShutdown ends the connection, too.
const (
	Serialization = "40001"
	Deadlock      = "40P01"
	AdminShutdown = "57P01"

	featureNotSupported = "0A000"
)

// Features of PostgreSQL that others who speak its protocol lack.
type Features uint8

const (
	Listen Features = 1 << iota
	Notify
	AdvisoryLocks
)

// Kinds of faults, in Counts. Statements that failed are counted by "failed "
// and the code, commits by "failed commit " and the code.
const (
	Cuts               = "connections cut"
	CommitRepliesLost  = "replies to COMMIT lost"
	CommitsAbandoned   = "COMMITs abandoned"
	FeaturesRefused    = "features refused"
	SequencesCached    = "sequences cached"
	LocksLost          = "connections without locks"
	Freezes            = "freezes"
	Lost               = "connections lost in a partition"
	failedPrefix       = "failed "
	failedCommitPrefix = "failed commit "
)

// Counts tells how often each kind of fault has happened.
type Counts map[string]int64

// Add adds others' counts.
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

// Link is all connections of one client.
type Link struct {
	name    string
	proxy   *Proxy
	divided gates

	mu         sync.Mutex
	faults     Faults
	opened     uint64 // connections so far
	sessions   map[*session]struct{}
	swallowing Direction
}

// Set sets what goes wrong from now on.
func (l *Link) Set(f Faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = f
}

// Cut ends all connections.
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
			renamed[e.startup(name)] = value
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
	// A source each for the two directions, because how they interleave depends
	// on the machine.
	s.upChance = rand.New(rand.NewPCG(l.proxy.config.Seed, name.Sum64()+2*number))
	s.downChance = rand.New(rand.NewPCG(l.proxy.config.Seed, name.Sum64()+2*number+1))
	if !l.divided.wait(ctx, Both) {
		return
	}
	if s.server, err = l.proxy.dial(ctx); err != nil {
		return // as a database that is not there: the connection ends
	}
	s.run(raw)
}
