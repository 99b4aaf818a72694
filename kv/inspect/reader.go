// Package inspect reads keyspaces from their database, for operators. It uses no engine:
// inspecting a keyspace changes nothing in it (an engine would expire leases), and servers
// need not stop.
package inspect

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
)

// Reader implements the reading part of a kv.Keyspace, directly on a kv.Table. Keys are
// ascending; it does not support other orders, and bounds on revisions.
type Reader struct {
	table   kv.Table
	backend kv.Backend
	clock   clock.Clock
}

// NewReader reads table; backend reports the size. The caller closes both.
func NewReader(table kv.Table, backend kv.Backend, clock clock.Clock) *Reader {
	return &Reader{table, backend, clock}
}

// Range implements the method of kv.Keyspace.
func (r *Reader) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	if len(req.Start) == 0 {
		return nil, fmt.Errorf("range: %w", kv.ErrEmptyKey)
	}
	if req.SortOrder != kv.SortNone || req.MinModRevision|req.MaxModRevision|req.MinCreateRevision|req.MaxCreateRevision != 0 {
		return nil, fmt.Errorf("range: %w: only the order ascending by key is supported, without bounds on revisions", kv.ErrInvalidRequest)
	}
	res, _, err := r.table.Range(ctx, req, req.CountOnly)
	return res, err
}

// Status implements the method of kv.Keyspace.
func (r *Reader) Status(ctx context.Context) (*kv.Status, error) {
	head, err := r.table.Head(ctx)
	if err != nil {
		return nil, err
	}
	st := &kv.Status{Revision: head.Revision, Compacted: head.Compacted}
	st.Size, st.SizeInUse, err = r.backend.Size(ctx)
	return st, err
}

// TimeToLive implements the method of kv.Keyspace. Only an engine knows the remaining time,
// so Remaining is the granted TTL.
func (r *Reader) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	all, err := r.table.Leases(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.ID != id {
			continue
		}
		ttl := time.Duration(l.TTL) * time.Second
		out := &kv.Lease{ID: id, Granted: ttl, Remaining: ttl}
		if withKeys {
			keys, head, err := r.table.LeaseKeys(ctx, id)
			if err != nil {
				return nil, err
			}
			out.Keys, out.Revision = keys, head.Revision
		}
		return out, nil
	}
	return nil, fmt.Errorf("lease %x: %w", id, kv.ErrLeaseNotFound)
}

// LeaseList implements the method of kv.Keyspace.
func (r *Reader) LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error) {
	all, err := r.table.Leases(ctx)
	if err != nil {
		return nil, 0, err
	}
	head, err := r.table.Head(ctx)
	ids := make([]kv.LeaseID, len(all))
	for i, l := range all {
		ids[i] = l.ID
	}
	return ids, head.Revision, err
}

// Inspect returns a description of the table's contents. If the table cannot provide it,
// only the number of keys is set, and History is -1.
func (r *Reader) Inspect(ctx context.Context) (*kv.Inspection, error) {
	if t, ok := r.table.(kv.Inspector); ok {
		return t.Inspect(ctx)
	}
	res, err := r.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), CountOnly: true})
	if err != nil {
		return nil, err
	}
	return &kv.Inspection{Keys: res.Count, History: -1}, nil
}
