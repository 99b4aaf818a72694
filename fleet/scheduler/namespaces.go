package scheduler

import (
	"context"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// A Namespace is in a cluster for the objects in it, and needs no binding for that. It has one if a ClusterPlacement
// names its kind: one that places it, or one that overrides its labels and annotations.

const (
	// ReasonNamespaceObjects means that objects of the namespace are in the cluster.
	ReasonNamespaceObjects = "ObjectsOfNamespace"
	// reasonNamespaceUsed is the reason of a Namespace that policies only override.
	reasonNamespaceUsed = "FollowsObjects"
)

// NamespaceDecision is the decision about a Namespace. Its Request and Decision are set if it is Placed.
type NamespaceDecision struct {
	Result
	// Placed: a ClusterPlacement places it. Otherwise, policies override it where objects of it are.
	Placed bool
}

// Bound reports whether the Namespace has a binding.
func (d *NamespaceDecision) Bound() bool { return d.Placed || len(d.Shares) > 0 }

// ScheduleNamespace decides about a Namespace. used are the clusters with objects of it. b is its binding, nil if
// there is no binding.
func (snap *Snapshot) ScheduleNamespace(ns *unstructured.Unstructured, used []string, b *v1alpha1.ResourceBinding) NamespaceDecision {
	if interpret.ReservedNamespace(ns.GetName()) != "" {
		return NamespaceDecision{Result: Result{Choice: placement.PolicyChoice{Reference: v1alpha1.PolicyReference{Kind: v1alpha1.PolicyDefault}}}}
	}
	k := interpret.NamespaceKind()
	// A Namespace needs no room, no field and no type.
	plain := &Snapshot{Fleet: snap.Fleet, Policies: snap.Policies, Now: snap.Now, Namespace: snap.Namespace, Follows: snap.Follows}
	choice, own := plain.Choose(k, ns), ownPlacement(b)
	kept := plain.keepsDeleted(&choice, own)
	d := NamespaceDecision{Placed: choice.Reference.Kind == "ClusterPlacement" || kept}
	if choice.Err != nil && b == nil {
		return NamespaceDecision{Result: Result{Choice: choice}} // the policy's condition has the error
	}
	if choice.Err == nil && !d.Placed {
		d.Choice = choice
		d.Condition = metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionTrue, Reason: reasonNamespaceUsed,
			Message: "it is where objects of it are, with overrides"}
		if choice.Overrides == nil {
			return d
		}
		d.Shares = withNamespaceObjects(nil, used, snap.Fleet)
		d.Overrides = setOverrides(choice.Overrides, snap.Fleet, k, d.Shares)
		d.Shares = slices.DeleteFunc(d.Shares, func(c v1alpha1.ClusterShare) bool { return len(c.Overrides) == 0 })
		return d
	}
	d.Result = plain.Schedule(k, ns, own)
	if d.Choice.Err != nil {
		d.Placed, d.Shares = true, b.Spec.Clusters
		return d
	}
	d.Shares = withNamespaceObjects(d.Shares, used, snap.Fleet)
	if kept {
		d.keepOverrides(b)
	} else {
		d.Overrides = setOverrides(d.Choice.Policy, snap.Fleet, k, d.Shares)
	}
	return d
}

// ownPlacement returns a Namespace's binding without the clusters where it only is because of objects. It returns nil
// if there is no binding.
func ownPlacement(b *v1alpha1.ResourceBinding) *v1alpha1.ResourceBinding {
	if b == nil {
		return nil
	}
	own := *b
	own.Spec.Clusters = slices.DeleteFunc(slices.Clone(b.Spec.Clusters), func(c v1alpha1.ClusterShare) bool { return c.Reason == ReasonNamespaceObjects })
	return &own
}

// withNamespaceObjects adds the clusters that have objects of a Namespace.
func withNamespaceObjects(shares []v1alpha1.ClusterShare, used []string, fleet *placement.Fleet) []v1alpha1.ClusterShare {
	have := clustersIn(shares)
	for _, name := range used {
		if _, joined := fleet.Cluster(name); joined && !have[name] {
			shares = append(shares, v1alpha1.ClusterShare{Name: name, Reason: ReasonNamespaceObjects, Message: "objects of the namespace are in the cluster"})
		}
	}
	return shares
}

