package kv

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrLimitExceeded is returned if a transaction would make a keyspace larger than its limits permit. Nothing has happened. The error
// is a *LimitError.
var ErrLimitExceeded = errors.New("limit of the keyspace exceeded")

// Usage is what a keyspace has stored: its present keys, and their bytes and those of their values. History does not count. Reservations
// add to it, and Units are only reserved.
type Usage struct {
	Keys  int64 `json:"keys,omitempty"`
	Bytes int64 `json:"bytes,omitempty"`
	Units int64 `json:"units,omitempty"`
}

// Plus returns the sum.
func (u Usage) Plus(v Usage) Usage {
	return Usage{u.Keys + v.Keys, u.Bytes + v.Bytes, u.Units + v.Units}
}

// Max returns the larger one of each number.
func (u Usage) Max(v Usage) Usage {
	return Usage{max(u.Keys, v.Keys), max(u.Bytes, v.Bytes), max(u.Units, v.Units)}
}

// Min returns the smaller one of each number.
func (u Usage) Min(v Usage) Usage {
	return Usage{min(u.Keys, v.Keys), min(u.Bytes, v.Bytes), min(u.Units, v.Units)}
}

// UsageChange returns what the change of one key changes, without reservations. Either state is nil if the key does not exist; otherwise it has its value.
func UsageChange(was, is *KeyValue) (change Usage) {
	if was != nil {
		change = Usage{Keys: -1, Bytes: -int64(len(was.Key) + len(was.Value))}
	}
	if is != nil {
		change = change.Plus(Usage{Keys: 1, Bytes: int64(len(is.Key) + len(is.Value))})
	}
	return change
}

// Limits bound the usage of a keyspace; nil is no limit.
type Limits struct {
	Keys  *int64 `json:"keys,omitempty"`
	Bytes *int64 `json:"bytes,omitempty"`
	Units *int64 `json:"units,omitempty"`
}

// Any reports whether there is a limit.
func (l Limits) Any() bool { return l.Keys != nil || l.Bytes != nil || l.Units != nil }

// Min returns the lower one of each limit.
func (l Limits) Min(m Limits) Limits {
	lower := func(a, b *int64) *int64 {
		if a == nil || b != nil && *b < *a {
			return b
		}
		return a
	}
	return Limits{lower(l.Keys, m.Keys), lower(l.Bytes, m.Bytes), lower(l.Units, m.Units)}
}

// Check returns a *LimitError if a change exceeds a limit. What does not grow is permitted also beyond the limit, which may have been
// lowered.
func (l Limits) Check(before, after Usage) error {
	switch {
	case l.Keys != nil && after.Keys > before.Keys && after.Keys > *l.Keys:
		return &LimitError{Resource: "keys", Used: before.Keys, Requested: after.Keys - before.Keys, Limit: *l.Keys}
	case l.Bytes != nil && after.Bytes > before.Bytes && after.Bytes > *l.Bytes:
		return &LimitError{Resource: "bytes", Used: before.Bytes, Requested: after.Bytes - before.Bytes, Limit: *l.Bytes}
	case l.Units != nil && after.Units > before.Units && after.Units > *l.Units:
		return &LimitError{Resource: "units", Used: before.Units, Requested: after.Units - before.Units, Limit: *l.Units}
	}
	return nil
}

// LimitError says which limit a transaction would exceed.
type LimitError struct {
	// Resource is keys, bytes or units.
	Resource string
	// Used is the usage without the transaction, and Requested is how much it would add.
	Used, Requested, Limit int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%v: %s %d, requested %d more, limit %d", ErrLimitExceeded, e.Resource, e.Used, e.Requested, e.Limit)
}

// Is makes the error match ErrLimitExceeded.
func (e *LimitError) Is(target error) bool { return target == ErrLimitExceeded }

type exemptKey struct{}

// WithExemption returns a context, and a function that decides whether the limits apply to the transactions that begin with it from
// then on. A deletion that first makes an object larger, because it marks it, must be possible at a limit.
func WithExemption(ctx context.Context) (in context.Context, exempt func(bool)) {
	state := new(atomic.Bool)
	return context.WithValue(ctx, exemptKey{}, state), state.Store
}

// Exempt reports whether no limits apply to a transaction.
func Exempt(ctx context.Context) bool {
	state, ok := ctx.Value(exemptKey{}).(*atomic.Bool)
	return ok && state.Load()
}
