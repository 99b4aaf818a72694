// Package transfer moves whole keyspaces: from one live keyspace to another (Copy, Follow),
// to a file and back (Backup, Restore). It compares the result with the original (Verify).
//
// It moves the state at one revision: keys, values and leases. A target numbers its changes
// itself, so revisions and versions differ there. Raise at least makes sure that revisions
// never decrease for clients.
package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/atoll-dev/atoll/kv"
)

// SourceReader is the part of a keyspace that a copy reads; every kv.Keyspace has it.
type SourceReader interface {
	Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error)
	Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error)
	TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error)
}

// Existing determines how to treat existing keys of the target.
type Existing uint8

const (
	// Refuse refuses a target that has keys.
	Refuse Existing = iota
	// Merge replaces keys of the target that the source has, and keeps the others.
	Merge
	// Mirror makes the target equal to the source. Keys that are already equal are not
	// written, so this also completes an interrupted copy.
	Mirror
)

// ProgressHooks report the progress of long operations. Nil functions are not called.
type ProgressHooks struct {
	// Phase reports the begin of a phase, such as "copy" or "verify", over about total keys
	// (0: unknown).
	Phase func(name string, total int64)
	// Step reports that this many more keys, with this many bytes of keys and values, are
	// done.
	Step func(keys, bytes int64)
}

func (p ProgressHooks) phase(name string, total int64) {
	if p.Phase != nil {
		p.Phase(name, total)
	}
}

func (p ProgressHooks) step(e *kv.KeyValue) {
	if p.Step != nil {
		p.Step(1, size(e))
	}
}

func size(e *kv.KeyValue) int64 { return int64(len(e.Key) + len(e.Value)) }

// NotEmptyError is returned for a target that has keys.
type NotEmptyError struct{ Keys int64 }

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("the target already has %d keys; nothing was changed", e.Keys)
}

// keys is a sequence of keys with their values, ascending.
type keys = iter.Seq2[kv.KeyValue, error]

const (
	// pageBytes is the intended size of a page, and so the approximate memory use.
	pageBytes = 4 << 20
	// The first page is small because the size of the values is unknown.
	firstPage, largestPage = 100, 2000
)

// scan reads a span at one revision, in pages.
func scan(ctx context.Context, src SourceReader, span kv.Span, rev kv.Revision) keys {
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

// join iterates two sequences in parallel and calls each with the states of every key: nil
// where it is missing.
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

// noKeys is a sequence without keys.
func noKeys(func(kv.KeyValue, error) bool) {}

// equal reports whether clients see the same state of a key.
func equal(a, b *kv.KeyValue) bool { return a.Lease == b.Lease && bytes.Equal(a.Value, b.Value) }

// count returns the number of keys in a span, and its revision.
func count(ctx context.Context, src SourceReader, span kv.Span) (n int64, rev kv.Revision, err error) {
	res, err := src.Range(ctx, kv.RangeRequest{Span: span, CountOnly: true})
	if err != nil {
		return 0, 0, err
	}
	return res.Count, res.Revision, nil
}

// isTransient reports whether an operation may be retried after an error. All writes in
// this package are idempotent, so this includes unknown outcomes.
func isTransient(err error) bool {
	return errors.Is(err, kv.ErrUnavailable) || errors.Is(err, kv.ErrOverloaded) || errors.Is(err, kv.ErrUnknownOutcome)
}
