package scheduler

import (
	"cmp"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/preemption"
)

const (
	// mostTenants bounds the objects that are considered for one preemption: those of the lowest priority.
	mostTenants = 1000
	// mostRounds bounds how often victims are chosen again because some of them would not leave.
	mostRounds = 3
)

// tenant is an object in a cluster where another one waits for room.
type tenant struct {
	object   object
	binding  *v1alpha1.ResourceBinding
	share    v1alpha1.ClusterShare
	priority int32
	// known after it was read:
	placed Placed
	facts  placement.Object
	count  int32
}

// mayPreempt reports whether objects of lower priority may make room for one that waits.
func (snap *Snapshot) mayPreempt(a *Result, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) bool {
	return a.Decision.Waits && a.Preemption == nil && a.Choice.Err == nil && snap.Tenants != nil && snap.Rooms != nil && a.Request.Room != nil &&
		!a.Choice.Policy.Suspended() && (b == nil || b.Spec.Manual == nil) && snap.Tenants.priorityOf(obj).preempts
}

// preempt chooses the objects that make room for one that waits, nil if that does not help it. Its decision is
// recorded already.
func (snap *Snapshot) preempt(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured) *v1alpha1.Preemption {
	own := snap.Tenants.priorityOf(obj).value
	next := snap.nextRequest(a)
	tenants := snap.tenantsIn(refOf(k.GroupKind(), obj), openIn(next), own)
	for range mostRounds {
		leaving, after := snap.choose(&next, a, tenants, own)
		if leaving == nil {
			return nil
		}
		p := proposal(tenants, leaving, after, own, snap.Now)
		stays := snap.staying(p, k, obj)
		if len(stays) == 0 {
			if !snap.suffices(p, next, after) {
				return nil
			}
			return p
		}
		tenants = slices.DeleteFunc(tenants, func(t *tenant) bool { return stays[t.object] })
	}
	return nil
}

// nextRequest returns the request for the decision after this one.
func (snap *Snapshot) nextRequest(a *Result) placement.Request {
	next := a.Request
	next.Previous, next.Inputs, next.Pending = a.Decision.Shares(), a.Decision.Inputs, nil
	next.Settled = settledTotal(&next, a.Autoscaler, &v1alpha1.ResourceBinding{Spec: v1alpha1.ResourceBindingSpec{ScaledBy: a.scaledBy()}})
	snap.findRoom(&next, a.Together)
	return next
}

// openIn returns the clusters that would take more of an object if they had room.
func openIn(r placement.Request) (out []string) {
	_, verdicts := placement.Explain(r)
	for _, v := range verdicts {
		if v.Reason == placement.ReasonFull || v.Chosen && v.Counted && v.Reason == placement.ReasonChosen {
			out = append(out, v.Cluster)
		}
	}
	return out
}

// placedBy returns how much of an object a decision places.
func placedBy(d *placement.Decision) (n int64) {
	if d.Mode != v1alpha1.ModeDivided {
		return int64(len(d.Chosen))
	}
	for _, v := range d.Chosen {
		n += int64(v.Replicas)
	}
	return n
}

// choose returns how many replicas of each tenant leave, and the decision after that; nil if that places no more of the
// object. If not all of it finds room, as much as possible does.
func (snap *Snapshot) choose(next *placement.Request, a *Result, tenants []*tenant, own int32) ([]int32, *placement.Decision) {
	room := next.Room
	decide := func(leaving []int32) *placement.Decision {
		var out []placement.Leaving
		for i, n := range leaving {
			if n > 0 {
				out = append(out, placement.Leaving{Cluster: tenants[i].share.Name, Object: &tenants[i].facts, Share: tenants[i].part(n)})
			}
		}
		r := *next
		r.Room = snap.Rooms.After(room, out)
		d := placement.Decide(r)
		return &d
	}
	candidates, all := make([]preemption.Candidate, len(tenants)), make([]int32, len(tenants))
	for i, t := range tenants {
		all[i] = t.count
		candidates[i] = preemption.Candidate{Key: t.facts.Key, Cluster: t.share.Name, Priority: t.priority, Since: t.binding.CreationTimestamp.Time,
			Replicas: t.count, Whole: t.share.Replicas == nil, Spare: math.MaxInt32}
	}
	goal := placedBy(decide(all))
	if goal <= placedBy(&a.Decision) {
		return nil, nil
	}
	snap.spare(tenants, candidates)
	leaving := preemption.Choose(own, candidates, func(leaving []int32) bool { return placedBy(decide(leaving)) >= goal })
	if leaving == nil {
		return nil, nil
	}
	return leaving, decide(leaving)
}

