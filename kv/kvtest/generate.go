package kvtest

import (
	"fmt"
	"math/rand/v2"

	"github.com/atoll-dev/atoll/kv"
)

// generator creates random requests that are likely to interact: few keys, compares that
// hold about half the time, and revisions around the readable ones.
type generator struct {
	*rand.Rand
	model *Model
	// leases that requests may name; some do not exist.
	leases []kv.LeaseID
	puts   int
}

const maxKeys = 24

func newGenerator(seed uint64, model *Model) *generator {
	return &generator{
		Rand: rand.New(rand.NewPCG(seed, 0)), model: model,
		leases: []kv.LeaseID{1001, 1002, 1003, 1004},
	}
}

// chance is true n times in a hundred.
func (g *generator) chance(n int) bool { return g.IntN(100) < n }

func (g *generator) key() []byte {
	n := g.IntN(maxKeys)
	switch {
	case n < 4:
		// Neighbours in byte order that a text collation would order differently.
		return [][]byte{{0}, {0xff}, {0xff, 0xff}, []byte("k/é")}[n]
	case n < 14:
		return fmt.Appendf(nil, "k/a/%02d", n)
	default:
		return fmt.Appendf(nil, "k/b/%02d", n)
	}
}

func (g *generator) span() kv.Span {
	switch n := g.IntN(100); {
	case n < 30:
		return kv.Span{Start: g.key()}
	case n < 40:
		return kv.Span{Start: g.key(), End: []byte{0}}
	case n < 70:
		return kv.Prefix([]byte([]string{"k/", "k/a/", "k/b/", "k/a/0", "none/"}[g.IntN(5)]))
	default:
		return g.interval()
	}
}

// interval has both ends, in order.
func (g *generator) interval() kv.Span {
	for {
		a, b := g.key(), g.key()
		switch {
		case string(a) < string(b):
			return kv.Span{Start: a, End: b}
		case string(b) < string(a) && !(len(a) == 1 && a[0] == 0):
			return kv.Span{Start: b, End: a}
		}
	}
}

// revision returns a revision to read at: the present, a past, a compacted or a future one.
func (g *generator) revision() kv.Revision {
	switch n := g.IntN(100); {
	case n < 50:
		return 0
	case n < 90:
		low := max(g.model.Compacted, 1)
		return low + g.Int64N(g.model.Revision-low+1)
	case n < 95:
		return 1 + g.Int64N(g.model.Revision)
	default:
		return g.model.Revision + 1 + g.Int64N(3)
	}
}

func (g *generator) rangeRequest() kv.RangeRequest {
	req := g.plainRange()
	if g.chance(30) {
		req.SortTarget = kv.SortTarget(g.IntN(5))
		req.SortOrder = kv.SortOrder(g.IntN(3))
		if req.Limit > 0 && req.SortOrder == kv.SortNone {
			req.SortOrder = kv.SortAscend // see Model
		}
	}
	bound := func() kv.Revision {
		if g.chance(85) {
			return 0
		}
		return 1 + g.Int64N(g.model.Revision)
	}
	req.MinModRevision, req.MaxModRevision = bound(), bound()
	req.MinCreateRevision, req.MaxCreateRevision = bound(), bound()
	return req
}

// plainRange is sorted by key.
func (g *generator) plainRange() kv.RangeRequest {
	req := kv.RangeRequest{Span: g.span(), Revision: g.revision()}
	if g.chance(40) {
		req.Limit = 1 + g.Int64N(6)
	}
	req.CountOnly = g.chance(10)
	req.KeysOnly = g.chance(15)
	req.Serializable = g.chance(10)
	if g.chance(15) {
		req.SortOrder = kv.SortOrder(g.IntN(3))
	}
	return req
}

func (g *generator) lease() kv.LeaseID {
	if g.chance(75) {
		return 0
	}
	return g.leases[g.IntN(len(g.leases))]
}

