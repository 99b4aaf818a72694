package scheduler

import (
	"fmt"
	"iter"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// World is what decisions are made from, besides the objects that they are about.
// The scheduler keeps one from its caches; a preview makes one from what it has
// listed, changes it, and gets the answers that the scheduler would give.
type World struct {
	Fleet    *placement.Fleet
	Policies *placement.Policies
	// Ledger is nil where bounds and room are not to be looked at.
	Ledger *placement.Ledger
	Now    time.Time
	// Namespace gives the labels of a namespace.
	Namespace func(name string) map[string]string
	// Obstacles gives what keeps an object from clusters, apart from policies. b is its
	// binding, nil if it has none.
	Obstacles func(k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]placement.Obstacle
	// Autoscaler gives what sets the replica counts of an object in its clusters, nil if
	// nothing does.
	Autoscaler func(k interpret.Kind, obj *unstructured.Unstructured) *unstructured.Unstructured
	// Peers gives the placed objects of a namespace, and where they are.
	Peers func(namespace string) iter.Seq[Peer]
}

// Peer is a placed object, as far as others want to be near it or not.
type Peer struct {
	Key      string
	Labels   map[string]string
	Clusters []string
}

// Answer is all that is decided about one object.
type Answer struct {
	Choice   placement.Choice
	Request  placement.Request
	Decision placement.Decision
	// What the binding says of it:
	Shares    []v1alpha1.ClusterShare
	Overrides []v1alpha1.Override
	Condition metav1.Condition
}

// ReasonPolicyInvalid: the policy that should decide cannot be followed. All stays
// as it is until it can.
const ReasonPolicyInvalid = "PolicyInvalid"

// KeyOf names an object among all.
func KeyOf(gk schema.GroupKind, namespace, name string) string {
	return gk.String() + "/" + namespace + "/" + name
}

// Choose finds the policy that decides about an object.
func (w *World) Choose(k interpret.Kind, obj metav1.Object) placement.Choice {
	return w.Policies.For(w.target(k, obj))
}

func (w *World) target(k interpret.Kind, obj metav1.Object) placement.Target {
	t := placement.Target{GroupKind: k.GroupKind(), Namespace: obj.GetNamespace(), Name: obj.GetName(), Labels: obj.GetLabels()}
	if t.Namespace != "" && w.Namespace != nil {
		t.NamespaceLabels = w.Namespace(t.Namespace)
	}
	return t
}

// Passed gives the policies that select an object and do not decide about it.
func (w *World) Passed(k interpret.Kind, obj metav1.Object) []placement.Passed {
	return w.Policies.PassedBy(w.target(k, obj))
}

// Answer decides about an object. b is its binding, nil if it has none.
func (w *World) Answer(k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) Answer {
	a := Answer{Choice: w.Choose(k, obj)}
	if a.Choice.Err != nil {
		a.Condition = metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionFalse, Reason: ReasonPolicyInvalid,
			Message: fmt.Sprintf("%s %s cannot be followed, so everything stays as it is: %v", a.Choice.Reference.Kind, a.Choice.Reference.Name, a.Choice.Err)}
		if b != nil {
			a.Shares, a.Overrides = b.Spec.Clusters, b.Spec.Overrides
		}
		return a
	}
	a.Request = w.request(k, obj, b, a.Choice.Policy)
	a.Decision = placement.Decide(a.Request)
	a.Shares = shares(a.Decision)
	if numbered(k) && a.Decision.Mode == v1alpha1.ModeDivided {
		number(a.Shares, b)
	}
	a.override(k)
	a.Condition = metav1.Condition{Type: v1alpha1.BindingScheduled, Status: status(a.Decision.Scheduled),
		Reason: a.Decision.Reason, Message: a.Decision.Message + a.ignored(k, obj) + a.kept()}
	return a
}

// request puts together what placement goes by.
func (w *World) request(k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, policy *placement.Policy) placement.Request {
	r := placement.Request{Object: objectOf(k, obj), Fleet: w.Fleet, Policy: policy, Ledger: w.Ledger, Now: w.Now, Previous: previous(b)}
	if w.Autoscaler != nil {
		r.Object.Replicas = scaled(r.Object.Replicas, w.Autoscaler(k, obj))
	}
	if w.Obstacles != nil {
		r.Obstacles = w.Obstacles(k, obj, b)
	}
	if near, apart := policy.Terms(); len(near)+len(apart) > 0 && w.Peers != nil {
		r.Near, r.Apart = w.neighbours(r.Object.Key, obj, near), w.neighbours(r.Object.Key, obj, apart)
	}
	return r
}

func objectOf(k interpret.Kind, obj *unstructured.Unstructured) placement.Object {
	o := placement.Object{Key: KeyOf(k.GroupKind(), obj.GetNamespace(), obj.GetName()), Group: k.Group, Kind: k.GroupVersionKind.Kind,
		Mode: v1alpha1.PlacementMode(k.DefaultMode), Single: k.Single, Finished: k.Finished(obj)}
	o.Replicas, o.Divisible = k.Replicas(obj)
	o.Divisible = o.Divisible && k.Allows(obj, interpret.Divided) == ""
	if pod := podSpec(obj.Object); pod != nil {
		o.Needs = placement.PodNeeds(pod)
	}
	return o
}

