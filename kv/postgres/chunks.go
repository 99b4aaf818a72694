package postgres

import (
	"bytes"
	"math"

	"github.com/atoll-dev/atoll/kv"
)

// minChunk is how many keys are looked at together, at least.
const minChunk = 500

// chunked tells whether a Range is read in chunks: one at an old revision, in a
// database that follows all keys back together. It cannot know beforehand how many
// of them existed, so it might follow a million to find the first hundred.
func (t *table) chunked(req kv.RangeRequest) bool {
	return t.db.dialect.joins != nil && req.Revision > 0 && req.Limit > 0 && !req.CountOnly && !req.Span.Single()
}

// rangeInChunks looks at so many keys at a time until there are enough that
// existed at the revision. What is at a revision does not change, so each chunk
// may be read by itself; ask makes the round trip for one.
func (t *table) rangeInChunks(req kv.RangeRequest, wantCount bool,
	ask func(send func(*conn), receive func(*conn, kv.Head) error) error) (res *kv.RangeResult, at kv.Head, err error) {
	family := qAt
	if req.KeysOnly {
		family = qAtKeys
	}
	size := max(req.Limit, minChunk)
	if size < math.MaxInt64 {
		size++ // one more shows whether there is more
	}
	res = &kv.RangeResult{}
	for span, first := req.Span, true; ; first = false {
		var found []kv.KeyValue
		var last []byte // of a full chunk
		var count int64
		err = ask(func(c *conn) {
			t.sendSpan(c, family, span, req.Revision, size)
			t.sendSpan(c, qAtEnd, span, size-1, 0)
			if first && wantCount {
				t.sendSpan(c, qCountAt, span, req.Revision, 0)
			}
		}, func(c *conn, h kv.Head) (err error) {
			at, found, last = h, nil, nil
			_, err = c.result(func(cols *columns) error {
				e := kv.KeyValue{Version: cols.int(), ModRevision: cols.int(), CreateRevision: cols.int(), Lease: cols.int()}
				if req.KeysOnly {
					e.Key = cols.bytes()
				} else {
					e.Key, e.Value = cols.keyAndValue()
				}
				found = append(found, e)
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
			err = judge(req.Revision, at)
		}
		if err != nil {
			return nil, at, err
		}
		if first {
			res.Count = count
		}
		res.Revision = at.Revision
		res.KVs = append(res.KVs, found...)
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