// part returns so many replicas of a tenant, or the whole.
func (t *tenant) part(n int32) placement.Share {
	return placement.Share{Cluster: t.share.Name, Replicas: n, Whole: t.share.Replicas == nil}
}

func proposal(tenants []*tenant, leaving []int32, after *placement.Decision, own int32, now time.Time) *v1alpha1.Preemption {
	p := &v1alpha1.Preemption{Priority: own, Time: metav1.NewTime(now.Truncate(time.Second))}
	for i, n := range leaving {
		if n == 0 {
			continue
		}
		t := tenants[i]
		v := v1alpha1.PreemptionVictim{Kind: t.object.GroupKind.String(), Namespace: t.object.Namespace, Name: t.object.Name, Cluster: t.share.Name}
		if t.share.Replicas != nil {
			v.Replicas, v.Left = &n, t.count-n
		}
		p.Victims = append(p.Victims, v)
	}
	for _, v := range after.Chosen {
		if !slices.ContainsFunc(p.Victims, func(o v1alpha1.PreemptionVictim) bool { return o.Cluster == v.Cluster }) {
			continue
		}
		c := v1alpha1.PreemptedCluster{Name: v.Cluster}
		if v.Counted {
			c.Replicas = &v.Replicas
		}
		p.Clusters = append(p.Clusters, c)
	}
	return p
}

// staying returns the victims that would not leave, whatever the reason: their own decisions show it.
func (snap *Snapshot) staying(p *v1alpha1.Preemption, k interpret.KindInfo, obj *unstructured.Unstructured) map[object]bool {
	trial := *snap
	trial.Pending = nil
	trial.proposed = &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: obj.GetNamespace()},
		Spec: v1alpha1.ResourceBindingSpec{Resource: v1alpha1.ObjectReference{Kind: k.GroupVersionKind.Kind, Name: obj.GetName()}, Preemption: p}}
	stays := map[object]bool{}
	for i := range p.Victims {
		v := &p.Victims[i]
		o := victimOf(v)
		placed, exists := snap.Tenants.placed(o)
		if !exists {
			stays[o] = true
			continue
		}
		a := trial.Schedule(placed.Kind, placed.Object, snap.Tenants.bindingOf(o))
		at := slices.IndexFunc(a.Shares, func(s v1alpha1.ClusterShare) bool { return s.Name == v.Cluster })
		if at >= 0 && (a.Shares[at].Replicas == nil || *a.Shares[at].Replicas > v.Left) {
			stays[o] = true
		}
	}
	return stays
}

// suffices reports whether an object is placed as it was to be, in the room that a preemption promises.
func (snap *Snapshot) suffices(p *v1alpha1.Preemption, next placement.Request, after *placement.Decision) bool {
	for _, more := range moreIn(p, &next.Object, next.Previous) {
		next.Room = next.Room.Admit(next.Fleet, more.Cluster, times(&next.Object, more))
	}
	d := placement.Decide(next)
	return placedBy(&d) >= placedBy(after)
}

// tenantsIn returns the objects that may leave some clusters for one with a priority, at most mostTenants of the lowest
// priorities.
func (snap *Snapshot) tenantsIn(self object, clusters []string, own int32) []*tenant {
	var all []*tenant
	for _, cluster := range clusters {
		for _, b := range snap.Tenants.boundTo(cluster) {
			share, has := b.DecidedShare(cluster)
			o := boundBy(b)
			if !has || o == self || len(b.Spec.RequiredBy) > 0 || b.DeletionTimestamp != nil || b.Spec.Suspend || b.Spec.Manual != nil || share.Replicas != nil && *share.Replicas == 0 {
				continue
			}
			if last := snap.Tenants.lastPriorityOf(o); last < own {
				all = append(all, &tenant{object: o, binding: b, share: share, priority: last})
			}
		}
	}
	slices.SortFunc(all, func(a, b *tenant) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), b.binding.CreationTimestamp.Compare(a.binding.CreationTimestamp.Time),
			cmp.Compare(KeyOf(a.object.GroupKind, a.object.Namespace, a.object.Name), KeyOf(b.object.GroupKind, b.object.Namespace, b.object.Name)), cmp.Compare(a.share.Name, b.share.Name))
	})
	all = all[:min(len(all), mostTenants)]
	return slices.DeleteFunc(all, func(t *tenant) bool { return !snap.mayLeave(t, own) })
}

