package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// A lease belongs to the parent: it is granted, renewed, revoked and expires there. A
// partition gets a copy when one of its keys is first attached to the lease. The copy's TTL
// is longer than the lease's (kv.PartitionLeaseTTL), and it is renewed as long as the lease
// exists, so it cannot expire first. When the lease is gone, the copy is revoked, with its
// keys. If a step is interrupted, the lease loop of any server completes it.

// attach copies the leases that a transaction attaches keys to into a partition; some
// reports whether at least one exists.
func (k *Keyspace) attach(ctx context.Context, l *layout, p *part, req *kv.TxnRequest) (some bool, err error) {
	for _, id := range leasesOf(req) {
		lease, err := l.parent.TimeToLive(ctx, id, false)
		if errors.Is(err, kv.ErrLeaseNotFound) {
			continue
		}
		if err != nil {
			return false, err
		}
		ttl := kv.PartitionLeaseTTL(int64(lease.Granted / time.Second))
		if _, err := p.engine.Grant(ctx, id, time.Duration(ttl)*time.Second); err != nil && !errors.Is(err, kv.ErrLeaseExists) {
			return false, err
		}
		// Revoke goes through the partitions after the parent. So either the lease still
		// exists now, or Revoke may have missed its copy.
		_, err = l.parent.TimeToLive(ctx, id, false)
		if errors.Is(err, kv.ErrLeaseNotFound) {
			if _, err := p.engine.Revoke(ctx, id); err != nil && !errors.Is(err, kv.ErrLeaseNotFound) {
				return false, err
			}
			continue
		}
		if err != nil {
			return false, err
		}
		some = true
	}
	return some, nil
}

// leasesOf lists the leases that a transaction may attach keys to.
func leasesOf(req *kv.TxnRequest) (ids []kv.LeaseID) {
	for _, ops := range [2][]kv.Op{req.Then, req.Else} {
		for i := range ops {
			switch op := &ops[i]; {
			case op.Put != nil && op.Put.Lease != 0 && !slices.Contains(ids, op.Put.Lease):
				ids = append(ids, op.Put.Lease)
			case op.Txn != nil:
				for _, id := range leasesOf(op.Txn) {
					if !slices.Contains(ids, id) {
						ids = append(ids, id)
					}
				}
			}
		}
	}
	return ids
}

// Grant implements kv.Leases.
func (k *Keyspace) Grant(ctx context.Context, id kv.LeaseID, ttl time.Duration) (*kv.Lease, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		err := l.revokeOldCopies(ctx, id)
		var lease *kv.Lease
		if err == nil {
			lease, err = l.parent.Grant(ctx, id, ttl)
		}
		if !k.shouldRetry(ctx, l, try, err) {
			return lease, err
		}
	}
}

// revokeOldCopies revokes copies that remain in partitions from an earlier lease with the
// same ID: the new lease must not adopt their keys.
func (l *layout) revokeOldCopies(ctx context.Context, id kv.LeaseID) error {
	if id == 0 {
		return nil // the keyspace chooses a new ID
	}
	var left []*part
	for _, p := range l.parts {
		switch _, err := p.engine.TimeToLive(ctx, id, false); {
		case err == nil:
			left = append(left, p)
		case !errors.Is(err, kv.ErrLeaseNotFound):
			return err
		}
	}
	if len(left) == 0 {
		return nil
	}
	switch _, err := l.parent.TimeToLive(ctx, id, false); {
	case err == nil:
		return fmt.Errorf("grant lease %d: %w", id, kv.ErrLeaseExists)
	case !errors.Is(err, kv.ErrLeaseNotFound):
		return err
	}
	return revoke(ctx, left, id)
}