// scaled brings a replica count within what an autoscaler keeps to in all clusters
// together: its bounds follow the shares, which so begin with what it would come to.
// Without replicas an autoscaler rests.
func scaled(replicas int32, autoscaler *unstructured.Unstructured) int32 {
	if autoscaler == nil || replicas == 0 {
		return replicas
	}
	least, most := interpret.ScaleBounds(autoscaler)
	return min(max(replicas, least), most)
}

// podSpec finds the spec of the pods that an object makes, or is.
func podSpec(obj map[string]any) map[string]any {
	for _, path := range [][]string{{"spec", "template", "spec"}, {"spec", "jobTemplate", "spec", "template", "spec"}, {"spec"}} {
		spec, found, err := unstructured.NestedFieldNoCopy(obj, path...)
		if m, ok := spec.(map[string]any); ok && found && err == nil {
			if _, has := m["containers"].([]any); has {
				return m
			}
		}
	}
	return nil
}

func previous(b *v1alpha1.ResourceBinding) []placement.Share {
	if b == nil {
		return nil
	}
	out := make([]placement.Share, 0, len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		share := placement.Share{Cluster: c.Name, Whole: c.Replicas == nil}
		if c.Replicas != nil {
			share.Replicas = *c.Replicas
		}
		out = append(out, share)
	}
	return out
}

func (w *World) neighbours(self string, obj metav1.Object, terms []labels.Selector) []placement.Neighbours {
	out := make([]placement.Neighbours, len(terms))
	for i, t := range terms {
		out[i].Self = t.Matches(labels.Set(obj.GetLabels()))
	}
	for p := range w.Peers(obj.GetNamespace()) {
		if p.Key == self {
			continue
		}
		for i, t := range terms {
			if t.Matches(labels.Set(p.Labels)) {
				out[i].Clusters = append(out[i].Clusters, p.Clusters...)
			}
		}
	}
	return out
}

func shares(d placement.Decision) []v1alpha1.ClusterShare {
	var out []v1alpha1.ClusterShare
	for _, v := range d.Chosen {
		share := v1alpha1.ClusterShare{Name: v.Cluster, Reason: v.Reason, Message: v.Message}
		if v.Counted {
			share.Replicas = &v.Replicas
		}
		out = append(out, share)
	}
	return out
}

// numbered kinds give their replicas identities that count on from one another.
func numbered(k interpret.Kind) bool {
	return k.GroupKind() == schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
}

// number gives each share a range of ordinals.
func number(shares []v1alpha1.ClusterShare, b *v1alpha1.ResourceBinding) {
	var before []placement.Range
	if b != nil {
		for _, c := range b.Spec.Clusters {
			if c.Replicas == nil {
				continue
			}
			r := placement.Range{Cluster: c.Name, Count: *c.Replicas}
			if c.OrdinalStart != nil {
				r.Start = *c.OrdinalStart
			}
			before = append(before, r)
		}
	}
	now := make([]placement.Share, len(shares))
	for i, c := range shares {
		now[i] = placement.Share{Cluster: c.Name}
		if c.Replicas != nil {
			now[i].Replicas = *c.Replicas
		}
	}
	for i, r := range placement.Ordinals(now, before) {
		shares[i].OrdinalStart = &r.Start
	}
}

// override enters into the shares what of the object differs in each cluster.
func (a *Answer) override(k interpret.Kind) {
	names := make([]string, len(a.Shares))
	for i := range a.Shares {
		names[i] = a.Shares[i].Name
	}
	var where map[string][]int32
	a.Overrides, where = a.Choice.Policy.Overrides(a.Request.Fleet, k.Group, k.GroupVersionKind.Kind, names)
	for i := range a.Shares {
		a.Shares[i].Overrides = where[a.Shares[i].Name]
	}
}

// ignored says what of a policy does not suit the kind.
func (a *Answer) ignored(k interpret.Kind, obj *unstructured.Unstructured) string {
	wanted := a.Choice.Policy.Mode()
	if wanted == "" || wanted == a.Decision.Mode {
		return ""
	}
	return fmt.Sprintf("; not in mode %s: %s", wanted, k.Allows(obj, interpret.Mode(wanted)))
}

// enter writes an answer into the books, so that the next decision knows of it.
func (w *World) enter(a *Answer) {
	if w.Ledger != nil && a.Choice.Err == nil {
		w.Ledger.Enter(a.Request.Object, a.Decision.Shares())
	}
}

// contended tells whether decisions have to be made one after another, since each
// takes something that the next can then not have, or wants to be where the other
// is not.
func (w *World) contended(c placement.Choice) bool {
	if c.Policy == nil {
		return false
	}
	near, apart := c.Policy.Terms()
	return len(near)+len(apart) > 0 || c.Policy.ByCapacity() || w.Fleet.Limited()
}

// peersOf gives the peers among bindings.
func peersOf(bindings []*v1alpha1.ResourceBinding, labelsOf func(*v1alpha1.ResourceBinding) map[string]string) iter.Seq[Peer] {
	return func(yield func(Peer) bool) {
		for _, b := range bindings {
			if len(b.Spec.RequiredBy) > 0 || len(b.Spec.Clusters) == 0 {
				continue
			}
			gk := b.Spec.Resource.GroupVersionKind().GroupKind()
			p := Peer{Key: KeyOf(gk, b.Namespace, b.Spec.Resource.Name), Labels: labelsOf(b)}
			for _, c := range b.Spec.Clusters {
				p.Clusters = append(p.Clusters, c.Name)
			}
			slices.Sort(p.Clusters)
			if !yield(p) {
				return
			}
		}
	}
}
