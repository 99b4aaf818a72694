package kvtest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// Model is the simplest correct keyspace: it keeps the whole state of every revision. It
// has no context, time or concurrency; its leases never expire.
//
// It includes etcd's peculiarities:
//   - All compares of a transaction, including nested ones, see the state before it. So do
//     the checks that can refuse it (leases, ignored values, the revisions of its reads).
//   - A compare on a span without keys is a compare on a missing key.
//   - Bounds on revisions and the limit do not change the count.
//   - A read at an old revision reports the current one.
//   - Revoking a lease without keys, and deleting missing keys, make no revision.
//
// On duplicate keys it is stricter than etcd, like the contract: etcd lets a nested
// transaction delete a key that an earlier nested one puts, and does not detect that a
// deletion without an upper bound covers a put. And sorting is simpler: given a target
// without an order etcd sorts ascending, but only after a limit has cut off all but the
// first keys.
type Model struct {
	Revision  kv.Revision
	Compacted kv.Revision
	// states[r] is the state at revision r; log[r] has its changes.
	states []map[string]kv.KeyValue
	log    [][]kv.Event
	leases map[kv.LeaseID]bool
}

// NewModel returns an empty keyspace, at revision 1.
func NewModel() *Model {
	return &Model{
		Revision: 1,
		states:   []map[string]kv.KeyValue{{}, {}},
		log:      [][]kv.Event{nil, nil},
		leases:   map[kv.LeaseID]bool{},
	}
}

// At returns the state at a revision.
func (m *Model) At(rev kv.Revision) map[string]kv.KeyValue { return m.states[rev] }

// Events returns the events of a watch from its start revision to upTo, both included.
func (m *Model) Events(req kv.WatchRequest, upTo kv.Revision) []kv.Event {
	var out []kv.Event
	for rev := max(req.StartRevision, 2); rev <= min(upTo, m.Revision); rev++ {
		for _, e := range m.log[rev] {
			if !req.Contains(e.KV.Key) || e.Type == kv.EventPut && req.NoPut || e.Type == kv.EventDelete && req.NoDelete {
				continue
			}
			if !req.PrevKV {
				e.Prev = nil
			}
			out = append(out, e)
		}
	}
	return out
}

// Range answers like Keyspace.Range.
func (m *Model) Range(req kv.RangeRequest) (*kv.RangeResult, error) {
	if len(req.Start) == 0 {
		return nil, kv.ErrEmptyKey
	}
	if err := m.readable(req.Revision); err != nil {
		return nil, err
	}
	return m.read(req, m.states[m.Revision], m.Revision), nil
}

func (m *Model) readable(rev kv.Revision) error {
	switch {
	case rev > m.Revision:
		return kv.ErrFutureRevision
	case rev > 0 && rev < m.Compacted:
		return kv.ErrCompacted
	}
	return nil
}

// read requires a readable revision; now is the state for revision 0.
func (m *Model) read(req kv.RangeRequest, now map[string]kv.KeyValue, rev kv.Revision) *kv.RangeResult {
	state := now
	if req.Revision > 0 {
		state = m.states[req.Revision]
	}
	all := within(state, req.Span)
	out := &kv.RangeResult{Revision: rev, Count: int64(len(all))}
	if req.CountOnly {
		return out
	}
	for _, k := range all {
		if inBounds(req, k) {
			out.KVs = append(out.KVs, k)
		}
	}
	sortKVs(out.KVs, req)
	if req.Limit > 0 && int64(len(out.KVs)) > req.Limit {
		out.KVs, out.More = out.KVs[:req.Limit], true
	}
	if req.KeysOnly {
		for i := range out.KVs {
			out.KVs[i].Value = nil
		}
	}
	return out
}

// within returns the keys of a span, ascending.
func within(state map[string]kv.KeyValue, span kv.Span) []kv.KeyValue {
	var out []kv.KeyValue
	for _, key := range slices.Sorted(maps.Keys(state)) {
		if span.Contains([]byte(key)) {
			out = append(out, state[key])
		}
	}
	return out
}

func inBounds(req kv.RangeRequest, k kv.KeyValue) bool {
	return (req.MinModRevision == 0 || k.ModRevision >= req.MinModRevision) &&
		(req.MaxModRevision == 0 || k.ModRevision <= req.MaxModRevision) &&
		(req.MinCreateRevision == 0 || k.CreateRevision >= req.MinCreateRevision) &&
		(req.MaxCreateRevision == 0 || k.CreateRevision <= req.MaxCreateRevision)
}

// sortKVs sorts as requested. Equal ones stay in the order of their keys; a keyspace may
// return them in any order.
func sortKVs(kvs []kv.KeyValue, req kv.RangeRequest) {
	by := comparator(req.SortTarget)
	slices.SortStableFunc(kvs, func(a, b kv.KeyValue) int {
		if req.SortOrder == kv.SortDescend {
			return by(b, a)
		}
		return by(a, b)
	})
}

func comparator(target kv.SortTarget) func(a, b kv.KeyValue) int {
	switch target {
	case kv.SortByVersion:
		return func(a, b kv.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case kv.SortByCreate:
		return func(a, b kv.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case kv.SortByMod:
		return func(a, b kv.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case kv.SortByValue:
		return func(a, b kv.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	default:
		return func(a, b kv.KeyValue) int { return bytes.Compare(a.Key, b.Key) }
	}
}

// Compact answers like Keyspace.Compact. The model drops nothing; it only refuses to return
// it.
func (m *Model) Compact(rev kv.Revision) error {
	switch {
	case rev <= m.Compacted:
		return kv.ErrCompacted
	case rev > m.Revision:
		return kv.ErrFutureRevision
	}
	m.Compacted = rev
	return nil
}

// Grant answers like Keyspace.Grant with an ID.
func (m *Model) Grant(id kv.LeaseID) error {
	if m.leases[id] {
		return kv.ErrLeaseExists
	}
	m.leases[id] = true
	return nil
}

// Revoke answers like Keyspace.Revoke.
func (m *Model) Revoke(id kv.LeaseID) error {
	if !m.leases[id] {
		return kv.ErrLeaseNotFound
	}
	t := m.begin()
	for _, key := range m.LeaseKeys(id) {
		t.delete(kv.Span{Start: key})
	}
	delete(m.leases, id)
	t.commit()
	return nil
}

// Leases returns the existing leases, ascending.
func (m *Model) Leases() []kv.LeaseID { return slices.Sorted(maps.Keys(m.leases)) }

// LeaseKeys returns the keys attached to a lease, ascending.
func (m *Model) LeaseKeys(id kv.LeaseID) [][]byte {
	var out [][]byte
	now := m.states[m.Revision]
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if now[key].Lease == id {
			out = append(out, []byte(key))
		}
	}
	return out
}

func (m *Model) String() string {
	return fmt.Sprintf("revision %d, compacted at %d, %d keys", m.Revision, m.Compacted, len(m.states[m.Revision]))
}
