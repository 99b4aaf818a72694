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

// server is one of the three servers.
type server interface {
	// start starts it, and retries while the database is down.
	start(ctx context.Context) error
	// keyspace returns the keyspace for a client, or an error while the server is down.
	keyspace() (kv.Keyspace, error)
	// kill ends it without warning.
	kill()
	// freeze and thaw stop and continue it, if it is a process of its own.
	freeze()
	thaw()
	// jump makes its clock jump.
	jump()
	// close ends it for good, and returns an error if its log shows a crash.
	close() error
}

// serverConfig has the server's keyspace and clock.
type serverConfig struct {
	Name     string // of the server
	URL      string
	Keyspace string
	Schema   string
	Poll     time.Duration
	// Jumps that its clock is going to make.
	Jumps []jump
	// tamper, if set, wraps the table that the engine uses. It cannot be passed to another process.
	tamper func(kv.SharedTable) kv.Table
}

// datastoreTimeout limits how long a server waits for its database. It is short, so that it expires
// during runs.
const datastoreTimeout = 2 * time.Second

// open opens the keyspace, without retries.
func (p *serverConfig) open(ctx context.Context, clock *jumpyClock) (*postgres.DB, *mvcc.Keyspace, error) {
	options := []postgres.Option{postgres.WithTimeout(datastoreTimeout), postgres.WithMaxConns(8), postgres.WithClock(clock)}
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

// openWithRetry opens the keyspace, and retries while the database is unavailable.
func (p *serverConfig) openWithRetry(ctx context.Context, clock *jumpyClock) (*postgres.DB, *mvcc.Keyspace, error) {
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

// local is a server in this process: it needs few resources, and the race detector sees it together with
// its clients.
type local struct {
	config serverConfig
	clock  *jumpyClock
	link   *pgproxy.Link // nil without a proxy

	mu      sync.Mutex
	ks      *mvcc.Keyspace
	closing sync.WaitGroup // closes killed servers
	db      *postgres.DB
}

func (s *local) start(ctx context.Context) error {
	db, ks, err := s.config.openWithRetry(ctx, s.clock)
	if err != nil {
		return fmt.Errorf("server %s does not start: %w", s.config.Name, err)
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

// kill cuts its connections and drops its memory. Its calls end as if the process died, except that some
// still return their outcome.
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

// freeze does nothing, because clients are in the same process.
func (s *local) freeze() {}
func (s *local) thaw()   {}

func (s *local) jump() { s.clock.jump() }

func (s *local) close() error {
	s.kill()
	s.closing.Wait()
	return nil
}
