package scheduler

import (
	"iter"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// Peer is a placed object as the affinity terms of others see it.
type Peer struct {
	Key       string
	Namespace string
	Labels    map[string]string
	Clusters  []string
}

func (snap *Snapshot) neighbours(self string, obj metav1.Object, terms []placement.Term) []placement.TermMatches {
	out := make([]placement.TermMatches, len(terms))
	own := obj.GetNamespace()
	peers := snap.Peers(own)
	for i := range terms {
		out[i].Self = terms[i].Selects(own, own, snap.Namespace, obj.GetLabels())
		if terms[i].IsWide() {
			peers = snap.AllPeers()
		}
	}
	for p := range peers {
		if p.Key == self {
			continue
		}
		for i := range terms {
			if terms[i].Selects(own, p.Namespace, snap.Namespace, p.Labels) {
				out[i].Clusters = append(out[i].Clusters, p.Clusters...)
			}
		}
	}
	return out
}

// waitsForOthers reports whether an object is not placed, and decisions about others may change that.
func (a *Result) waitsForOthers() bool {
	return !a.Decision.Scheduled && (len(a.Request.Affinity)+len(a.Request.AntiAffinity) > 0 || a.Together != nil)
}

// hasTerms reports whether a policy has terms about other objects. It may be nil.
func hasTerms(policy *placement.Policy) bool {
	if policy == nil {
		return false
	}
	near, apart := policy.Terms()
	return len(near)+len(apart) > 0
}

// hasWideTerms reports whether it has terms about objects of other namespaces.
func hasWideTerms(policy *placement.Policy) bool {
	if policy == nil {
		return false
	}
	near, apart := policy.Terms()
	return slices.ContainsFunc(slices.Concat(near, apart), func(t placement.Term) bool { return t.IsWide() })
}

// peersOf returns the peers among bindings.
func peersOf(bindings []*v1alpha1.ResourceBinding, labelsOf func(*v1alpha1.ResourceBinding) map[string]string) iter.Seq[Peer] {
	return func(yield func(Peer) bool) {
		for _, b := range bindings {
			if len(b.Spec.RequiredBy) > 0 || len(b.Decided()) == 0 {
				continue
			}
			gk := b.Spec.Resource.GroupVersionKind().GroupKind()
			if interpret.IsNamespace(gk) {
				continue
			}
			p := Peer{Key: KeyOf(gk, b.Namespace, b.Spec.Resource.Name), Namespace: b.Namespace, Labels: labelsOf(b)}
			for _, c := range b.Decided() {
				p.Clusters = append(p.Clusters, c.Name)
			}
			slices.Sort(p.Clusters)
			if !yield(p) {
				return
			}
		}
	}
}
