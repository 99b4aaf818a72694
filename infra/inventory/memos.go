package inventory

import (
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
)

// Memo is the last plan's finding that there is nothing to do for a resource.
type Memo struct {
	// validAt is the Inventory's time at which this was found. The resource is skipped if neither it
	// nor any value that it uses has changed since. It is 0 if only the fingerprint is valid.
	validAt int64
	// Fingerprint identifies the inputs that were found to need no change, together with
	// StateVersion, the state's resourceVersion. The provider need not be asked again, even if the
	// state itself has no such fingerprint.
	Fingerprint, StateVersion string
	// ProviderConfig is its ProviderConfig; KindRevision and ConfigRevision are the revisions of
	// its type and of that configuration.
	ProviderConfig, KindRevision, ConfigRevision string
	// Unwatched means that some inputs can change without notice to the Inventory.
	Unwatched bool
	// DataRead is the result of reading a data source.
	DataRead *decide.Decision
}

// MemoUpdate is a memo that a plan leaves for a resource of its Snapshot.
type MemoUpdate struct {
	Resource *Resource
	Memo     Memo
	// ValueChanged means that a data source has a new value.
	ValueChanged bool
	// InputsCurrent means that every value the resource used is the one in the Inventory. So it is
	// skipped until one of them changes.
	InputsCurrent bool
}

// RecordPlan stores the memos of a plan of a Snapshot. Resources that have changed since are left
// out.
func (inv *Inventory) RecordPlan(of *Snapshot, updates []MemoUpdate) {
	if len(updates) == 0 {
		return
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	now := inv.tick()
	// same returns the node of a resource, or nil if it was dropped since.
	same := func(r *Resource) *node {
		if r.node < 0 || inv.nodes[r.node].ref != r.Ref {
			return nil
		}
		return &inv.nodes[r.node]
	}
	// Data sources with new values first: the memos of their dependents date from now, and are
	// valid only if those values are kept.
	var outdated []*node
	for i := range updates {
		switch n := same(updates[i].Resource); {
		case n == nil || !updates[i].ValueChanged:
		case n.changedAt <= of.at:
			n.valueChangedAt = now
		default:
			outdated = append(outdated, n)
		}
	}
	for i := range updates {
		n := same(updates[i].Resource)
		if n == nil || n.changedAt > of.at {
			continue
		}
		n.memo = updates[i].Memo
		n.memo.validAt = 0
		if updates[i].InputsCurrent && inv.inputsUnchanged(n.uses, of.at, now) {
			n.memo.validAt = now
		}
	}
	for _, n := range outdated {
		n.valueChangedAt = inv.tick() // its dependents were planned with a value that is not kept
	}
}

// inputsUnchanged reports whether nodes have the value of the snapshot, or the one that this very
// plan has read.
func (inv *Inventory) inputsUnchanged(uses []int32, snapshotAt, now int64) bool {
	for _, u := range uses {
		if changedAt := inv.nodes[u].valueChangedAt; changedAt > snapshotAt && changedAt != now {
			return false
		}
	}
	return true
}

// RecordApply stores the result of an Apply: with the state that it stored, the object needs no
// change. Without it the next plan would evaluate every spec again, which takes half a minute of
// processor time for a hundred thousand resources. inputVersions are the versions of the states
// that the values came from.
func (inv *Inventory) RecordApply(object *infra.Object, state *infra.State, inputVersions map[expr.Ref]string, m Memo) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	at, known := inv.index[state.Ref]
	if !known {
		return
	}
	n := &inv.nodes[at]
	if n.object == nil || !equalForPlan(n.object, object) || !n.state.SameVersion(state) {
		return
	}
	for _, u := range n.uses {
		used := &inv.nodes[u]
		if used.ref.Kind == expr.Data || used.object == nil || used.object.Deleting {
			return // only a plan can tell
		}
		if version, ok := inputVersions[used.ref]; ok && (used.state == nil || used.state.ResourceVersion != version) {
			return // it has another value by now
		}
	}
	m.validAt, m.StateVersion, m.Fingerprint = inv.tick(), n.state.ResourceVersion, n.state.Spec.Settled
	if m.ProviderConfig == n.state.Spec.ProviderConfig {
		m.ProviderConfig = n.state.Spec.ProviderConfig // one copy for all
	}
	n.memo = m
}
