package mvcc

import (
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// checkTxn validates the form of a transaction before anything is read. It refuses only
// transactions that are invalid for any state of the keyspace.
func (o *Options) checkTxn(req *kv.TxnRequest) error {
	if err := checkOps(req, o.MaxTxnOps); err != nil {
		return err
	}
	if size := txnSize(req); size > o.MaxRequestBytes {
		return fmt.Errorf("txn of %d bytes: %w (at most %d)", size, kv.ErrRequestTooLarge, o.MaxRequestBytes)
	}
	if o.maxKeyBytes > 0 {
		if err := checkKeys(req, o.maxKeyBytes); err != nil {
			return err
		}
	}
	for _, branch := range [][]kv.Op{req.Then, req.Else} {
		if len(branch) < 2 && (len(branch) == 0 || branch[0].Txn == nil) {
			continue // a single operation cannot overlap
		}
		if _, _, err := checkOverlap(branch); err != nil {
			return err
		}
	}
	return nil
}

// checkKeys refuses keys that are too long for the table.
func checkKeys(req *kv.TxnRequest, limit int) error {
	for _, branch := range [][]kv.Op{req.Then, req.Else} {
		for i := range branch {
			if put := branch[i].Put; put != nil && len(put.Key) > limit {
				return fmt.Errorf("put a key of %d bytes: %w (this datastore holds keys of at most %d)", len(put.Key), kv.ErrRequestTooLarge, limit)
			}
			if nested := branch[i].Txn; nested != nil {
				if err := checkKeys(nested, limit); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func checkOps(req *kv.TxnRequest, allowed int) error {
	n := max(len(req.If), len(req.Then), len(req.Else))
	if n > allowed {
		return fmt.Errorf("txn of %d operations: %w (%d left)", n, kv.ErrTooManyOps, allowed)
	}
	for i := range req.If {
		if len(req.If[i].Start) == 0 {
			return fmt.Errorf("compare: %w", kv.ErrEmptyKey)
		}
	}
	for _, branch := range [][]kv.Op{req.Then, req.Else} {
		for i := range branch {
			if err := checkOp(&branch[i], allowed-n); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *kv.Op, allowed int) error {
	switch {
	case op.Range != nil:
		return checkRange(op.Range)
	case op.Put != nil:
		p := op.Put
		switch {
		case len(p.Key) == 0:
			return fmt.Errorf("put: %w", kv.ErrEmptyKey)
		case p.IgnoreValue && len(p.Value) != 0:
			return fmt.Errorf("put %q: %w: a value is given and to be ignored", p.Key, kv.ErrInvalidRequest)
		case p.IgnoreLease && p.Lease != 0:
			return fmt.Errorf("put %q: %w: a lease is given and to be ignored", p.Key, kv.ErrInvalidRequest)
		}
		return nil
	case op.Delete != nil:
		if len(op.Delete.Start) == 0 {
			return fmt.Errorf("delete: %w", kv.ErrEmptyKey)
		}
		return nil
	case op.Txn != nil:
		return checkOps(op.Txn, allowed)
	default:
		// etcd returns this for an operation that is not set.
		return fmt.Errorf("txn: empty operation: %w", kv.ErrKeyNotFound)
	}
}

func checkRange(req *kv.RangeRequest) error {
	if len(req.Start) == 0 {
		return fmt.Errorf("range: %w", kv.ErrEmptyKey)
	}
	if req.SortOrder > kv.SortDescend || req.SortTarget > kv.SortByValue {
		return fmt.Errorf("range %q: %w: no such sort order", req.Start, kv.ErrInvalidRequest)
	}
	return nil
}

// checkOverlap refuses a key that one path would put twice, or put and delete. It returns
// the keys and spans that the operations put and delete. It is exactly as strict as etcd: a
// sibling may delete a key that an earlier nested transaction puts, and a span without an
// end may include keys that are put.
func checkOverlap(ops []kv.Op) (puts map[string]struct{}, dels []kv.Span, err error) {
	for i := range ops {
		if d := ops[i].Delete; d != nil && !d.ToEnd() {
			dels = append(dels, d.Span)
		}
	}
	deleted := func(key string) bool {
		for _, d := range dels {
			if d.Contains([]byte(key)) {
				return true
			}
		}
		return false
	}
	puts = map[string]struct{}{}
	add := func(key string, elsewhere map[string]struct{}) error {
		_, twice := puts[key]
		if _, alternative := elsewhere[key]; alternative {
			twice = false
		}
		if twice || deleted(key) {
			return fmt.Errorf("txn: key %q: %w", key, kv.ErrDuplicateKey)
		}
		puts[key] = struct{}{}
		return nil
	}
	for i := range ops {
		t := ops[i].Txn
		if t == nil {
			continue
		}
		thenPuts, thenDels, err := checkOverlap(t.Then)
		if err != nil {
			return nil, nil, err
		}
		elsePuts, elseDels, err := checkOverlap(t.Else)
		if err != nil {
			return nil, nil, err
		}
		for key := range thenPuts {
			if err := add(key, nil); err != nil {
				return nil, nil, err
			}
		}
		for key := range elsePuts {
			// Only one of the two branches runs.
			if err := add(key, thenPuts); err != nil {
				return nil, nil, err
			}
		}
		dels = append(append(dels, thenDels...), elseDels...)
	}
	for i := range ops {
		if p := ops[i].Put; p != nil {
			if err := add(string(p.Key), nil); err != nil {
				return nil, nil, err
			}
		}
	}
	return puts, dels, nil
}

func txnSize(req *kv.TxnRequest) (n int) {
	for i := range req.If {
		c := &req.If[i]
		n += len(c.Start) + len(c.End) + len(c.Value)
	}
	for _, branch := range [][]kv.Op{req.Then, req.Else} {
		for i := range branch {
			switch op := &branch[i]; {
			case op.Put != nil:
				n += len(op.Put.Key) + len(op.Put.Value)
			case op.Delete != nil:
				n += len(op.Delete.Start) + len(op.Delete.End)
			case op.Range != nil:
				n += len(op.Range.Start) + len(op.Range.End)
			case op.Txn != nil:
				n += txnSize(op.Txn)
			}
		}
	}
	return n
}

// readOnly reports whether no path of the transaction can change anything.
func readOnly(req *kv.TxnRequest) bool {
	for _, branch := range [][]kv.Op{req.Then, req.Else} {
		for i := range branch {
			switch op := &branch[i]; {
			case op.Put != nil, op.Delete != nil:
				return false
			case op.Txn != nil:
				if !readOnly(op.Txn) {
					return false
				}
			}
		}
	}
	return true
}
