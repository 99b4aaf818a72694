package kvtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/atoll-dev/atoll/kv"
)

// kinds are the kinds of error that a keyspace and the model must agree on.
func kinds() []error {
	return []error{
		kv.ErrCompacted, kv.ErrFutureRevision, kv.ErrEmptyKey, kv.ErrDuplicateKey, kv.ErrKeyNotFound,
		kv.ErrInvalidRequest, kv.ErrTooManyOps, kv.ErrRequestTooLarge, kv.ErrLeaseNotFound, kv.ErrLeaseExists,
		kv.ErrLeaseTTLTooLarge, kv.ErrUnknownOutcome, kv.ErrUnavailable, kv.ErrOverloaded, kv.ErrClosed,
		context.Canceled, context.DeadlineExceeded,
	}
}

// sameError compares the kinds of two errors.
func sameError(got, want error) error {
	if want == nil {
		if got != nil {
			return fmt.Errorf("got error %q, want none", got)
		}
		return nil
	}
	if got == nil {
		return fmt.Errorf("got no error, want %q", want)
	}
	for _, kind := range kinds() {
		if errors.Is(got, kind) != errors.Is(want, kind) {
			return fmt.Errorf("got error %q, want %q", got, want)
		}
	}
	return nil
}

// diff returns the differences of two values. Absent and empty byte strings are equal: not
// every wire protocol can distinguish them.
func diff(got, want any) error {
	if same, known := equal(got, want); known && same {
		return nil
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		return fmt.Errorf("got + instead of -:\n%s", d)
	}
	return nil
}

// sameRange compares answers to a range request. The order of keys that are equal by the
// sort target is undefined, and so is the choice among them at a limit; state contains the
// valid keys.
func sameRange(req kv.RangeRequest, got, want *kv.RangeResult, state map[string]kv.KeyValue) error {
	if req.SortTarget == kv.SortByKey || got == nil {
		return diff(got, want)
	}
	if len(got.KVs) != len(want.KVs) {
		return diff(got, want)
	}
	by, seen := comparator(req.SortTarget), map[string]bool{}
	for i, k := range got.KVs {
		stored, ok := state[string(k.Key)]
		if req.KeysOnly {
			stored.Value = nil
		}
		if !ok || seen[string(k.Key)] || !req.Contains(k.Key) || diff(k, stored) != nil || by(k, want.KVs[i]) != 0 {
			return fmt.Errorf("key %q in place %d: %w", k.Key, i, diff(got, want))
		}
		seen[string(k.Key)] = true
	}
	g, w := *got, *want
	g.KVs, w.KVs = nil, nil
	return diff(g, w)
}

// sameTxn compares answers to a transaction whose reads are sorted by key. The revision of
// results inside it is undefined: etcd's depends on the order of operations.
func sameTxn(got, want *kv.TxnResult) error {
	return diff(withoutInnerRevisions(got), withoutInnerRevisions(want))
}

func withoutInnerRevisions(r *kv.TxnResult) *kv.TxnResult {
	if r == nil {
		return nil
	}
	out := *r
	out.Results = nil
	for _, res := range r.Results {
		if res.Range != nil {
			inner := *res.Range
			inner.Revision = 0
			res.Range = &inner
		}
		if res.Txn != nil {
			res.Txn = withoutInnerRevisions(res.Txn)
			res.Txn.Revision = 0
		}
		out.Results = append(out.Results, res)
	}
	return &out
}
