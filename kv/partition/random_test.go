package partition_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
)

// area is one part of the keyspace with its model.
type area struct {
	prefix string
	model  *kvtest.Model
}

// TestAcross runs random operations on a parent and two partitions. It compares each with
// its own model, and operations over all of them with all models.
func TestAcross(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := &across{t: t, s: newStore(t, "b/", "d/").open(), Rand: rand.New(rand.NewPCG(seed, 0))}
			r.areas = []area{{"", kvtest.NewModel()}, {"b/", kvtest.NewModel()}, {"d/", kvtest.NewModel()}}
			for i := range 400 {
				r.step()
				if t.Failed() {
					t.Fatalf("at operation %d of seed %d", i, seed)
				}
			}
			checkTables(t, r.s)
		})
	}
}

type across struct {
	*rand.Rand
	t     *testing.T
	s     *store
	areas []area
}

// key returns a key of an area; the parent's keys lie around those of the partitions.
func (r *across) key(a *area) []byte {
	if a.prefix != "" {
		return fmt.Appendf(nil, "%s%d", a.prefix, r.IntN(8))
	}
	return []byte([]string{"a/1", "a/2", "b.", "c/1", "c/2", "d.", "d0", "e"}[r.IntN(8)])
}

var leases = []kv.LeaseID{71, 72, 73}

func (r *across) put(a *area) kv.Op {
	p := &kv.PutOp{Key: r.key(a), Value: fmt.Append(nil, r.IntN(1000)), PrevKV: true}
	if r.IntN(3) == 0 {
		p.Lease = leases[r.IntN(len(leases))]
	}
	return kv.Op{Put: p}
}

func (r *across) step() {
	a := &r.areas[r.IntN(len(r.areas))]
	switch n := r.IntN(100); {
	case n < 40:
		r.txn(a, kv.TxnRequest{Then: []kv.Op{r.put(a)}})
	case n < 55:
		key := r.key(a)
		r.txn(a, kv.TxnRequest{
			If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareVersion, Op: kv.Greater, Int: 1}},
			Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Span{Start: key}, PrevKV: true}}},
			Else: []kv.Op{{Put: &kv.PutOp{Key: key, Value: []byte("else")}}},
		})
	case n < 65:
		r.refused()
	case n < 85:
		r.list()
	case n < 92:
		id := leases[r.IntN(len(leases))]
		_, err := r.s.Grant(r.t.Context(), id, time.Hour)
		for i := range r.areas {
			r.same("grant", err, r.areas[i].model.Grant(id))
		}
	default:
		id := leases[r.IntN(len(leases))]
		r.describe(id)
		_, err := r.s.Revoke(r.t.Context(), id)
		for i := range r.areas {
			r.same("revoke", err, r.areas[i].model.Revoke(id))
		}
	}
}

func (r *across) same(what string, got, want error) {
	r.t.Helper()
	if got != want && (want == nil || !errors.Is(got, want)) {
		r.t.Errorf("%s: %v, model: %v", what, got, want)
	}
}

func (r *across) txn(a *area, req kv.TxnRequest) {
	r.t.Helper()
	got, gotErr := r.s.Txn(r.t.Context(), req)
	want, wantErr := a.model.Txn(req)
	r.same("txn", gotErr, errors.Unwrap(fmt.Errorf("%w", wantErr)))
	if gotErr != nil || wantErr != nil {
		return
	}
	if got.Succeeded != want.Succeeded || got.Revision != want.Revision {
		r.t.Errorf("txn in %q: %+v, model: %+v", a.prefix, got, want)
	}
}

// refused runs operations over several partitions: they change nothing.
func (r *across) refused() {
	one, other := &r.areas[r.IntN(2)], &r.areas[2]
	for what, req := range map[string]kv.TxnRequest{
		"two puts":     {Then: []kv.Op{r.put(one), r.put(other)}},
		"two branches": {Then: []kv.Op{r.put(one)}, Else: []kv.Op{r.put(other)}},
		"compare": {
			If:   []kv.Compare{{Span: kv.Span{Start: r.key(other)}, Target: kv.CompareMod}},
			Then: []kv.Op{r.put(one)},
		},
		"nested":           {Then: []kv.Op{{Txn: &kv.TxnRequest{Then: []kv.Op{r.put(one)}}}, r.put(other)}},
		"deletion of all":  {Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Prefix(nil)}}}},
		"deletion of some": {Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Span{Start: []byte("b"), End: []byte("b/5")}}}}},
	} {
		if _, err := r.s.Txn(r.t.Context(), req); !errors.Is(err, kv.ErrInvalidRequest) {
			r.t.Errorf("%s: %v", what, err)
		}
	}
	all := kv.Prefix(nil)
	if _, err := r.s.Watch(r.t.Context(), kv.WatchRequest{Span: all}); !errors.Is(err, kv.ErrInvalidRequest) {
		r.t.Errorf("watch of all: %v", err)
	}
	if _, err := r.s.Range(r.t.Context(), kv.RangeRequest{Span: all, Revision: 2}); !errors.Is(err, kv.ErrInvalidRequest) {
		r.t.Errorf("range over all at a revision: %v", err)
	}
}

// list reads a random span at any location.
func (r *across) list() {
	ends := []string{"a", "a/2", "b", "b/", "b/3", "b/6", "b0", "c/1", "d/", "d/4", "d0", "e", "z"}
	from := r.IntN(len(ends))
	span := kv.Span{Start: []byte(ends[from]), End: []byte(ends[from+r.IntN(len(ends)-from)])}
	if r.IntN(4) == 0 {
		span.End = []byte{0}
	}
	req := kv.RangeRequest{Span: span, Limit: int64(r.IntN(12)), CountOnly: r.IntN(5) == 0, KeysOnly: r.IntN(5) == 0}
	if r.IntN(3) == 0 {
		req.SortTarget, req.SortOrder = kv.SortByKey, kv.SortDescend
	}
	var want []kv.KeyValue
	for i := range r.areas {
		a := &r.areas[i]
		for key, e := range a.model.At(a.model.Revision) {
			if span.Contains([]byte(key)) {
				want = append(want, e)
			}
		}
	}
	slices.SortFunc(want, func(a, b kv.KeyValue) int {
		if req.SortOrder == kv.SortDescend {
			a, b = b, a
		}
		return bytes.Compare(a.Key, b.Key)
	})
	got, err := r.s.Range(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	if got.Count != int64(len(want)) {
		r.t.Errorf("range %+v has count %d, want %d", req, got.Count, len(want))
	}
	more := req.Limit > 0 && int64(len(want)) > req.Limit
	if more {
		want = want[:req.Limit]
	}
	if req.CountOnly {
		want, more = nil, got.More
	}
	if got.More != more || !slices.EqualFunc(got.KVs, want, func(a, b kv.KeyValue) bool {
		return bytes.Equal(a.Key, b.Key) && (req.KeysOnly || bytes.Equal(a.Value, b.Value)) && a.ModRevision == b.ModRevision && a.Version == b.Version
	}) {
		r.t.Errorf("range %+v:\ngot  %+v\nwant %+v (more %v)", req, got, want, more)
	}
}

func (r *across) describe(id kv.LeaseID) {
	got, err := r.s.TimeToLive(r.t.Context(), id, true)
	if err != nil {
		return
	}
	var want [][]byte
	for i := range r.areas {
		want = append(want, r.areas[i].model.LeaseKeys(id)...)
	}
	slices.SortFunc(want, bytes.Compare)
	if !slices.EqualFunc(got.Keys, want, bytes.Equal) {
		r.t.Errorf("keys of lease %d: %q, want %q", id, got.Keys, want)
	}
}