// revoke revokes the copies of a lease.
func revoke(ctx context.Context, parts []*part, id kv.LeaseID) error {
	failed := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() {
			if _, err := p.engine.Revoke(ctx, id); err != nil && !errors.Is(err, kv.ErrLeaseNotFound) {
				failed[i] = fmt.Errorf("revoke lease %d in partition %q: %w", id, p.prefix, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

// Revoke implements kv.Leases. The keys of each partition are deleted in a revision of that
// partition; the returned revision is the parent's.
func (k *Keyspace) Revoke(ctx context.Context, id kv.LeaseID) (kv.Revision, error) {
	var done kv.Revision // after the lease itself is revoked
	for try := 0; ; try++ {
		l := k.layout.Load()
		var err error
		if done == 0 {
			done, err = l.parent.Revoke(ctx, id)
		}
		if done != 0 && err == nil {
			err = revoke(ctx, l.parts, id)
		}
		if k.shouldRetry(ctx, l, try, err) {
			continue
		}
		if err != nil && done != 0 {
			return done, fmt.Errorf("%w: the lease is revoked, and its keys will be deleted: %w", kv.ErrUnknownOutcome, err)
		}
		return done, err
	}
}

// KeepAlive implements kv.Leases. The lease loop renews copies: see follow.
func (k *Keyspace) KeepAlive(ctx context.Context, id kv.LeaseID) (*kv.Lease, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		lease, err := l.parent.KeepAlive(ctx, id)
		if !k.shouldRetry(ctx, l, try, err) {
			return lease, err
		}
	}
}

// TimeToLive implements kv.Leases.
func (k *Keyspace) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		lease, err := l.parent.TimeToLive(ctx, id, withKeys)
		if err == nil && withKeys && len(l.parts) > 0 {
			err = l.addKeys(ctx, lease)
		}
		if k.shouldRetry(ctx, l, try, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return lease, nil
	}
}

func (l *layout) addKeys(ctx context.Context, lease *kv.Lease) error {
	for _, p := range l.parts {
		c, err := p.engine.TimeToLive(ctx, lease.ID, true)
		if errors.Is(err, kv.ErrLeaseNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		lease.Keys = append(slices.Clip(lease.Keys), c.Keys...)
	}
	slices.SortFunc(lease.Keys, bytes.Compare)
	return nil
}

// LeaseList implements kv.Leases.
func (k *Keyspace) LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		ids, rev, err := l.parent.LeaseList(ctx)
		if !k.shouldRetry(ctx, l, try, err) {
			return ids, rev, err
		}
	}
}

const (
	// leaseShare bounds the part of the time spent on maintaining leases (one in so many).
	leaseShare = 20
	// leasesAtOnce is the number of leases that are renewed or revoked concurrently, to
	// share commits.
	leasesAtOnce = 64
)

// leaseLoop maintains the copies of leases.
func (k *Keyspace) leaseLoop() {
	wait := k.opts.LeaseInterval
	for {
		select {
		case <-k.opts.Clock.After(wait):
		case <-k.ctx.Done():
			return
		}
		begin := k.opts.Clock.Now()
		l := k.layout.Load()
		err := k.follow(l)
		wait = max(k.opts.LeaseInterval, min(leaseShare*k.opts.Clock.Since(begin), leaseShare*k.opts.LeaseInterval))
		// There may be no client calls to a keyspace that was split.
		k.shouldRetry(k.ctx, l, 0, err)
	}
}

// follow revokes copies whose lease is gone, and renews the others in time.
func (k *Keyspace) follow(l *layout) error {
	var held [][]kv.LeaseID
	some := false
	for _, p := range l.parts {
		ids, _, err := p.engine.LeaseList(k.ctx)
		if err != nil {
			return err
		}
		held = append(held, ids)
		some = some || len(ids) > 0
	}
	if !some {
		return nil
	}
	// Read after the partitions: each copy was made of an existing lease.
	leases, _, err := l.parent.LeaseList(k.ctx)
	if err != nil {
		return err
	}
	there := make(map[kv.LeaseID]struct{}, len(leases))
	for _, id := range leases {
		there[id] = struct{}{}
	}
	for i, p := range l.parts {
		if err := k.followPart(p, held[i], there); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keyspace) followPart(p *part, held []kv.LeaseID, there map[kv.LeaseID]struct{}) error {
	now := k.opts.Clock.Now()
	copies := make(map[kv.LeaseID]time.Time, len(held))
	var mu sync.Mutex
	var first error
	slots := make(chan struct{}, leasesAtOnce)
	var wg sync.WaitGroup
	for _, id := range held {
		_, lives := there[id]
		due, known := p.renewals[id]
		if lives && known && now.Before(due) {
			mu.Lock()
			copies[id] = due
			mu.Unlock()
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			var lease *kv.Lease
			var err error
			if lives {
				lease, err = p.engine.KeepAlive(k.ctx, id)
			} else {
				_, err = p.engine.Revoke(k.ctx, id)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && lives:
				copies[id] = now.Add(lease.Granted / 3)
			case err != nil && !errors.Is(err, kv.ErrLeaseNotFound) && first == nil:
				first = err
			}
		})
	}
	wg.Wait()
	p.renewals = copies
	return first
}
