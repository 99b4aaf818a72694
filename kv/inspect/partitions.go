package inspect

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// Whole reads a keyspace together with its partitions, as one state. Its
// revisions are not those of any of them: each read of the present notes where all of
// them stand, and gives that a number, which is not below any of theirs; a read at
// that number reads each as it was then.
type Whole struct {
	parent *Reader
	parts  []*Reader

	mu    sync.Mutex
	notes []note // the last few
}

type note struct {
	rev kv.Revision
	at  []kv.Revision // of the parent, and of the parts
}

// keptNotes is how many states can be read again.
const keptNotes = 16

// NewWhole joins the reader of a keyspace with those of its partitions.
func NewWhole(parent *Reader, parts []*Reader) *Whole { return &Whole{parent: parent, parts: parts} }

// Partitions counts them.
func (w *Whole) Partitions() int { return len(w.parts) }

func (w *Whole) readers() []*Reader { return append([]*Reader{w.parent}, w.parts...) }

// now notes where all stand.
func (w *Whole) now(ctx context.Context) (note, error) {
	var n note
	for _, r := range w.readers() {
		head, err := r.table.Head(ctx)
		if err != nil {
			return n, err
		}
		n.at = append(n.at, head.Revision)
	}
	n.rev = slices.Max(n.at)
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := len(w.notes); k > 0 {
		last := w.notes[k-1]
		if slices.Equal(last.at, n.at) {
			return last, nil
		}
		n.rev = max(n.rev, last.rev+1)
	}
	w.notes = append(w.notes, n)
	if len(w.notes) > keptNotes {
		w.notes = w.notes[1:]
	}
	return n, nil
}

func (w *Whole) noted(rev kv.Revision) (note, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notes {
		if n.rev == rev {
			return n, nil
		}
	}
	return note{}, fmt.Errorf("range at revision %d: %w: the keyspace is split, and its partitions have no revision in common; read the present, or a partition by its own name",
		rev, kv.ErrInvalidRequest)
}

// Range as in kv.Keyspace.
func (w *Whole) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	n, err := w.noted(req.Revision)
	if req.Revision <= 0 {
		n, err = w.now(ctx)
	}
	if err != nil {
		return nil, err
	}
	out := &kv.RangeResult{Revision: n.rev}
	for i, r := range w.readers() {
		req.Revision = n.at[i]
		res, err := r.Range(ctx, req)
		if err != nil {
			return nil, err
		}
		out.KVs = append(out.KVs, res.KVs...)
		out.Count += res.Count
		out.More = out.More || res.More
	}
	slices.SortFunc(out.KVs, func(a, b kv.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	if req.Limit > 0 && int64(len(out.KVs)) > req.Limit {
		out.KVs, out.More = out.KVs[:req.Limit], true
	}
	return out, nil
}

// Watch is refused: the history of a keyspace that is split is in several orders.
func (w *Whole) Watch(context.Context, kv.WatchRequest) (kv.Watch, error) {
	return nil, fmt.Errorf("read history: %w: the keyspace is split, and each partition has a history of its own; name one of them with --keyspace, as atoll kv status shows it",
		kv.ErrInvalidRequest)
}

// Status as in kv.Keyspace.
func (w *Whole) Status(ctx context.Context) (*kv.Status, error) {
	st, err := w.parent.Status(ctx)
	if err != nil {
		return nil, err
	}
	n, err := w.now(ctx)
	st.Revision = n.rev
	return st, err
}

// TimeToLive as in Reader.
func (w *Whole) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	lease, err := w.parent.TimeToLive(ctx, id, withKeys)
	if err != nil || !withKeys {
		return lease, err
	}
	for _, r := range w.parts {
		keys, _, err := r.table.LeaseKeys(ctx, id)
		if err != nil {
			return nil, err
		}
		lease.Keys = append(slices.Clip(lease.Keys), keys...)
	}
	slices.SortFunc(lease.Keys, bytes.Compare)
	return lease, nil
}

// LeaseList as in kv.Keyspace: the leases are all the parent's.
func (w *Whole) LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error) {
	return w.parent.LeaseList(ctx)
}
