package faults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/postgres"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// server is one of the three.
type server interface {
	// start it, as often as it takes: the database may be away.
	start(ctx context.Context) error
	// keyspace as a client reaches it; an error while it is down.
	keyspace() (kv.Keyspace, error)
	// kill ends it without warning.
	kill()
	// freeze and thaw stop its time, if that is possible.
	freeze()
	thaw()
	// jump has its clock jump.
	jump()
	// close ends it for good, and tells what it complained of.
	close() error
}

// place is where a server finds its data.
type place struct {
	Name     string // of the server
	URL      string
	Keyspace string
	Schema   string
	Poll     time.Duration
	// Jumps that its clock is going to make.
	Jumps []jump
	// tamper, if set, puts something between the table and the engine. It cannot
	// be passed to another process.
	tamper func(kv.SharedTable) kv.Table
}

// patience of a server with its database: short, so that a run shows what
// happens when it is over.
const patience = 2 * time.Second

// open opens the keyspace, once.
func (p *place) open(ctx context.Context, clock *jumpyClock) (*postgres.DB, *mvcc.Keyspace, error) {
	options := []postgres.Option{postgres.WithTimeout(patience), postgres.WithMaxConns(8), postgres.WithClock(clock)}
	if p.Schema != "" {
		options = append(options, postgres.WithSchema(p.Schema))
	}
	if p.Poll > 0 {
		options = append(options, postgres.WithPoll(p.Poll))
	}
	db, err := postgres.Open(ctx, p.URL, options...)
	if err != nil {
		return nil, nil, err
	}
	table, err := db.Open(ctx, p.Keyspace)
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	if p.tamper != nil {
		table = p.tamper(table.(kv.SharedTable))
	}
	ks, err := mvcc.Open(ctx, table, db, mvcc.Options{Clock: clock})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return db, ks, nil
}

// openPatiently opens the keyspace as soon as the database lets it.
func (p *place) openPatiently(ctx context.Context, clock *jumpyClock) (*postgres.DB, *mvcc.Keyspace, error) {
	for {
		db, ks, err := p.open(ctx, clock)
		if err == nil || ctx.Err() != nil || !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrUnknownOutcome) {
			return db, ks, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

var errDown = fmt.Errorf("the server is down: %w", kv.ErrUnavailable)

// local is a server in this process: cheap, and under the race detector
// together with its clients.
type local struct {
	place place
	clock *jumpyClock
	link  *pgproxy.Link // nil without a proxy

	mu      sync.Mutex
	ks      *mvcc.Keyspace
	closing sync.WaitGroup // what was killed
	db      *postgres.DB
}

func (s *local) start(ctx context.Context) error {
	db, ks, err := s.place.openPatiently(ctx, s.clock)
	if err != nil {
		return fmt.Errorf("server %s does not start: %w", s.place.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db, s.ks = db, ks
	return nil
}

func (s *local) keyspace() (kv.Keyspace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ks == nil {
		return nil, errDown
	}
	return s.ks, nil
}

// kill takes its connections away and forgets everything that was in memory.
// Its calls end as they would with a process that dies, except that some still
// learn what became of them.
func (s *local) kill() {
	s.mu.Lock()
	db, ks := s.db, s.ks
	s.db, s.ks = nil, nil
	s.mu.Unlock()
	if ks == nil {
		return
	}
	if s.link != nil {
		s.link.Cut()
	}
	s.closing.Go(func() {
		ks.Close()
		db.Close()
	})
}

// freeze does nothing: this process is its clients', too.
func (s *local) freeze() {}
func (s *local) thaw()   {}

func (s *local) jump() { s.clock.jump() }

func (s *local) close() error {
	s.kill()
	s.closing.Wait()
	return nil
}
