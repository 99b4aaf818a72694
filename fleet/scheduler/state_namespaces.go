package scheduler

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// namespaceGoes explains what happens to a Namespace where it is no longer placed.
const namespaceGoes = "it is deleted there if Atoll created it and it is empty"

// ScheduleNamespace decides about a Namespace with a snapshot of this state, and returns its binding, nil if there is
// none.
func (s *State) ScheduleNamespace(snap *Snapshot, ns *unstructured.Unstructured) (NamespaceDecision, *v1alpha1.ResourceBinding) {
	b := s.bindings[KeyOf(interpret.NamespaceKind().GroupKind(), "", ns.GetName())]
	return snap.ScheduleNamespace(ns, s.clustersWithObjects(nil)[ns.GetName()], b), b
}

// NamespaceClusters returns the clusters with objects of a namespace.
func (s *State) NamespaceClusters(name string) []string { return s.clustersWithObjects(nil)[name] }

// clustersWithObjects returns the clusters with objects of each namespace: those of after, by KeyOf, and otherwise
// those of the bindings.
func (s *State) clustersWithObjects(after map[string][]v1alpha1.ClusterShare) map[string][]string {
	found := map[string]map[string]bool{}
	add := func(key string, shares []v1alpha1.ClusterShare) {
		namespace := strings.Split(key, "/")[1]
		if found[namespace] == nil {
			found[namespace] = map[string]bool{}
		}
		for _, c := range shares {
			found[namespace][c.Name] = true
		}
	}
	for key, b := range s.bindings {
		if _, decided := after[key]; !decided {
			add(key, b.Spec.Clusters)
		}
	}
	for key, shares := range after {
		add(key, shares)
	}
	out := map[string][]string{}
	for namespace, clusters := range found {
		out[namespace] = slices.Sorted(maps.Keys(clusters))
	}
	return out
}

// namespaceMoves returns the changes for Namespaces that policies place or override. after are the shares of other
// objects, by KeyOf.
func (s *State) namespaceMoves(snap *Snapshot, after map[string][]v1alpha1.ClusterShare) (out []Move) {
	used := s.clustersWithObjects(after)
	k := interpret.NamespaceKind()
	for _, name := range slices.Sorted(maps.Keys(s.Namespaces)) {
		ns := interpret.NamespaceObject(&metav1.ObjectMeta{Name: name, Labels: s.Namespaces[name]})
		b := s.bindings[KeyOf(k.GroupKind(), "", name)]
		d := snap.ScheduleNamespace(ns, used[name], b)
		if b == nil && !d.Bound() || s.terminating[name] {
			continue
		}
		out = append(out, movesOfNamespace(name, b, &d)...)
	}
	return out
}

// NamespacePending reports whether the scheduler has not written a decision yet. b is the binding of the Namespace,
// or nil.
func NamespacePending(b *v1alpha1.ResourceBinding, d *NamespaceDecision) bool {
	return len(changed(shareTexts(b, nil), shareTexts(nil, &d.Result))) > 0
}

func movesOfNamespace(name string, b *v1alpha1.ResourceBinding, d *NamespaceDecision) (out []Move) {
	was, is := shareTexts(b, nil), shareTexts(nil, &d.Result)
	for _, cluster := range changed(was, is) {
		before, after := was[cluster], is[cluster]
		m := Move{Kind: "Namespace", Name: name, Cluster: cluster, Before: before.text(), After: after.text(), Reason: after.reason, Why: after.why}
		if after.cluster == "" {
			m.Reason, m.Why = d.whyNot(cluster)
			if b.Spec.Policy == nil {
				m.Why += "; its overrides are removed there"
			} else {
				m.Why += "; " + namespaceGoes
			}
		}
		out = append(out, m)
	}
	if d.Bound() && d.Condition.Status != metav1.ConditionTrue && (b == nil || len(out) > 0) {
		out = append(out, Move{Kind: "Namespace", Name: name, Before: NoShare, After: NoShare, Reason: d.Condition.Reason, Why: d.Condition.Message})
	}
	return out
}

// whyNot returns why a Namespace is not placed in a cluster.
func (d *NamespaceDecision) whyNot(cluster string) (reason, why string) {
	if !d.Placed {
		return "NotPlaced", "no ClusterPlacement places it or overrides it"
	}
	_, verdicts := placement.Explain(d.Request)
	if i := slices.IndexFunc(verdicts, func(v placement.Verdict) bool { return v.Cluster == cluster }); i >= 0 {
		return verdicts[i].Reason, verdicts[i].Message
	}
	return "ClusterGone", "the cluster is not in the fleet"
}
