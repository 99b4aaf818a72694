// Package history records the answers and events that clients and watchers of one keyspace get from
// any number of servers, under faults. Then it decides whether a single correct keyspace could have
// given them.
//
// It checks twice. The first check uses revisions, which define the order of changes: it builds a log
// from all watches, and compares every answer and every event with it (log.go, check.go). The second
// does not trust revisions more than other parts of an answer: porcupine searches for an order of the
// calls that explains all answers (model.go).
package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/atoll-dev/atoll/kv"
)

// Recorder records one history of a keyspace that is empty at the start.
type Recorder struct {
	// tick orders the beginnings and ends of calls. A counter orders them like a clock, without
	// duplicates.
	tick atomic.Int64
	// compacting is the highest revision at which a compaction was requested.
	compacting atomic.Int64

	mu         sync.Mutex
	calls      []*Call
	watchers   []*Watcher
	unexpected []string // errors that no injected fault explains
	// reached counts the revisions whose changes were delivered without a gap, starting with the
	// first change, which made revision 2. beyond has the revisions after a gap.
	reached kv.Revision
	beyond  map[kv.Revision]bool
}

// Kind is the kind of a call.
type Kind uint8

const (
	Put    Kind = iota // puts a key
	Pair               // puts two keys in one transaction
	Swap               // puts a key if its ModRevision is the one last seen, otherwise reads it
	Delete             // deletes a key
	Get                // reads a key
	List               // reads all keys
	Past               // reads all keys at an earlier revision
)

func (k Kind) String() string {
	return [...]string{"put", "pair", "swap", "delete", "get", "list", "past"}[k]
}

func (k Kind) writes() bool { return k <= Delete }

// Outcome is the result of a call, as far as its caller can know it.
type Outcome uint8

const (
	Answered Outcome = iota
	// Refused: the error means that nothing happened.
	Refused
	// Unknown: the write may happen at any time after its beginning, or never.
	Unknown
)

// Call is one request and its answer.
type Call struct {
	Client int
	Server string
	Kind   Kind
	Keys   []string
	Value  string // unique for each write
	// Expect is the ModRevision that Swap compares with, or the revision of Past.
	Expect kv.Revision

	Begin, End int64 // ticks
	Outcome    Outcome
	Err        error

	// Revision of the answer. Changed means that the call made this revision.
	Revision kv.Revision
	Changed  bool
	// Found has the keys read; for a Swap only if its condition failed.
	Found []kv.KeyValue
	// Before has the values that Put, Pair and Delete replaced.
	Before []kv.KeyValue
	// floor is the highest revision in an answer that arrived before the call began.
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

// prefix of all keys in a history.
const prefix = "k/"

// AllKeys returns the span of all keys in a history.
func AllKeys() kv.Span { return kv.Prefix([]byte(prefix)) }

// Key returns the name of key n.
func Key(n int) string { return fmt.Sprintf("%s%d", prefix, n) }

// do makes a call and records its result.
func (r *Recorder) do(ctx context.Context, ks kv.Keyspace, c *Call) {
	c.Begin = r.tick.Add(1)
	if c.Kind.writes() {
		req := c.txn()
		res, err := ks.Txn(ctx, req)
		c.Err = err
		if err == nil {
			c.setAnswer(res)
		}
	} else {
		req := kv.RangeRequest{Span: AllKeys()}
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
	if c.Err != nil && !explained(c.Err) && !(c.Kind == Past && errors.Is(c.Err, kv.ErrCompacted) && c.Expect < compacting) {
		r.unexpected = append(r.unexpected, fmt.Sprintf("an error that no fault explains: %v", c))
	}
}

// explained reports whether faults can cause the error.
func explained(err error) bool {
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

// setAnswer sets the answer of a transaction.
func (c *Call) setAnswer(res *kv.TxnResult) {
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

// Compact compacts, and records that older revisions may be missing from now on.
func (r *Recorder) Compact(ctx context.Context, ks kv.Keyspace, rev kv.Revision) error {
	for {
		old := r.compacting.Load()
		if rev <= old || r.compacting.CompareAndSwap(old, rev) {
			break
		}
	}
	_, err := ks.Compact(ctx, rev, false)
	if err != nil && !explained(err) && !errors.Is(err, kv.ErrCompacted) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.unexpected = append(r.unexpected, fmt.Sprintf("an error that no fault explains: compact at %d: %v", rev, err))
	}
	return err
}

// Delivered returns the revision up to which some watch over all keys has delivered every change.
// Compactions must not go beyond it: if all watchers had to relist, the events would be missing from
// the record as well.
func (r *Recorder) Delivered() kv.Revision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reached + 1
}

// delivered records the events of a watch over all keys.
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
