// Package transfer moves whole keyspaces: from one live keyspace into another
// (Copy, Follow), into a file and back (Backup, Restore), and compares what
// arrived with what there was (Verify).
//
// What is moved is the state at one revision: keys, values and leases. A target
// numbers its changes itself, so revisions and versions differ there; Raise
// makes sure that they at least never go back.
package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/atoll-dev/atoll/kv"
)

// Source is what a keyspace must offer to be read from; every kv.Keyspace does.
type Source interface {
	Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error)
	Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error)
	TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error)
}

// Existing says what becomes of keys that the target has already.
type Existing uint8

const (
	// Refuse a target that has any.
	Refuse Existing = iota
	// Merge: keys of the source replace those of the same name, others stay.
	Merge
	// Mirror: the target becomes equal to the source. What is equal already is
	// left alone, so this also finishes a copy that was interrupted.
	Mirror
)

// Progress hears of long work. Nil functions are not called.
type Progress struct {
	// Phase begins: "copy", "verify", …, over about total keys (0: unknown).
	Phase func(name string, total int64)
	// Step: this many more keys, with this many bytes of keys and values, are done.
	Step func(keys, bytes int64)
}

func (p Progress) phase(name string, total int64) {
	if p.Phase != nil {
		p.Phase(name, total)
	}
}

func (p Progress) step(e *kv.KeyValue) {
	if p.Step != nil {
		p.Step(1, size(e))
	}
}

func size(e *kv.KeyValue) int64 { return int64(len(e.Key) + len(e.Value)) }

// NotEmptyError refuses a target that has keys.
type NotEmptyError struct{ Keys int64 }

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("the target has %d keys already, and nothing was changed", e.Keys)
}

// keys is a sequence of keys with their values, ascending.
type keys = iter.Seq2[kv.KeyValue, error]

const (
	// pageBytes is what a page should hold, and so about what is in memory.
	pageBytes = 4 << 20
	// The first page is small because nothing is known of the values yet.
	firstPage, largestPage = 100, 2000
)

// scan reads a span at one revision, in pages.
func scan(ctx context.Context, src Source, span kv.Span, rev kv.Revision) keys {
	return func(yield func(kv.KeyValue, error) bool) {
		req := kv.RangeRequest{Span: span, Revision: rev, Limit: firstPage}
		for {
			res, err := src.Range(ctx, req)
			if err != nil {
				yield(kv.KeyValue{}, fmt.Errorf("read at revision %d: %w", rev, err))
				return
			}
			total := int64(0)
			for _, e := range res.KVs {
				total += size(&e)
				if !yield(e, nil) {
					return
				}
			}
			if !res.More || len(res.KVs) == 0 {
				return
			}
			n := int64(len(res.KVs))
			req.Limit = min(max(pageBytes*n/max(total, 1), 1), 4*n, largestPage)
			last := res.KVs[n-1].Key
			req.Start = append(append(make([]byte, 0, len(last)+1), last...), 0)
		}
	}
}

// join walks two sequences side by side and calls each with what they have for
// every key: nil where it is missing.
func join(a, b keys, each func(a, b *kv.KeyValue) error) error {
	nextA, stopA := iter.Pull2(a)
	defer stopA()
	nextB, stopB := iter.Pull2(b)
	defer stopB()
	advance := func(next func() (kv.KeyValue, error, bool)) (*kv.KeyValue, error) {
		e, err, ok := next()
		if err != nil || !ok {
			return nil, err
		}
		return &e, nil
	}
	x, err := advance(nextA)
	if err != nil {
		return err
	}
	y, err := advance(nextB)
	if err != nil {
		return err
	}
	for x != nil || y != nil {
		l, r := x, y
		switch {
		case l == nil, r != nil && bytes.Compare(l.Key, r.Key) > 0:
			l = nil
		case r == nil, bytes.Compare(l.Key, r.Key) < 0:
			r = nil
		}
		if err := each(l, r); err != nil {
			return err
		}
		if l != nil {
			if x, err = advance(nextA); err != nil {
				return err
			}
		}
		if r != nil {
			if y, err = advance(nextB); err != nil {
				return err
			}
		}
	}
	return nil
}

// nothing is a sequence without keys.
func nothing(func(kv.KeyValue, error) bool) {}

// equal tells whether two states of a key are the same to those who read it.
func equal(a, b *kv.KeyValue) bool { return a.Lease == b.Lease && bytes.Equal(a.Value, b.Value) }

// count tells how many keys a span has, and the revision of that.
func count(ctx context.Context, src Source, span kv.Span) (n int64, rev kv.Revision, err error) {
	res, err := src.Range(ctx, kv.RangeRequest{Span: span, CountOnly: true})
	if err != nil {
		return 0, 0, err
	}
	return res.Count, res.Revision, nil
}

// passing errors go away by themselves; what failed so may be tried again,
// because everything that is written here is the same when written twice.
func passing(err error) bool {
	return errors.Is(err, kv.ErrUnavailable) || errors.Is(err, kv.ErrOverloaded) || errors.Is(err, kv.ErrUnknownOutcome)
}
