package infra

import (
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// memo is the last plan's finding that there is nothing to do for a node.
type memo struct {
	// validAt is the Inventory's time at which this was found. The node is skipped if neither it
	// nor any value that it uses has changed since. It is 0 if only the fingerprint is valid.
	validAt int64
	// fingerprint identifies the inputs that were found to need no change, together with
	// stateVersion, the state's resourceVersion. The provider need not be asked again, even if the
	// state itself has no such fingerprint.
	fingerprint, stateVersion string
	// providerConfig is its ProviderConfig; kindRevision and configRevision are the revisions of
	// its type and of that configuration.
	providerConfig, kindRevision, configRevision string
	// unwatched means that some inputs can change without notice to the Inventory.
	unwatched bool
	// dataRead is the result of reading a data source.
	dataRead *plan.Decision
}

// memoUpdate is a memo that a plan leaves for a node.
type memoUpdate struct {
	node int32
	ref  reference.Ref
	memo memo
	// valueChanged means that a data source has a new value.
	valueChanged bool
	// inputsCurrent means that every value the node used is the one in the Inventory. So the node
	// is skipped until one of them changes.
	inputsCurrent bool
}

// recordPlan stores the memos of a plan that took its snapshot at a time. Nodes that have changed
// since are left out.
func (inv *Inventory) recordPlan(snapshotAt int64, updates []memoUpdate) {
	if len(updates) == 0 {
		return
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	now := inv.tick()
	valid := func(f *memoUpdate) bool {
		n := &inv.nodes[f.node]
		return n.ref == f.ref && n.changedAt <= snapshotAt
	}
	// Data sources with new values first: the memos of their dependents date from now, and are
	// valid only if those values are kept.
	var outdated []int32
	for i := range updates {
		f := &updates[i]
		switch {
		case !f.valueChanged:
		case valid(f):
			inv.nodes[f.node].valueChangedAt = now
		case inv.nodes[f.node].ref == f.ref:
			outdated = append(outdated, f.node)
		}
	}
	for i := range updates {
		f := &updates[i]
		if !valid(f) {
			continue
		}
		n := &inv.nodes[f.node]
		f.memo.validAt = 0
		if f.inputsCurrent && inv.inputsUnchanged(n.uses, snapshotAt, now) {
			f.memo.validAt = now
		}
		n.memo = f.memo
	}
	for _, at := range outdated {
		inv.nodes[at].valueChangedAt = inv.tick() // its dependents were planned with a value that is not kept
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

// recordApply stores the result of an Apply: with the state that it stored, the object needs no
// change. Without it the next plan would evaluate every spec again, which takes half a minute of
// processor time for a hundred thousand resources. inputVersions are the versions of the states
// that the values came from.
func (inv *Inventory) recordApply(object *Object, state *State, inputVersions map[reference.Ref]string, m memo) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	at, known := inv.index[state.Ref]
	if !known {
		return
	}
	n := &inv.nodes[at]
	if n.object == nil || !equalForPlan(n.object, object) || !sameVersion(n.state, state) {
		return
	}
	for _, u := range n.uses {
		used := &inv.nodes[u]
		if used.ref.Kind == reference.Data || used.object == nil || used.object.Deleting {
			return // only a plan can tell
		}
		if version, ok := inputVersions[used.ref]; ok && (used.state == nil || used.state.ResourceVersion != version) {
			return // it has another value by now
		}
	}
	m.validAt, m.stateVersion, m.fingerprint = inv.tick(), n.state.ResourceVersion, n.state.Spec.Settled
	if m.providerConfig == n.state.Spec.ProviderConfig {
		m.providerConfig = n.state.Spec.ProviderConfig // one copy for all
	}
	n.memo = m
}
