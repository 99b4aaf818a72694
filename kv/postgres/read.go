package postgres

import (
	"context"
	"fmt"
	"math"

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

// sendSpan sends a statement of a family. limit 0 means none.
func (t *table) sendSpan(c *conn, family query, span kv.Span, rev kv.Revision, limit int64) {
	if limit <= 0 {
		limit = math.MaxInt64
	}
	q := family + query(kindOf(span))
	params := [][]byte{int4(t.id), blob(span.Start), blob(span.End), int8(rev), int8(limit)}
	c.send(q, params[:len(t.db.queries[q].params)]...)
}

// scan is one Range: the statements to send, and the decoding of the answers. The span's
// rows of current include every key that ever existed and is not swept. So they suffice for
// an older revision, too: the database follows the history of a key that has changed since.
type scan struct {
	t       *table
	req     kv.RangeRequest
	counted bool // a count is requested
	// tooLarge is set if the answer exceeds its bound. Its other rows are read and dropped, so
	// that the connection and its transaction can go on.
	tooLarge error
}

func (t *table) scan(req kv.RangeRequest, wantCount bool) *scan {
	limited := req.Limit > 0 && !req.Span.Single()
	return &scan{t: t, req: req, counted: req.CountOnly || limited && wantCount}
}

func (s *scan) send(c *conn) {
	old := s.req.Revision > 0
	if !s.req.CountOnly {
		family := qRange
		switch {
		case old && s.req.KeysOnly:
			family = qAtKeys
		case old:
			family = qAt
		case s.req.KeysOnly:
			family = qRangeKeys
		}
		limit := s.req.Limit
		if limit > 0 && limit < math.MaxInt64 {
			limit++ // one more key shows whether there are more
		}
		s.t.sendSpan(c, family, s.req.Span, s.req.Revision, limit)
	}
	if s.counted {
		family := qCount
		if old {
			family = qCountAt
		}
		s.t.sendSpan(c, family, s.req.Span, s.req.Revision, 0)
	}
}

func (s *scan) receive(c *conn, at kv.Head) (*kv.RangeResult, error) {
	res := &kv.RangeResult{Revision: at.Revision}
	size := kv.NewAnswerSize(s.req.MaxBytes)
	s.tooLarge = nil
	if !s.req.CountOnly {
		_, err := c.result(func(cols *columns) error {
			e := kv.KeyValue{Version: cols.int(), ModRevision: cols.int(), CreateRevision: cols.int(), Lease: cols.int()}
			if s.req.Limit > 0 && int64(len(res.KVs)) == s.req.Limit {
				res.More = true
				return nil
			}
			if s.tooLarge != nil {
				return nil
			}
			if s.req.KeysOnly {
				e.Key = cols.bytes()
			} else {
				e.Key, e.Value = cols.keyAndValue()
			}
			if s.tooLarge = size.Add(&e); s.tooLarge != nil {
				res.KVs = nil
				return nil
			}
			res.KVs = append(res.KVs, e)
			return nil
		})
		if err != nil {
			return nil, err
		}
		res.Count = int64(len(res.KVs))
	}
	if s.counted {
		_, err := c.result(func(cols *columns) error {
			res.Count = cols.int()
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return res, nil
}

// checkRevision returns an error if a revision cannot be read. Data read at such a revision
// is discarded.
func checkRevision(rev kv.Revision, at kv.Head) error {
	switch {
	case rev > at.Revision:
		return fmt.Errorf("range at revision %d: %w (keyspace is at %d)", rev, kv.ErrFutureRevision, at.Revision)
	case rev > 0 && rev < at.Compacted:
		return fmt.Errorf("range at revision %d: %w (at %d)", rev, kv.ErrCompacted, at.Compacted)
	}
	return nil
}

// Range implements kv.Table.
func (t *table) Range(ctx context.Context, req kv.RangeRequest, wantCount bool) (*kv.RangeResult, kv.Head, error) {
	if req.Span.Single() && req.Revision <= 0 {
		return t.get(ctx, req)
	}
	if t.chunked(req) {
		return t.rangeInChunks(req, wantCount, func(send func(*conn), receive func(*conn, kv.Head) error) error {
			return t.snapshot(ctx, "range", send, func(c *conn, h head) error { return receive(c, h.Head) })
		})
	}
	s := t.scan(req, wantCount)
	var res *kv.RangeResult
	var at kv.Head
	err := t.snapshot(ctx, "range", s.send, func(c *conn, h head) (err error) {
		at = h.Head
		res, err = s.receive(c, at)
		return err
	})
	if err == nil {
		err = checkRevision(req.Revision, at)
	}
	if err == nil {
		err = s.refusal()
	}
	if err != nil {
		return nil, at, err
	}
	return res, at, nil
}

// refusal returns the error of an answer that is too large.
func (s *scan) refusal() error {
	if s.tooLarge == nil {
		return nil
	}
	return fmt.Errorf("range: %w", s.tooLarge)
}

// get reads the present state of a single key.
func (t *table) get(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, kv.Head, error) {
	e, at, err := t.gets.get(ctx, req.Start, !req.KeysOnly && !req.CountOnly)
	if err != nil {
		return nil, at, err
	}
	res := &kv.RangeResult{Revision: at.Revision}
	if e != nil {
		res.Count = 1
		if !req.CountOnly {
			res.KVs = []kv.KeyValue{*e}
		}
	}
	return res, at, nil
}
