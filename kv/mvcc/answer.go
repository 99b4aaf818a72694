package mvcc

import (
	"errors"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of the answers of a transaction: see kv.TxnRequest.MaxBytes.

// scanWithin is scanSorted for one of several answers, which together may have a size.
func scanWithin(v view, req *kv.RangeRequest, size *kv.AnswerSize) (*kv.RangeResult, error) {
	bounded := *req
	bounded.MaxBytes = size.Left()
	res, err := scanSorted(v, &bounded)
	if err == nil {
		err = size.AddAll(res.KVs)
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// refuseLarge makes a too large answer an error of one client transaction.
func refuseLarge(err error) error {
	if errors.Is(err, kv.ErrAnswerTooLarge) {
		return requestError{err}
	}
	return err
}

// undo removes the changes of the current transaction; dirty is the number of changed keys
// before it. Only an answer that is too large is found after changes: its size is not known
// before.
func (b *batch) undo(dirty int) {
	for i := range b.changes[b.started:] {
		c := b.keys[string(b.changes[b.started+i].KV.Key)]
		c.overrides = c.overrides[:len(c.overrides)-1]
	}
	b.changes = b.changes[:b.started]
	b.dirty = b.dirty[:dirty]
}
