package inspect

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// PartitionedReader reads a keyspace together with its partitions, as one state. Its
// revisions are not those of any of them. Each read of the present records the revisions of
// all of them, and assigns the set a number that is not below any of them. A read at that
// number reads each at its recorded revision.
type PartitionedReader struct {
	parent *Reader
	parts  []*Reader

	mu        sync.Mutex
	snapshots []snapshot // the most recent ones
}

type snapshot struct {
	rev kv.Revision
	at  []kv.Revision // of the parent, and of the parts
}

// maxSnapshots is the number of states that can be read again.
const maxSnapshots = 16

// NewPartitionedReader combines the reader of a keyspace with those of its partitions.
func NewPartitionedReader(parent *Reader, parts []*Reader) *PartitionedReader {
	return &PartitionedReader{parent: parent, parts: parts}
}

// Partitions returns their number.
func (w *PartitionedReader) Partitions() int { return len(w.parts) }

func (w *PartitionedReader) readers() []*Reader { return append([]*Reader{w.parent}, w.parts...) }

// now records the present revisions.
func (w *PartitionedReader) now(ctx context.Context) (snapshot, error) {
	var n snapshot
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
	if k := len(w.snapshots); k > 0 {
		last := w.snapshots[k-1]
		if slices.Equal(last.at, n.at) {
			return last, nil
		}
		n.rev = max(n.rev, last.rev+1)
	}
	w.snapshots = append(w.snapshots, n)
	if len(w.snapshots) > maxSnapshots {
		w.snapshots = w.snapshots[1:]
	}
	return n, nil
}

func (w *PartitionedReader) snapshotAt(rev kv.Revision) (snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.snapshots {
		if n.rev == rev {
			return n, nil
		}
	}
	return snapshot{}, fmt.Errorf("range at revision %d: %w: the keyspace is split, and its partitions have no revision in common; read the present, or one partition by its own name",
		rev, kv.ErrInvalidRequest)
}

// Range implements the method of kv.Keyspace.
func (w *PartitionedReader) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	n, err := w.snapshotAt(req.Revision)
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

// Watch is refused: a split keyspace has one history for each partition.
func (w *PartitionedReader) Watch(context.Context, kv.WatchRequest) (kv.Watch, error) {
	return nil, fmt.Errorf("read history: %w: the keyspace is split, and each partition has its own history; select one with --keyspace (atoll kv status lists them)",
		kv.ErrInvalidRequest)
}

// Status implements the method of kv.Keyspace.
func (w *PartitionedReader) Status(ctx context.Context) (*kv.Status, error) {
	st, err := w.parent.Status(ctx)
	if err != nil {
		return nil, err
	}
	n, err := w.now(ctx)
	st.Revision = n.rev
	return st, err
}

// TimeToLive is like Reader.TimeToLive.
func (w *PartitionedReader) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
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

// LeaseList implements the method of kv.Keyspace: all leases belong to the parent.
func (w *PartitionedReader) LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error) {
	return w.parent.LeaseList(ctx)
}
