package sqlite

import (
	"fmt"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

func kindOf(s kv.Span) spanKind {
	switch {
	case s.Single():
		return spanOne
	case s.ToEnd():
		return spanToEnd
	default:
		return spanBounded
	}
}

// spanStmt prepares a query of a family for a span.
func (c *conn) spanStmt(family query, ks int64, span kv.Span) (*sqlite3.Stmt, error) {
	kind := kindOf(span)
	s, err := c.with(family+query(kind), ks)
	if err != nil {
		return nil, err
	}
	if err := bindValue(s, 2, span.Start); err != nil {
		return nil, err
	}
	if kind == spanBounded {
		err = s.BindBlob(3, span.End)
	}
	return s, err
}

// scan reads a span at req.Revision. The caller holds a snapshot whose head is head.
func (c *conn) scan(ks int64, head kv.Head, req kv.RangeRequest, wantCount bool) (*kv.RangeResult, error) {
	rev := req.Revision
	switch {
	case rev > head.Revision:
		return nil, fmt.Errorf("range at revision %d: %w (keyspace is at %d)", rev, kv.ErrFutureRevision, head.Revision)
	case rev <= 0:
		rev = head.Revision
	case rev < head.Compacted:
		return nil, fmt.Errorf("range at revision %d: %w (at %d)", rev, kv.ErrCompacted, head.Compacted)
	}
	old := rev < head.Revision
	res := &kv.RangeResult{Revision: head.Revision}
	var err error
	if req.CountOnly {
		res.Count, err = c.count(ks, req.Span, rev, old)
		return res, err
	}
	if err := c.collect(res, ks, req, rev, old); err != nil {
		return nil, err
	}
	res.Count = int64(len(res.KVs))
	if res.More && wantCount {
		// Only count after the last key.
		rest := req.Span
		rest.Start = append(append(make([]byte, 0, len(res.KVs[req.Limit-1].Key)+1), res.KVs[req.Limit-1].Key...), 0)
		n, err := c.count(ks, rest, rev, old)
		if err != nil {
			return nil, err
		}
		res.Count += n
	}
	return res, nil
}

// collect fills res.KVs, up to the limit.
//
// The span's rows of current include every key that ever existed and is not swept. So they
// suffice for an older revision, too: collect follows the history of a key that has changed
// since.
func (c *conn) collect(res *kv.RangeResult, ks int64, req kv.RangeRequest, rev kv.Revision, old bool) error {
	family := qRange
	switch {
	case old && req.KeysOnly:
		family = qAtKeys
	case old:
		family = qAt
	case req.KeysOnly:
		family = qRangeKeys
	}
	s, err := c.spanStmt(family, ks, req.Span)
	if err != nil {
		return err
	}
	defer s.Reset()
	if req.Limit > 0 && !req.Span.Single() {
		res.KVs = make([]kv.KeyValue, 0, min(req.Limit, 1000))
	}
	size := kv.NewAnswerSize(req.MaxBytes)
	for s.Step() {
		version, mod := s.ColumnInt64(0), s.ColumnInt64(1)
		var e kv.KeyValue
		if mod > rev {
			found, err := c.before(&e, s.ColumnInt64(5), rev, !req.KeysOnly)
			if err != nil {
				return err
			}
			if !found {
				continue
			}
			e.Key = s.ColumnBlob(4, nil)
		} else {
			if version == 0 {
				continue
			}
			e.Version, e.ModRevision = version, mod
			e.CreateRevision, e.Lease = s.ColumnInt64(2), s.ColumnInt64(3)
		}
		if req.Limit > 0 && int64(len(res.KVs)) == req.Limit {
			res.More = true
			return nil
		}
		if mod <= rev {
			fillBytes(s, &e, 4, 6, !req.KeysOnly)
		}
		if err := size.Add(&e); err != nil {
			return fmt.Errorf("range: %w", err)
		}
		res.KVs = append(res.KVs, e)
	}
	return s.Err()
}

// fillBytes copies a row's key and value out of SQLite's memory, into one allocation.
func fillBytes(s *sqlite3.Stmt, e *kv.KeyValue, keyCol, valueCol int, withValue bool) {
	key := s.ColumnRawBlob(keyCol)
	if !withValue {
		e.Key = append([]byte(nil), key...)
		return
	}
	value := s.ColumnRawBlob(valueCol)
	buf := make([]byte, len(key)+len(value))
	copy(buf, key)
	copy(buf[len(key):], value)
	e.Key = buf[:len(key):len(key)]
	if len(value) > 0 {
		e.Value = buf[len(key):]
	}
}

// before follows a key's changes back from log row id to the newest at or before rev, and
// reports whether the key existed then. If a change is missing, it was swept: then the key
// did not exist, because sweeping keeps states that existed at the compaction revision.
func (c *conn) before(e *kv.KeyValue, id int64, rev kv.Revision, withValue bool) (bool, error) {
	for id != 0 {
		s, err := c.with(qLogRowMeta, id)
		if err != nil {
			return false, err
		}
		if !s.Step() {
			return false, s.Reset()
		}
		mod, version := s.ColumnInt64(0), s.ColumnInt64(1)
		if mod <= rev {
			e.ModRevision, e.Version = mod, version
			e.CreateRevision, e.Lease = s.ColumnInt64(2), s.ColumnInt64(3)
			if err := s.Reset(); err != nil || version == 0 {
				return false, err
			}
			if withValue {
				e.Value, err = c.value(id)
			}
			return true, err
		}
		id = s.ColumnInt64(4)
		if err := s.Reset(); err != nil {
			return false, err
		}
	}
	return false, nil
}

// value reads the value of a log row.
func (c *conn) value(id int64) ([]byte, error) {
	s, err := c.with(qLogRow, id)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	if !s.Step() {
		if err := s.Err(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("log row %d is missing: %w", id, sqlite3.CORRUPT)
	}
	return s.ColumnBlob(5, nil), nil
}

// count counts the keys of a span at a revision.
func (c *conn) count(ks int64, span kv.Span, rev kv.Revision, old bool) (int64, error) {
	family := qCount
	if old {
		family = qCountAt
	}
	s, err := c.spanStmt(family, ks, span)
	if err != nil {
		return 0, err
	}
	if old {
		if err := s.BindInt64(4, rev); err != nil {
			return 0, err
		}
	}
	s.Step()
	n := s.ColumnInt64(0)
	if err := s.Reset(); err != nil || !old {
		return n, err
	}
	if s, err = c.spanStmt(qNewerThan, ks, span); err != nil {
		return 0, err
	}
	if err := s.BindInt64(4, rev); err != nil {
		return 0, err
	}
	defer s.Reset()
	for s.Step() {
		var e kv.KeyValue
		found, err := c.before(&e, s.ColumnInt64(0), rev, false)
		if err != nil {
			return 0, err
		}
		if found {
			n++
		}
	}
	return n, s.Err()
}

func (c *conn) leaseKeys(ks int64, id kv.LeaseID) (keys [][]byte, err error) {
	s, err := c.with(qLeaseKeys, ks, id)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	for s.Step() {
		keys = append(keys, s.ColumnBlob(0, nil))
	}
	return keys, s.Err()
}

func bindAll(s *sqlite3.Stmt, args ...int64) error {
	for i, a := range args {
		if err := s.BindInt64(i+1, a); err != nil {
			return err
		}
	}
	return nil
}

// bindValue binds bytes, where nil means empty: BindBlob would bind NULL for nil.
func bindValue(s *sqlite3.Stmt, param int, b []byte) error {
	if len(b) == 0 {
		return s.BindZeroBlob(param, 0)
	}
	return s.BindBlob(param, b)
}
