// Package history records what the clients and watchers of one keyspace were
// told, by however many servers and through whatever went wrong, and then
// decides whether a single keyspace could have told it.
//
// It looks at it twice. Once by revision: revisions say in which order things
// must have happened, so every answer and every event is held against the log
// put together from the watches (log.go, check.go). And once without believing
// the revisions more than any other part of an answer: porcupine searches for
// an order that explains all of it (model.go).
package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/atoll-dev/atoll/kv"
)

// Recorder collects one history, from an empty keyspace on.
type Recorder struct {
	// tick orders beginnings and ends of calls. A count is as good as the time,
	// and no two are the same.
	tick atomic.Int64
	// compacting is the highest revision that anyone wanted to compact at.
	compacting atomic.Int64

	mu       sync.Mutex
	calls    []*Call
	watchers []*Watcher
	strange  []string // errors that nothing can excuse
	// reached counts the revisions whose changes were delivered without a gap,
	// from the first change, which made revision 2; beyond has those after a gap.
	reached kv.Revision
	beyond  map[kv.Revision]bool
}

// Kind of call.
type Kind uint8

const (
	Put    Kind = iota // a key
	Pair               // two keys in one transaction
	Swap               // a key if it is as it was seen, otherwise read it
	Delete             // a key
	Get                // a key
	List               // all keys
	Past               // all keys, at an earlier revision
)

func (k Kind) String() string {
	return [...]string{"put", "pair", "swap", "delete", "get", "list", "past"}[k]
}

func (k Kind) writes() bool { return k <= Delete }

// Outcome is what a caller knows after a call.
type Outcome uint8

const (
	Answered Outcome = iota
	// Refused: an error that says that nothing has happened.
	Refused
	// Unknown: a write that may happen at any time after its beginning, or never.
	Unknown
)

// Call is one request and its answer.
type Call struct {
	Client int
	Server string
	Kind   Kind
	Keys   []string
	Value  string // no two writes have the same
	// Expect is the ModRevision that Swap compares with, or the revision of Past.
	Expect kv.Revision

	Begin, End int64 // ticks
	Outcome    Outcome
	Err        error

	// Revision as answered. Changed tells that the call made it.
	Revision kv.Revision
	Changed  bool
	// Found is what was read; of a Swap only if it did not succeed.
	Found []kv.KeyValue
	// Before is what Put, Pair and Delete replaced.
	Before []kv.KeyValue
	// floor is the highest revision that was told to anyone before the call.
	floor kv.Revision
}

func (c *Call) String() string {
	s := fmt.Sprintf("client %d, on server %s: %s %v", c.Client, c.Server, c.Kind, c.Keys)
	if c.Kind == Swap || c.Kind == Past {
		s += fmt.Sprintf(" (%d)", c.Expect)
	}
	switch c.Outcome {
	case Refused:
		return fmt.Sprintf("%s = %q: refused: %v", s, c.Value, c.Err)
	case Unknown:
		return fmt.Sprintf("%s = %q: unknown: %v", s, c.Value, c.Err)
	}
	if c.Changed {
		s += fmt.Sprintf(" = %q", c.Value)
	}
	return fmt.Sprintf("%s -> revision %d", s, c.Revision)
}

// prefix of all keys of a history.
const prefix = "k/"

// Whole is the span of all keys of a history.
func Whole() kv.Span { return kv.Prefix([]byte(prefix)) }

// Key names a key of a history.
func Key(n int) string { return fmt.Sprintf("%s%d", prefix, n) }

