package kv

import (
	"errors"
	"fmt"
)

// ErrLimitExceeded is returned if a transaction would make a keyspace larger than its limits permit. Nothing has happened. The error
// is a *LimitError.
var ErrLimitExceeded = errors.New("limit of the keyspace exceeded")

// Usage is what a keyspace has stored: its present keys, and their bytes and those of their values. History does not count.
type Usage struct {
	Keys, Bytes int64
}

// Plus returns the sum.
func (u Usage) Plus(v Usage) Usage { return Usage{u.Keys + v.Keys, u.Bytes + v.Bytes} }

// UsageChange returns what the change of one key changes. Either state is nil if the key does not exist; otherwise it has its value.
func UsageChange(was, is *KeyValue) (change Usage) {
	if was != nil {
		change = Usage{-1, -int64(len(was.Key) + len(was.Value))}
	}
	if is != nil {
		change = change.Plus(Usage{1, int64(len(is.Key) + len(is.Value))})
	}
	return change
}

// Limits bound the usage of a keyspace; nil is no limit.
type Limits struct {
	Keys, Bytes *int64
}

// Any reports whether there is a limit.
func (l Limits) Any() bool { return l.Keys != nil || l.Bytes != nil }

// updateReserve is the share of the limit of bytes, as a divisor, by which updates alone may exceed it: in Kubernetes a deletion begins
// with an update, and a keyspace at its limit could not be tidied up otherwise.
const updateReserve = 20

// Check returns a *LimitError if a change exceeds a limit. What does not grow is permitted also beyond the limit, which may have been
// lowered. A change that adds no key may exceed the limit of bytes by a twentieth.
func (l Limits) Check(before, after Usage) error {
	switch {
	case l.Keys != nil && after.Keys > before.Keys && after.Keys > *l.Keys:
		return &LimitError{Resource: "keys", Used: before.Keys, Requested: after.Keys - before.Keys, Limit: *l.Keys}
	case l.Bytes != nil && after.Bytes > before.Bytes && after.Bytes > *l.Bytes && (after.Keys > before.Keys || after.Bytes > *l.Bytes+*l.Bytes/updateReserve):
		return &LimitError{Resource: "bytes", Used: before.Bytes, Requested: after.Bytes - before.Bytes, Limit: *l.Bytes}
	}
	return nil
}

// LimitError says which limit a transaction would exceed.
type LimitError struct {
	// Resource is keys or bytes.
	Resource string
	// Used is the usage without the transaction, and Requested is how much it would add.
	Used, Requested, Limit int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%v: %s %d, requested %d more, limit %d", ErrLimitExceeded, e.Resource, e.Used, e.Requested, e.Limit)
}

// Is makes the error match ErrLimitExceeded.
func (e *LimitError) Is(target error) bool { return target == ErrLimitExceeded }
