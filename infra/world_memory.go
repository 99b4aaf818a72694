package infra

import (
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// memo is what the last plan found out of a node: that there is nothing to do.
type memo struct {
	// at is the World's time at which it was so. Nothing has to be looked at again if the node has not
	// moved since, and what it uses is seen as it was. 0 if only the fingerprint counts.
	at int64
	// fingerprint is of what was found to be settled, together with the state of that
	// resourceVersion: the provider need not be asked again, though the state may not say so.
	fingerprint, state string
	// config is the ProviderConfig that it uses; served and opened are the revisions of its type and of that.
	config, served, opened string
	// unwatched says that what it comes from can change without the World being told.
	unwatched bool
	// read is what came of reading a data source.
	read *plan.Decision
}

// finding is a memo that a plan leaves.
type finding struct {
	node int32
	ref  reference.Ref
	memo memo
	// fresh says of a data source that its value is another than before.
	fresh bool
	// current says that all that the node uses had the values that the World has of it: so it
	// need not be looked at again until one of them changes.
	current bool
}

// remember takes in what a plan found out, which looked at the World at a time. What has changed since is left
// out.
func (w *World) remember(looked int64, findings []finding) {
	if len(findings) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.tick()
	valid := func(f *finding) bool {
		n := &w.nodes[f.node]
		return n.ref == f.ref && n.moved <= looked
	}
	// First what others see: their memos are of now, and hold only if what they saw does.
	var lost []int32
	for i := range findings {
		f := &findings[i]
		switch {
		case !f.fresh:
		case valid(f):
			w.nodes[f.node].seen = now
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
		f.memo.at = 0
		if f.current && w.unchanged(n.uses, looked, now) {
			f.memo.at = now
		}
		n.memo = f.memo
	}
	for _, at := range lost {
		w.nodes[at].seen = w.tick() // others were decided by a value that is not kept
	}
}

// unchanged tells whether nodes are seen as they were, or as this very plan found them.
func (w *World) unchanged(uses []int32, looked, now int64) bool {
	for _, u := range uses {
		if seen := w.nodes[u].seen; seen > looked && seen != now {
			return false
		}
	}
	return true
}

// settled takes in what an Apply found out: that with the state that it has stored there is nothing to do about what the
// object says. Else the next plan would evaluate all of it once more, which for a hundred thousand takes
// half a minute of processor time. Took is of which version the states were that values came from.
func (w *World) settled(object *Object, state *State, took map[reference.Ref]string, m memo) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, known := w.numbers[state.Ref]
	if !known {
		return
	}
	n := &w.nodes[at]
	if n.object == nil || !sameObject(n.object, object) || !same(n.state, state) {
		return
	}
	for _, u := range n.uses {
		used := &w.nodes[u]
		if used.ref.Kind == reference.Data || used.object == nil || used.object.Deleting {
			return // a plan has to look
		}
		if version, took := took[used.ref]; took && (used.state == nil || used.state.ResourceVersion != version) {
			return // it has another value by now
		}
	}
	m.at, m.state, m.fingerprint = w.tick(), n.state.ResourceVersion, n.state.Spec.Settled
	if m.config == n.state.Spec.ProviderConfig {
		m.config = n.state.Spec.ProviderConfig // one text for all
	}
	n.memo = m
}
