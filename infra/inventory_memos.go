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
func (w *Inventory) recordPlan(looked int64, findings []memoUpdate) {
	if len(findings) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.tick()
	valid := func(f *memoUpdate) bool {
		n := &w.nodes[f.node]
		return n.ref == f.ref && n.changedAt <= looked
	}
	// Data sources with new values first: the memos of their dependents date from now, and are
	// valid only if those values are kept.
	var lost []int32
	for i := range findings {
		f := &findings[i]
		switch {
		case !f.valueChanged:
		case valid(f):
			w.nodes[f.node].valueChangedAt = now
		case w.nodes[f.node].ref == f.ref:
			lost = append(lost, f.node)
		}
	}
	for i := range findings {
		f := &findings[i]
		if !valid(f) {
			continue
		}
		n := &w.nodes[f.node]
		f.memo.validAt = 0
		if f.inputsCurrent && w.inputsUnchanged(n.uses, looked, now) {
			f.memo.validAt = now
		}
		n.memo = f.memo
	}
	for _, at := range lost {
		w.nodes[at].valueChangedAt = w.tick() // its dependents were planned with a value that is not kept
	}
}

// inputsUnchanged reports whether nodes have the value of the snapshot, or the one that this very
// plan has read.
func (w *Inventory) inputsUnchanged(uses []int32, looked, now int64) bool {
	for _, u := range uses {
		if seen := w.nodes[u].valueChangedAt; seen > looked && seen != now {
			return false
		}
	}
	return true
}

// recordApply stores the result of an Apply: with the state that it stored, the object needs no
// change. Without it the next plan would evaluate every spec again, which takes half a minute of
// processor time for a hundred thousand resources. inputs are the versions of the states that the
// values came from.
func (w *Inventory) recordApply(object *Object, state *State, took map[reference.Ref]string, m memo) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, known := w.index[state.Ref]
	if !known {
		return
	}
	n := &w.nodes[at]
	if n.object == nil || !equalForPlan(n.object, object) || !sameVersion(n.state, state) {
		return
	}
	for _, u := range n.uses {
		used := &w.nodes[u]
		if used.ref.Kind == reference.Data || used.object == nil || used.object.Deleting {
			return // only a plan can tell
		}
		if version, took := took[used.ref]; took && (used.state == nil || used.state.ResourceVersion != version) {
			return // it has another value by now
		}
	}
	m.validAt, m.stateVersion, m.fingerprint = w.tick(), n.state.ResourceVersion, n.state.Spec.Settled
	if m.providerConfig == n.state.Spec.ProviderConfig {
		m.providerConfig = n.state.Spec.ProviderConfig // one copy for all
	}
	n.memo = m
}
