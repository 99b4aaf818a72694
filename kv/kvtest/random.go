package kvtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// eventTimeout is the time that a test waits for an immediate event.
const eventTimeout = 30 * time.Second

// Random runs CheckRandom on a new keyspace. The seed is in the test's name and in every
// failure.
func Random(t *testing.T, seed uint64, n int, open Open) {
	t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		if err := CheckRandom(t.Context(), open(t), seed, n); err != nil {
			t.Fatal(err)
		}
	})
}

// CheckRandom runs n random operations, one after the other, on an empty keyspace and on
// the Model, and compares every answer. Watches of all kinds run meanwhile. At the end each
// must have delivered exactly the events of the model's history, and all progress that it
// reported must have been correct. The operations depend only on the seed.
func CheckRandom(ctx context.Context, ks kv.Keyspace, seed uint64, n int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &randomRun{ctx: ctx, ks: ks, model: NewModel()}
	r.g = newGenerator(seed, r.model)
	for i := range n {
		if op, err := r.step(); err != nil {
			return fmt.Errorf("seed %d, operation %d of %d: %s\nmodel at %v\n%w", seed, i, n, op, r.model, err)
		}
	}
	for _, w := range r.watches {
		if err := r.finish(w); err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	return nil
}

type randomRun struct {
	ctx     context.Context
	ks      kv.Keyspace
	model   *Model
	g       *generator
	watches []*recorder
}

const maxWatches = 12

// step runs one operation and describes it.
func (r *randomRun) step() (string, error) {
	switch n := r.g.IntN(100); {
	case n < 30:
		return r.range_()
	case n < 55:
		return r.txn(r.g.cas())
	case n < 70:
		return r.txn(kv.TxnRequest{Then: []kv.Op{{Put: r.g.put()}}})
	case n < 75:
		return r.txn(kv.TxnRequest{Then: []kv.Op{{Delete: r.g.deletion()}}})
	case n < 90:
		return r.txn(r.g.txn())
	case n < 92:
		return r.grant()
	case n < 94:
		return r.revoke()
	case n < 96:
		return r.leases()
	case n < 97:
		return r.compact()
	case n < 98 && len(r.watches) > 0:
		return r.settle()
	default:
		return r.watch()
	}
}

func (r *randomRun) range_() (string, error) {
	req := r.g.rangeRequest()
	op := fmt.Sprintf("range %s", describe(req))
	got, gotErr := r.ks.Range(r.ctx, req)
	want, wantErr := r.model.Range(req)
	if err := sameError(gotErr, wantErr); err != nil || gotErr != nil {
		return op, err
	}
	rev := req.Revision
	if rev <= 0 {
		rev = r.model.Revision
	}
	return op, sameRange(req, got, want, r.model.At(rev))
}

func (r *randomRun) txn(req kv.TxnRequest) (string, error) {
	op := fmt.Sprintf("txn %s", describe(req))
	got, gotErr := r.ks.Txn(r.ctx, req)
	want, wantErr := r.model.Txn(req)
	if err := sameError(gotErr, wantErr); err != nil || gotErr != nil {
		return op, err
	}
	return op, sameTxn(got, want)
}

// leaseTTL is long enough not to expire during a test.
const leaseTTL = time.Hour

func (r *randomRun) grant() (string, error) {
	id := r.g.leases[r.g.IntN(len(r.g.leases))]
	op := fmt.Sprintf("grant lease %d", id)
	l, err := r.ks.Grant(r.ctx, id, leaseTTL)
	if err := sameError(err, r.model.Grant(id)); err != nil || l == nil {
		return op, err
	}
	return op, diff([]int64{l.ID, l.Revision}, []int64{id, r.model.Revision})
}

func (r *randomRun) revoke() (string, error) {
	id := r.g.leases[r.g.IntN(len(r.g.leases))]
	op := fmt.Sprintf("revoke lease %d", id)
	rev, gotErr := r.ks.Revoke(r.ctx, id)
	wantErr := r.model.Revoke(id)
	if err := sameError(gotErr, wantErr); err != nil || gotErr != nil {
		return op, err
	}
	return op, diff(rev, r.model.Revision)
}

func (r *randomRun) leases() (string, error) {
	ids, _, err := r.ks.LeaseList(r.ctx)
	if err != nil {
		return "list leases", err
	}
	if err := diff(ids, r.model.Leases()); err != nil {
		return "list leases", err
	}
	for _, id := range ids {
		op := fmt.Sprintf("describe lease %d", id)
		l, err := r.ks.TimeToLive(r.ctx, id, true)
		if err != nil {
			return op, err
		}
		if err := diff(l.Keys, r.model.LeaseKeys(id)); err != nil {
			return op, err
		}
	}
	return "list leases", nil
}

func (r *randomRun) compact() (string, error) {
	rev := 1 + r.g.Int64N(r.model.Revision+1)
	physical := r.g.chance(50)
	op := fmt.Sprintf("compact at %d, physical %v", rev, physical)
	got, gotErr := r.ks.Compact(r.ctx, rev, physical)
	wantErr := r.model.Compact(rev)
	if err := sameError(gotErr, wantErr); err != nil || gotErr != nil {
		return op, err
	}
	return op, diff(got, r.model.Revision)
}

func (r *randomRun) watch() (string, error) {
	req := r.g.watch()
	op := fmt.Sprintf("watch %s", describe(req))
	w, err := record(r.ctx, r.ks, req)
	if err != nil {
		return op, err
	}
	if req.StartRevision == 0 {
		w.req.StartRevision = r.model.Revision + 1
	}
	r.watches = append(r.watches, w)
	if len(r.watches) > maxWatches {
		oldest := r.watches[0]
		r.watches = r.watches[1:]
		return op, r.finish(oldest)
	}
	return op, nil
}

// settle waits until a random watch has caught up.
func (r *randomRun) settle() (string, error) {
	w := r.watches[r.g.IntN(len(r.watches))]
	return "await progress of watch " + describe(w.req), w.catchUp(r.ctx, r.model.Revision)
}

// finish waits for the rest of a watch and checks it.
func (r *randomRun) finish(w *recorder) error {
	if err := w.catchUp(r.ctx, r.model.Revision); err != nil {
		return fmt.Errorf("watch %s: %w", describe(w.req), err)
	}
	w.cancel()
	if err := w.check(r.model); err != nil {
		return fmt.Errorf("watch %s: %w", describe(w.req), err)
	}
	return nil
}