// reconcileNamespace brings the binding of a Namespace in line with the policies. b is nil if there is no binding.
func (s *scheduler) reconcileNamespace(ctx context.Context, o object, b *v1alpha1.ResourceBinding) error {
	k := interpret.NamespaceKind()
	if b != nil {
		if err := s.forgetGoneClusters(ctx, b); err != nil {
			return err
		}
	}
	ns, exists := s.Namespaces.Get(o.Name)
	switch {
	case !exists && b == nil:
		return nil
	case !exists || b != nil && b.Spec.Resource.UID != ns.GetUID():
		return s.finalize(ctx, k, b) // a new one of its name is decided when the binding is gone
	case ns.GetDeletionTimestamp() != nil:
		if b != nil && b.DeletionTimestamp != nil {
			return s.removeFinalizer(ctx, b)
		}
		return nil
	}
	obj := interpret.NamespaceObject(ns)
	d := s.snapshot().ScheduleNamespace(obj, s.namespaceClusters.of(o.Name), b)
	if !d.Bound() {
		if b == nil {
			return nil
		}
		return s.withdraw(ctx, b, nil)
	}
	if !d.Decision.Recheck.IsZero() {
		s.queue.AddAfter(o, d.Decision.Recheck.Sub(d.Request.Now))
	}
	p := bindingUpdate{shares: d.Shares, condition: d.Condition, overrides: d.Overrides, adopted: d.Choice.Adopted, lazy: d.Choice.Lazy}
	if d.Placed {
		p.setPolicy(&d.Result)
	}
	p.setFailover(&d.Result, ownPlacement(b))
	return s.write(ctx, k, obj, b, p)
}

// namespaceRef returns the object of a Namespace.
func namespaceRef(name string) object {
	return object{interpret.NamespaceKind().GroupKind(), types.NamespacedName{Name: name}}
}

// requeueNamespaces queues the Namespaces for which another policy decides than before, or others override.
func (s *scheduler) requeueNamespaces(before, after *Snapshot) {
	k := interpret.NamespaceKind()
	for _, ns := range s.Namespaces.All() {
		a, b := before.Choose(k, ns), after.Choose(k, ns)
		if !a.Equal(&b) {
			s.queue.Add(namespaceRef(ns.GetName()))
		}
	}
}

// namespaceClusters counts, by namespace, the objects that each cluster is to have. A Namespace is decided again only
// when a cluster gets its first one or loses its last one: it may have thousands of them.
type namespaceClusters struct {
	mu sync.Mutex
	by map[types.NamespacedName][]string // the clusters of bindings
	in map[string]map[string]int
}

func newNamespaceClusters() *namespaceClusters {
	return &namespaceClusters{by: map[types.NamespacedName][]string{}, in: map[string]map[string]int{}}
}

// set records the clusters of a namespaced binding, and reports whether those of its namespace changed.
func (n *namespaceClusters) set(key types.NamespacedName, clusters []string) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	in := n.in[key.Namespace]
	if in == nil {
		in = map[string]int{}
		n.in[key.Namespace] = in
	}
	was := n.by[key]
	for _, c := range clusters {
		in[c]++
		changed = changed || in[c] == 1 && !slices.Contains(was, c)
	}
	for _, c := range was {
		if in[c]--; in[c] == 0 {
			delete(in, c)
			changed = true
		}
	}
	if len(in) == 0 {
		delete(n.in, key.Namespace)
	}
	if n.by[key] = clusters; len(clusters) == 0 {
		delete(n.by, key)
	}
	return changed
}

// of returns the clusters with objects of a namespace, sorted.
func (n *namespaceClusters) of(namespace string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.in[namespace]))
}

// countNamespaces counts all bindings, before the first decision: a cluster that seems to have no objects of a
// namespace would lose its overrides.
func (s *scheduler) countNamespaces() {
	for _, b := range s.Bindings.All() {
		if b.Namespace != "" {
			s.namespaceClusters.set(b.Key(), clusterNames(b.Spec.Clusters))
		}
	}
}

// namespaceUseChanged counts a changed binding, and queues its namespace if its clusters changed.
func (s *scheduler) namespaceUseChanged(was, is *v1alpha1.ResourceBinding) {
	b, clusters := was, []string(nil)
	if is != nil {
		b, clusters = is, clusterNames(is.Spec.Clusters)
	}
	if b.Namespace != "" && s.namespaceClusters.set(b.Key(), clusters) {
		s.queue.Add(namespaceRef(b.Namespace))
	}
}
