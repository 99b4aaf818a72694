package mvcc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Grant implements kv.Leases.
func (k *Keyspace) Grant(ctx context.Context, id kv.LeaseID, ttl time.Duration) (*kv.Lease, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	if ttl > maxLeaseTTL*time.Second {
		return nil, fmt.Errorf("grant lease of %v: %w", ttl, kv.ErrLeaseTTLTooLarge)
	}
	if err := k.leases.checkRoom(k.opts.MaxLeases); err != nil {
		return nil, err
	}
	for {
		record := kv.LeaseRecord{ID: id, TTL: max(seconds, minLeaseTTL)}
		if id == 0 {
			record.ID = rand.Int64N(1<<63-1) + 1
		}
		// A lease that is revoked and granted again between two reads must not look like
		// one that has not been renewed.
		record.Beat = rand.Int64N(1 << 62)
		w := &write{lease: &leaseWrite{kind: leaseGrant, record: record}}
		err := k.commits.do(ctx, w)
		if id == 0 && errors.Is(err, kv.ErrLeaseExists) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return granted(record, w.rev), nil
	}
}

// checkRoom refuses another lease if there are too many: each takes memory on every server,
// whether it has keys or not.
func (l *lessor) checkRoom(most int) error {
	if most == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.leases) >= most {
		return fmt.Errorf("grant lease: there are %d leases (--max-leases): revoke some, or wait until they expire: %w", len(l.leases), kv.ErrTooManyLeases)
	}
	return nil
}

// granted describes a lease with its full TTL.
func granted(r kv.LeaseRecord, rev kv.Revision) *kv.Lease {
	d := time.Duration(r.TTL) * time.Second
	return &kv.Lease{ID: r.ID, Granted: d, Remaining: d, Revision: rev}
}

// Revoke implements kv.Leases.
func (k *Keyspace) Revoke(ctx context.Context, id kv.LeaseID) (kv.Revision, error) {
	if id == 0 {
		return 0, fmt.Errorf("revoke lease 0: %w", kv.ErrLeaseNotFound)
	}
	w := &write{lease: &leaseWrite{kind: leaseRevoke, record: kv.LeaseRecord{ID: id}}}
	if err := k.commits.do(ctx, w); err != nil {
		return 0, err
	}
	return w.rev, nil
}

// KeepAlive implements kv.Leases. On a shared table it is a write, which all servers see.
// The table's order decides between renewal and expiry.
func (k *Keyspace) KeepAlive(ctx context.Context, id kv.LeaseID) (*kv.Lease, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	if id == 0 {
		return nil, fmt.Errorf("keep lease 0 alive: %w", kv.ErrLeaseNotFound)
	}
	if !k.shared {
		return k.keepAliveLocal(ctx, id)
	}
	renewal := &leaseWrite{kind: leaseRenew, record: kv.LeaseRecord{ID: id}}
	w := &write{lease: renewal}
	if err := k.commits.do(ctx, w); err != nil {
		return nil, err
	}
	return granted(renewal.now, w.rev), nil
}

// keepAliveLocal renews a lease that only this server can revoke. A lease whose time is
// over is not renewed, even if it still exists: its keys may be deleted at any moment. So
// the caller waits until the outcome is certain.
func (k *Keyspace) keepAliveLocal(ctx context.Context, id kv.LeaseID) (*kv.Lease, error) {
	notFound := fmt.Errorf("keep lease %d alive: %w", id, kv.ErrLeaseNotFound)
	l := k.leases
	l.mu.Lock()
	e := l.leases[id]
	if e == nil {
		l.mu.Unlock()
		return nil, notFound
	}
	now := k.opts.Clock.Now()
	if e.expires.After(now) {
		e.expires = now.Add(e.ttl)
		l.mu.Unlock()
		return &kv.Lease{ID: id, Granted: e.ttl, Remaining: e.ttl, Revision: k.revision()}, nil
	}
	l.mu.Unlock()
	select {
	case <-e.gone:
		return nil, notFound
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-k.ctx.Done():
		return nil, k.ended()
	}
}

// syncLeases makes sure that the known leases include every change acknowledged by any
// server, and returns the keyspace's revision.
func (k *Keyspace) syncLeases(ctx context.Context) (kv.Revision, error) {
	if err := k.open(); err != nil {
		return 0, err
	}
	if !k.shared {
		return k.revision(), nil
	}
	if err := k.leases.poll.refresh(ctx); err != nil {
		return 0, fmt.Errorf("read leases: %w", err)
	}
	head, err := k.heads.get(ctx)
	if err != nil {
		return 0, fmt.Errorf("read leases: %w", err)
	}
	k.observed(head.Revision)
	return head.Revision, nil
}

// TimeToLive implements kv.Leases.
func (k *Keyspace) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	rev, err := k.syncLeases(ctx)
	if err != nil {
		return nil, err
	}
	l := k.leases
	l.mu.Lock()
	e := l.leases[id]
	var res *kv.Lease
	if e != nil {
		res = &kv.Lease{ID: id, Granted: e.ttl, Remaining: max(e.expires.Sub(k.opts.Clock.Now()), 0), Revision: rev}
	}
	l.mu.Unlock()
	if res == nil {
		return nil, fmt.Errorf("lease %d: %w", id, kv.ErrLeaseNotFound)
	}
	if withKeys {
		keys, head, err := k.table.LeaseKeys(ctx, id)
		if err != nil {
			return nil, err
		}
		k.observed(head.Revision)
		res.Keys, res.Revision = keys, head.Revision
	}
	return res, nil
}

// LeaseList implements kv.Leases.
func (k *Keyspace) LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error) {
	rev, err := k.syncLeases(ctx)
	if err != nil {
		return nil, 0, err
	}
	l := k.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := make([]kv.LeaseID, 0, len(l.leases))
	for id := range l.leases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, rev, nil
}

// revision is the highest revision that any client has seen.
func (k *Keyspace) revision() kv.Revision { return max(k.hub.rev.Load(), k.seen.Load()) }
