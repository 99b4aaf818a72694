package mvcc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// rowsPerSweep bounds one sweep step. A step shares the commit of writers, so it should
// cost no more than the writes do; and it should remove rows faster than they are written.
const rowsPerSweep = 64

// sharedRowsPerSweep is the same for a table with other writers. There, a step delays no
// writer, and it costs network round trips.
const sharedRowsPerSweep = 512

// While clients write, sweeping removes only a few rows for each row that they write, so
// that they do not notice it. The longer the sweeper has been busy, the more it removes,
// because history must not grow without bound. It does not throttle itself when there are
// no writes, or when a caller waits for the space.
const (
	minShare = 0.05 // of the rows written
	maxShare = 2.0
	// fullEffort is the busy time after which it uses the largest share and the largest
	// steps.
	fullEffort = 10 * time.Minute
	maxSteps   = 8 // times rowsPerSweep
)

// sweepRate returns the rows to sweep in a step, and the rows that clients may write before
// the next step, for a sweeper that has been busy this long.
func sweepRate(busy time.Duration, rowsPerStep int) (rows, rest int64) {
	effort := min(1, float64(busy)/float64(fullEffort))
	rows = int64(float64(rowsPerStep) * (1 + (maxSteps-1)*effort))
	return rows, int64(float64(rows) / (minShare + (maxShare-minShare)*effort))
}

// sweepRetry is the delay after a failed sweep.
const sweepRetry = time.Second

// sweepInterval is how often a server looks for rows that other servers left to sweep. The
// server that compacts also sweeps, so there are some only if that server has gone.
const sweepInterval = time.Hour

// sweeper frees the space of compacted history in small steps.
type sweeper struct {
	k     *Keyspace
	wakec chan struct{}

	// The number of rows that clients had written at the last observed write, and its time.
	// They belong to the loop.
	seenRows int64
	seenAt   time.Time

	mu      sync.Mutex
	waiting int           // callers that wait for a complete sweep
	rounds  int64         // sweeps begun
	swept   int64         // number of the last sweep that left nothing to do
	err     error         // of the current sweep, which is retried
	changed chan struct{} // closed and replaced when swept or err changes
}

func newSweeper(k *Keyspace) *sweeper {
	return &sweeper{k: k, wakec: make(chan struct{}, 1), changed: make(chan struct{})}
}

func (s *sweeper) wake() { wake(s.wakec) }

func (s *sweeper) loop() {
	for {
		var look <-chan time.Time
		if s.k.shared {
			look = s.k.opts.Clock.After(sweepInterval)
		}
		select {
		case <-s.wakec:
		case <-look:
		case <-s.k.ctx.Done():
			return
		}
		s.mu.Lock()
		s.rounds++
		round := s.rounds
		s.mu.Unlock()
		began := s.k.opts.Clock.Now()
		_, span := s.k.background(s.k.ctx, "kv.sweep")
		for steps := 1; ; steps++ {
			begin, written := time.Now(), s.k.commits.rows.Load()
			base := rowsPerSweep
			if s.k.shared {
				base = sharedRowsPerSweep
			}
			rows, rest := sweepRate(s.k.opts.Clock.Since(began), base)
			more, err := s.k.table.Sweep(s.k.ctx, int(rows))
			if o := s.k.opts.Observer.Sweep; o != nil {
				o(time.Since(begin), more, err)
			}
			if s.k.ctx.Err() != nil {
				finish(span, s.k.ended())
				return
			}
			if err != nil {
				span.RecordError(err)
				s.report(0, err)
				select {
				case <-s.k.opts.Clock.After(sweepRetry):
				case <-s.k.ctx.Done():
					finish(span, err)
					return
				}
				continue
			}
			if !more {
				finish(span, nil, countAttribute("steps", steps))
				break
			}
			s.throttle(written + rest)
		}
		s.report(round, nil)
	}
}

// writersIdle is the time without a write after which the sweeper assumes that there are no
// writers. It is much longer than a commit of many writes on a busy disk.
const writersIdle = 250 * time.Millisecond

// throttle waits until clients have written that many rows in total, while they keep
// writing and no caller waits for the sweep.
func (s *sweeper) throttle(until int64) {
	const unit = 10 * time.Millisecond
	for {
		rows, now := s.k.commits.rows.Load(), time.Now()
		if rows != s.seenRows {
			s.seenRows, s.seenAt = rows, now
		}
		s.mu.Lock()
		waiting := s.waiting
		s.mu.Unlock()
		if rows >= until || now.Sub(s.seenAt) >= writersIdle || waiting > 0 {
			return
		}
		select {
		case <-time.After(unit): // real time: other goroutines do real work meanwhile
		case <-s.k.ctx.Done():
			return
		}
	}
}

// report publishes that a sweep is complete, or has failed.
func (s *sweeper) report(swept int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.swept, s.err = max(s.swept, swept), err
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait returns when a sweep that began after the call is complete, or fails.
func (s *sweeper) wait(ctx context.Context) error {
	s.mu.Lock()
	need := s.rounds + 1
	s.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting--
	}()
	s.wake()
	for {
		s.mu.Lock()
		done, err, changed := s.swept >= need, s.err, s.changed
		s.mu.Unlock()
		if done {
			return nil
		}
		if err != nil {
			return fmt.Errorf("compacted, but freeing the space failed and continues in the background: %w", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.k.ctx.Done():
			return s.k.ended()
		}
	}
}

// Compact implements kv.Keyspace.
func (k *Keyspace) Compact(ctx context.Context, rev kv.Revision, physical bool) (kv.Revision, error) {
	if traced(ctx) {
		return k.tracedCompact(ctx, rev, physical)
	}
	return k.compact(ctx, rev, physical)
}

func (k *Keyspace) compact(ctx context.Context, rev kv.Revision, physical bool) (kv.Revision, error) {
	if err := k.open(); err != nil {
		return 0, err
	}
	if err := k.table.SetCompacted(ctx, rev); err != nil {
		return 0, err
	}
	raise(&k.compacted, rev)
	now := k.revision()
	if k.shared {
		head, err := k.heads.get(ctx)
		if err != nil {
			return 0, fmt.Errorf("compacted, but reading the current revision failed: %w", err)
		}
		k.observed(head.Revision)
		now = head.Revision
	}
	if !physical {
		k.sweeps.wake()
		return now, nil
	}
	return now, k.sweeps.wait(ctx)
}

// History returns the size of the table's history.
// Errors: errors.ErrUnsupported, if the table cannot report it cheaply.
func (k *Keyspace) History(ctx context.Context) (kv.History, error) {
	if err := k.open(); err != nil {
		return kv.History{}, err
	}
	h, ok := k.table.(kv.HistoryReporter)
	if !ok {
		return kv.History{}, fmt.Errorf("read the size of history: %w", errors.ErrUnsupported)
	}
	return h.History(ctx)
}
