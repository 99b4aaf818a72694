package mvcc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// rowsPerSweep bounds one step of sweeping. A step shares the commit of
// writers, so it should cost no more than the writes do; and it should forget
// faster than they write.
const rowsPerSweep = 64

// sharedRowsPerSweep is the same for a table that others write to, too: there a step
// holds nobody up, and costs round trips over a network.
const sharedRowsPerSweep = 512

// While clients write, sweeping takes only a few rows for each that they write:
// they should not notice. The longer it has had something to do without an end,
// the more it takes, since history must not grow for ever. When nobody writes, and
// when somebody waits for the space, it does not hold back.
const (
	leastShare = 0.05 // of the rows written
	mostShare  = 2.0
	// fullEffort is after how long it takes the largest share, with the largest
	// steps.
	fullEffort = 10 * time.Minute
	mostSteps  = 8 // times rowsPerSweep
)

// pace is how many rows to sweep in a step, and how many to let clients write
// after it, when sweeping has been busy for so long without an end.
func pace(busy time.Duration, rowsPerStep int) (rows, rest int64) {
	effort := min(1, float64(busy)/float64(fullEffort))
	rows = int64(float64(rowsPerStep) * (1 + (mostSteps-1)*effort))
	return rows, int64(float64(rows) / (leastShare + (mostShare-leastShare)*effort))
}

// sweepRetry is how long a sweep that failed waits.
const sweepRetry = time.Second

// sweepLook is how often a server looks for what others have left to sweep. Who
// compacts sweeps, so there is something only if that server has gone.
const sweepLook = time.Hour

// sweeper gives back the space of history that a compaction has forgotten, a
// little at a time.
type sweeper struct {
	k     *Keyspace
	wakec chan struct{}

	// The rows that clients had written when they were seen to write last. They
	// belong to the loop.
	seenRows int64
	seenAt   time.Time

	mu      sync.Mutex
	waiting int           // for a sweep to be complete
	rounds  int64         // sweeps begun
	swept   int64         // the last one that found nothing left to do
	err     error         // of the sweep under way, which is tried again
	changed chan struct{} // closed and renewed when swept or err changes
}

func newSweeper(k *Keyspace) *sweeper {
	return &sweeper{k: k, wakec: make(chan struct{}, 1), changed: make(chan struct{})}
}

func (s *sweeper) wake() { wake(s.wakec) }

func (s *sweeper) loop() {
	for {
		var look <-chan time.Time
		if s.k.shared {
			look = s.k.opts.Clock.After(sweepLook)
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
			rows, rest := pace(s.k.opts.Clock.Since(began), base)
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
				s.note(0, err)
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
			s.rest(written + rest)
		}
		s.note(round, nil)
	}
}

// quiet is how long nobody has written when the sweeper takes it that nobody
// does: much longer than a commit of many writes, while a disk is busy.
const quiet = 250 * time.Millisecond

// rest waits until clients have written so many rows in all, if they go on
// writing and nobody waits.
func (s *sweeper) rest(until int64) {
	const unit = 10 * time.Millisecond
	for {
		rows, now := s.k.commits.rows.Load(), time.Now()
		if rows != s.seenRows {
			s.seenRows, s.seenAt = rows, now
		}
		s.mu.Lock()
		waiting := s.waiting
		s.mu.Unlock()
		if rows >= until || now.Sub(s.seenAt) >= quiet || waiting > 0 {
			return
		}
		select {
		case <-time.After(unit): // of real time, in which others do real work
		case <-s.k.ctx.Done():
			return
		}
	}
}

// note tells those who wait that a sweep is complete, or has failed.
func (s *sweeper) note(swept int64, err error) {
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
			return fmt.Errorf("compacted, but giving back the space goes on in the background: %w", err)
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
		head, err := k.heads.ask(ctx)
		if err != nil {
			return 0, fmt.Errorf("compacted, but the head cannot be read: %w", err)
		}
		k.saw(head.Revision)
		now = head.Revision
	}
	if !physical {
		k.sweeps.wake()
		return now, nil
	}
	return now, k.sweeps.wait(ctx)
}

// History tells how much history the table keeps.
// Errors: errors.ErrUnsupported, if the table cannot tell it cheaply.
func (k *Keyspace) History(ctx context.Context) (kv.History, error) {
	if err := k.open(); err != nil {
		return kv.History{}, err
	}
	h, ok := k.table.(kv.Historian)
	if !ok {
		return kv.History{}, fmt.Errorf("read the size of history: %w", errors.ErrUnsupported)
	}
	return h.History(ctx)
}
