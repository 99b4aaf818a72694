package mvcc

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// leaseWrite is a change of a lease that waits for a commit.
type leaseWrite struct {
	kind leaseKind
	// record is the lease to grant. For the other kinds only ID is set, and for an expiry
	// the Beat that the lease is expected to have.
	record kv.LeaseRecord
	// now is the lease as the batch found or created it.
	now kv.LeaseRecord
}

type leaseKind uint8

const (
	leaseGrant leaseKind = iota
	leaseRenew
	leaseRevoke
	leaseExpire // revoke unless renewed meanwhile
)

// errRenewed is returned if a lease that seemed expired has been renewed, perhaps by
// another server.
var errRenewed = errors.New("lease was renewed")

// prefetchLeases lists the leases that writes read.
func prefetchLeases(writes []*write) []kv.Lookup {
	var list []kv.Lookup
	seen := map[kv.LeaseID]struct{}{}
	add := func(id kv.LeaseID) {
		if _, known := seen[id]; !known && id != 0 {
			seen[id] = struct{}{}
			list = append(list, kv.Lookup{Lease: id})
		}
	}
	var ofTxn func(*kv.TxnRequest)
	ofTxn = func(req *kv.TxnRequest) {
		for i := range req.Then {
			if put := req.Then[i].Put; put != nil {
				add(put.Lease)
			} else if t := req.Then[i].Txn; t != nil {
				ofTxn(t)
			}
		}
	}
	for _, w := range writes {
		if w.txn != nil {
			ofTxn(w.txn)
		} else {
			add(w.lease.record.ID)
		}
	}
	return list
}

// lease runs a change of a lease and returns the revision after it.
func (b *batch) lease(w *leaseWrite) (rev kv.Revision, err error) {
	switch w.kind {
	case leaseGrant:
		w.now = w.record
		return b.rev, b.grant(w.record)
	case leaseRenew:
		w.now, err = b.renew(w.record.ID)
		return b.rev, err
	case leaseExpire:
		return b.expire(w)
	default:
		return b.revoke(w.record.ID)
	}
}

// findLease finds a lease, whether granted in this batch or before.
func (b *batch) findLease(id kv.LeaseID) (*kv.LeaseRecord, error) {
	if l, known := b.leases[id]; known {
		return l, nil
	}
	l, err := b.tx.Lease(id)
	if err == nil {
		b.leases[id] = l
	}
	return l, err
}

func (b *batch) grant(l kv.LeaseRecord) error {
	old, err := b.findLease(l.ID)
	if err != nil {
		return err
	}
	if old != nil {
		return requestError{fmt.Errorf("grant lease %d: %w", l.ID, kv.ErrLeaseExists)}
	}
	return b.putLease(l)
}

func (b *batch) putLease(l kv.LeaseRecord) error {
	b.leases[l.ID] = &l
	b.touchedLeases[l.ID] = struct{}{}
	return b.tx.PutLease(l)
}

// renew increments the beat of a lease, once per batch: one increment shows that it is
// alive, regardless of the number of renewals.
func (b *batch) renew(id kv.LeaseID) (kv.LeaseRecord, error) {
	l, err := b.findLease(id)
	if err != nil {
		return kv.LeaseRecord{}, err
	}
	if l == nil {
		return kv.LeaseRecord{}, requestError{fmt.Errorf("keep lease %d alive: %w", id, kv.ErrLeaseNotFound)}
	}
	next := *l
	if _, moved := b.touchedLeases[id]; moved {
		return next, nil
	}
	next.Beat++
	return next, b.putLease(next)
}

// expire revokes a lease if its beat is still the one last observed.
func (b *batch) expire(w *leaseWrite) (kv.Revision, error) {
	l, err := b.findLease(w.record.ID)
	if err != nil {
		return 0, err
	}
	if l != nil && l.Beat != w.record.Beat {
		w.now = *l
		return 0, requestError{fmt.Errorf("lease %d: %w", l.ID, errRenewed)}
	}
	return b.revoke(w.record.ID)
}

// revoke ends a lease and deletes its keys.
func (b *batch) revoke(id kv.LeaseID) (kv.Revision, error) {
	b.started = len(b.changes)
	l, err := b.findLease(id)
	if err != nil {
		return 0, err
	}
	if l == nil {
		return 0, requestError{fmt.Errorf("revoke lease %d: %w", id, kv.ErrLeaseNotFound)}
	}
	stored, err := b.tx.LeaseKeys(id)
	if err != nil {
		return 0, err
	}
	keys := map[string]struct{}{}
	for _, key := range stored {
		keys[string(key)] = struct{}{}
	}
	for _, key := range b.dirty {
		if e := b.keys[key].latest(); e != nil && e.Lease == id {
			keys[key] = struct{}{}
		} else {
			delete(keys, key) // deleted or detached by the batch
		}
	}
	sorted := slices.Sorted(maps.Keys(keys))
	var missing []kv.Lookup
	for _, key := range sorted {
		if c := b.keys[key]; c == nil || b.wantPrev && !c.hasValue && len(c.overrides) == 0 {
			missing = append(missing, kv.Lookup{Key: []byte(key), WithValue: b.wantPrev})
		}
	}
	if err := b.preload(missing); err != nil {
		return 0, err
	}
	for _, key := range sorted {
		if _, err := b.deleteKey([]byte(key), b.wantPrev); err != nil {
			return 0, err
		}
	}
	b.leases[id] = nil
	if err := b.tx.DeleteLease(id); err != nil {
		return 0, err
	}
	return b.finish(), nil
}