func (g *generator) put() *kv.PutOp {
	g.puts++
	p := &kv.PutOp{Key: g.key(), Lease: g.lease(), PrevKV: g.chance(40)}
	if p.IgnoreValue = g.chance(5); !p.IgnoreValue && !g.chance(5) {
		p.Value = fmt.Appendf(nil, "v%d", g.puts)
	}
	if p.IgnoreLease = g.chance(5); p.IgnoreLease {
		p.Lease = 0
	}
	return p
}

func (g *generator) deletion() *kv.DeleteOp {
	d := &kv.DeleteOp{PrevKV: g.chance(40)}
	switch n := g.IntN(100); {
	case n < 70:
		d.Span = kv.Span{Start: g.key()}
	case n < 95:
		d.Span = g.interval()
	default:
		d.Span = kv.Prefix([]byte("k/b/"))
	}
	return d
}

func (g *generator) compare() kv.Compare {
	c := kv.Compare{Span: kv.Span{Start: g.key()}, Target: kv.CompareTarget(g.IntN(6)), Op: kv.CompareOp(g.IntN(5))}
	if g.chance(20) {
		c.Span = g.span()
	}
	// Mostly compare with the existing state.
	var now kv.KeyValue
	if g.chance(70) {
		now = g.model.At(g.model.Revision)[string(c.Start)]
	}
	switch c.Target {
	case kv.CompareVersion:
		c.Int = now.Version
	case kv.CompareCreate:
		c.Int = now.CreateRevision
	case kv.CompareMod:
		c.Int = now.ModRevision
	case kv.CompareLease:
		c.Int = now.Lease
	case kv.CompareValue:
		c.Value = now.Value
	}
	return c
}

// txn is a general transaction. Its nested ones either put or delete, because there etcd is
// less strict than the contract (see Model).
func (g *generator) txn() kv.TxnRequest { return g.nestedTxn(2, g.chance(50), true) }

func (g *generator) nestedTxn(depth int, nestedPuts, top bool) kv.TxnRequest {
	var req kv.TxnRequest
	for range g.IntN(3) {
		req.If = append(req.If, g.compare())
	}
	ops := func() []kv.Op {
		var out []kv.Op
		for range g.IntN(4) {
			switch n := g.IntN(100); {
			case n < 40 && (top || nestedPuts):
				out = append(out, kv.Op{Put: g.put()})
			case n < 55 && (top || !nestedPuts):
				out = append(out, kv.Op{Delete: g.deletion()})
			case n < 70 && depth > 0:
				nested := g.nestedTxn(depth-1, nestedPuts, false)
				out = append(out, kv.Op{Txn: &nested})
			default:
				r := g.plainRange()
				out = append(out, kv.Op{Range: &r})
			}
		}
		return out
	}
	req.Then, req.Else = ops(), ops()
	return req
}

// cas is the API server's most frequent request: change one key if it is as expected.
func (g *generator) cas() kv.TxnRequest {
	p := g.put()
	p.IgnoreLease, p.IgnoreValue = false, false
	expect := g.model.At(g.model.Revision)[string(p.Key)].ModRevision
	if g.chance(20) {
		expect = g.Int64N(g.model.Revision + 1)
	}
	req := kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: p.Key}, Target: kv.CompareMod, Int: expect}},
		Then: []kv.Op{{Put: p}},
	}
	if g.chance(25) {
		req.Then = []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Span{Start: p.Key}}}}
	}
	if g.chance(70) {
		req.Else = []kv.Op{{Range: &kv.RangeRequest{Span: kv.Span{Start: p.Key}}}}
	}
	return req
}

func (g *generator) watch() kv.WatchRequest {
	req := kv.WatchRequest{Span: g.span(), PrevKV: g.chance(50), ProgressNotify: g.chance(20)}
	switch n := g.IntN(100); {
	case n < 40:
		low := max(g.model.Compacted, 1)
		req.StartRevision = low + g.Int64N(g.model.Revision-low+1)
	case n < 50 && g.model.Compacted > 1:
		req.StartRevision = 1 + g.Int64N(g.model.Compacted-1)
	case n < 60:
		req.StartRevision = g.model.Revision + 1 + g.Int64N(5)
	}
	switch g.IntN(10) {
	case 0:
		req.NoPut = true
	case 1:
		req.NoDelete = true
	}
	return req
}