// mayLeave reads a tenant and reports whether it may leave its cluster for an object with a priority. Objects stay
// that have state there, or would repeat their work elsewhere, or that decisions do not move.
func (snap *Snapshot) mayLeave(t *tenant, own int32) bool {
	p, exists := snap.Tenants.placed(t.object)
	if !exists || !p.Kind.Placed || p.Object.GetUID() != t.binding.Spec.Resource.UID || p.Object.GetDeletionTimestamp() != nil || p.Kind.Finished(p.Object) || !snap.movesPods(p.Kind, p.Object) || !mayRepeat(t.object.GroupKind, p.Object, t.share.Replicas != nil) {
		return false
	}
	if t.priority = snap.Tenants.priorityOf(p.Object).value; t.priority >= own {
		return false
	}
	choice := snap.Choose(p.Kind, p.Object)
	if choice.Err != nil || choice.Policy.Suspended() || snap.keepsDeleted(&choice, t.binding) {
		return false
	}
	if t.share.Replicas == nil && snap.Groups != nil && len(snap.Groups.GroupOf(t.object).Members) > 1 {
		return false // its group is in one cluster
	}
	t.placed, t.facts = p, objectOf(p.Kind, p.Object)
	if len(t.facts.Pods) == 0 {
		return false
	}
	bounds := placement.Request{Object: t.facts}
	snap.makeRoom(&bounds, t.object, p.Object)
	bound, bounded := bounds.Preempted[t.share.Name]
	if t.count = times(&t.facts, placement.Share{Whole: true}); t.share.Replicas != nil {
		t.count = *t.share.Replicas
	}
	if bounded {
		t.count = min(t.count, bound.Left)
	}
	return t.count > 0
}

// mayRepeat reports whether an object loses no finished work when it starts again in another cluster.
func mayRepeat(gk schema.GroupKind, obj *unstructured.Unstructured, divided bool) bool {
	switch gk {
	case schema.GroupKind{Kind: "Pod"}:
		return false
	case schema.GroupKind{Group: "batch", Kind: "Job"}:
		succeeded, _, _ := unstructured.NestedInt64(obj.Object, "status", "succeeded")
		return !divided && succeeded == 0
	}
	return true
}

// spare sets how many replicas may leave by the PodDisruptionBudgets of the control plane, whose status has the sum of
// all clusters.
func (snap *Snapshot) spare(tenants []*tenant, candidates []preemption.Candidate) {
	budgets := map[string][]*unstructured.Unstructured{}
	for i, t := range tenants {
		in, read := budgets[t.object.Namespace]
		if !read {
			in = snap.Tenants.budgets(t.object.Namespace)
			budgets[t.object.Namespace] = in
		}
		if len(in) == 0 {
			continue
		}
		pods := labels.Set(t.placed.Kind.PodLabels(t.placed.Object))
		for _, budget := range in {
			if !selectsPods(budget, pods) {
				continue
			}
			allowed, _, _ := unstructured.NestedInt64(budget.Object, "status", "disruptionsAllowed")
			candidates[i].Spare = min(candidates[i].Spare, int32(min(max(allowed, 0), math.MaxInt32)))
		}
	}
}

func selectsPods(budget *unstructured.Unstructured, pods labels.Set) bool {
	m, has, _ := unstructured.NestedMap(budget.Object, "spec", "selector")
	if !has || pods == nil {
		return false
	}
	var terms metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, &terms); err != nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(&terms)
	return err == nil && selector.Matches(pods)
}