// do makes a call and records what came of it.
func (r *Recorder) do(ctx context.Context, ks kv.Keyspace, c *Call) {
	c.Begin = r.tick.Add(1)
	if c.Kind.writes() {
		req := c.txn()
		res, err := ks.Txn(ctx, req)
		c.Err = err
		if err == nil {
			c.take(res)
		}
	} else {
		req := kv.RangeRequest{Span: Whole()}
		if c.Kind == Get {
			req.Span = kv.Span{Start: []byte(c.Keys[0])}
		}
		if c.Kind == Past {
			req.Revision = c.Expect
		}
		res, err := ks.Range(ctx, req)
		c.Err = err
		if err == nil {
			c.Revision, c.Found = res.Revision, res.KVs
		}
	}
	c.End = r.tick.Add(1)
	switch {
	case c.Err == nil:
	case c.Kind.writes() && errors.Is(c.Err, kv.ErrUnknownOutcome):
		c.Outcome = Unknown
	default:
		c.Outcome = Refused
	}
	compacting := r.compacting.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
	if c.Err != nil && !excused(c.Err) && !(c.Kind == Past && errors.Is(c.Err, kv.ErrCompacted) && c.Expect < compacting) {
		r.strange = append(r.strange, fmt.Sprintf("an error that no fault excuses: %v", c))
	}
}

// excused tells whether an error is one that faults lead to.
func excused(err error) bool {
	for _, kind := range []error{kv.ErrUnavailable, kv.ErrUnknownOutcome, kv.ErrOverloaded, kv.ErrClosed, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (c *Call) txn() kv.TxnRequest {
	put := func(key string, prev bool) kv.Op {
		return kv.Op{Put: &kv.PutOp{Key: []byte(key), Value: []byte(c.Value), PrevKV: prev}}
	}
	only := kv.Span{Start: []byte(c.Keys[0])}
	switch c.Kind {
	case Put:
		return kv.TxnRequest{Then: []kv.Op{put(c.Keys[0], true)}}
	case Pair:
		return kv.TxnRequest{Then: []kv.Op{put(c.Keys[0], true), put(c.Keys[1], true)}}
	case Delete:
		return kv.TxnRequest{Then: []kv.Op{{Delete: &kv.DeleteOp{Span: only, PrevKV: true}}}}
	default:
		return kv.TxnRequest{
			If:   []kv.Compare{{Span: only, Target: kv.CompareMod, Int: c.Expect}},
			Then: []kv.Op{put(c.Keys[0], false)},
			Else: []kv.Op{{Range: &kv.RangeRequest{Span: only}}},
		}
	}
}

// take notes the answer to a transaction.
func (c *Call) take(res *kv.TxnResult) {
	c.Revision = res.Revision
	for _, r := range res.Results {
		switch {
		case r.Put != nil:
			c.Changed = true
			if r.Put.Prev != nil {
				c.Before = append(c.Before, *r.Put.Prev)
			}
		case r.Delete != nil:
			c.Changed = c.Changed || r.Delete.Deleted > 0
			c.Before = append(c.Before, r.Delete.Prev...)
		case r.Range != nil:
			c.Found = r.Range.KVs
		}
	}
}

// Compact compacts, and remembers that from now on what is older may be gone.
func (r *Recorder) Compact(ctx context.Context, ks kv.Keyspace, rev kv.Revision) error {
	for {
		old := r.compacting.Load()
		if rev <= old || r.compacting.CompareAndSwap(old, rev) {
			break
		}
	}
	_, err := ks.Compact(ctx, rev, false)
	if err != nil && !excused(err) && !errors.Is(err, kv.ErrCompacted) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.strange = append(r.strange, fmt.Sprintf("an error that no fault excuses: compact at %d: %v", rev, err))
	}
	return err
}

// Reached is the revision up to which every change was delivered to some watch
// over all keys. Beyond it nobody may compact, or what happened would be lost to
// the record, too: all watchers could have to read anew.
func (r *Recorder) Reached() kv.Revision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reached + 1
}

// delivered takes note of what a watch over all keys was told of.
func (r *Recorder) delivered(events []kv.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.beyond == nil {
		r.beyond = map[kv.Revision]bool{}
	}
	for i := range events {
		if rev := events[i].KV.ModRevision; rev > r.reached+1 {
			r.beyond[rev] = true
		}
	}
	for r.beyond[r.reached+2] {
		r.reached++
		delete(r.beyond, r.reached+1)
	}
}
