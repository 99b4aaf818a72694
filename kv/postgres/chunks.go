package postgres

import (
	"bytes"
	"fmt"
	"math"

	"github.com/atoll-dev/atoll/kv"
)

// minChunk is the minimum number of keys in a chunk.
const minChunk = 500

// chunked reports whether a Range is read in chunks. This applies to an old revision in a
// database that follows the history of all keys at once. Such a query does not know how
// many of them existed, so it might process a million keys to find the first hundred.
func (t *table) chunked(req kv.RangeRequest) bool {
	return t.db.dialect.joins != nil && req.Revision > 0 && req.Limit > 0 && !req.CountOnly && !req.Span.Single()
}

// rangeInChunks processes chunks of keys until there are enough that existed at the
// revision. The state at a revision does not change, so each chunk can be read separately;
// ask makes the round trip for one.
func (t *table) rangeInChunks(req kv.RangeRequest, wantCount bool,
	ask func(send func(*conn), receive func(*conn, kv.Head) error) error) (res *kv.RangeResult, at kv.Head, err error) {
	family := qAt
	if req.KeysOnly {
		family = qAtKeys
	}
	size := max(req.Limit, minChunk)
	if size < math.MaxInt64 {
		size++ // one more key shows whether there are more
	}
	res = &kv.RangeResult{}
	total := kv.NewAnswerSize(req.MaxBytes)
	for span, first := req.Span, true; ; first = false {
		var found []kv.KeyValue
		var last []byte // of a full chunk
		var count int64
		var tooLarge error // as in scan
		err = ask(func(c *conn) {
			t.sendSpan(c, family, span, req.Revision, size)
			t.sendSpan(c, qAtEnd, span, size-1, 0)
			if first && wantCount {
				t.sendSpan(c, qCountAt, span, req.Revision, 0)
			}
		}, func(c *conn, h kv.Head) (err error) {
			at, found, last, tooLarge = h, nil, nil, nil
			size := total
			_, err = c.result(func(cols *columns) error {
				e := kv.KeyValue{Version: cols.int(), ModRevision: cols.int(), CreateRevision: cols.int(), Lease: cols.int()}
				if req.KeysOnly {
					e.Key = cols.bytes()
				} else {
					e.Key, e.Value = cols.keyAndValue()
				}
				if tooLarge == nil {
					tooLarge = size.Add(&e)
				}
				if tooLarge == nil {
					found = append(found, e)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if _, err = c.result(func(cols *columns) error { last = cols.bytes(); return nil }); err != nil || !first || !wantCount {
				return err
			}
			_, err = c.result(func(cols *columns) error { count = cols.int(); return nil })
			return err
		})
		if err == nil {
			err = checkRevision(req.Revision, at)
		}
		if err == nil && tooLarge != nil {
			err = fmt.Errorf("range: %w", tooLarge)
		}
		if err != nil {
			return nil, at, err
		}
		if first {
			res.Count = count
		}
		res.Revision = at.Revision
		res.KVs = append(res.KVs, found...)
		if err := total.AddAll(found); err != nil {
			return nil, at, fmt.Errorf("range: %w", err)
		}
		if int64(len(res.KVs)) > req.Limit {
			res.KVs, res.More = res.KVs[:req.Limit:req.Limit], true
		}
		if res.More || last == nil {
			break
		}
		span.Start = append(bytes.Clone(last), 0)
	}
	if !wantCount {
		res.Count = int64(len(res.KVs))
	}
	return res, at, nil
}
