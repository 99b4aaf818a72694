package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// progress is the desired status of a policy, apart from the condition Accepted.
type progress struct {
	active    *v1alpha1.PolicyContent
	later     []v1alpha1.PolicyContent
	step      *v1alpha1.PolicyStep
	condition *metav1.Condition // nil if edits take effect at once
	release   []object          // the objects of a new step
	next      time.Duration     // when to look again, 0 if only after an event
}

// waits reports whether not all objects follow the policy's spec.
func (t *progress) waits() bool {
	return t.condition != nil && t.condition.Status != metav1.ConditionTrue
}

// advance returns the next status of a policy. All that decisions depend on takes effect only when it is written.
func (s *scheduler) advance(p *placement.Subject, invalid error) progress {
	if p.IsSettled() {
		s.edits.forget(p.Meta.UID)
		return settled(p)
	}
	t := progress{active: p.Status.Active, later: p.Status.Later, step: p.Status.Step}
	version := versionOf(p)
	e := s.edits.of[p.Meta.UID]
	fresh := e == nil || e.generation != version.Generation
	if fresh {
		e = &edit{generation: version.Generation, waiting: s.changedBy(p, invalid)}
		s.edits.of[p.Meta.UID] = e
	}
	contents, mode := p.InEffect()
	if e.waiting = slices.DeleteFunc(e.waiting, func(o object) bool { return s.hasAdopted(o, version) }); len(e.waiting) == 0 && !fresh && mode != v1alpha1.ChangeOnApproval {
		e.waiting = s.changedBy(p, invalid) // others may have changed meanwhile
	}
	v := judgeEdit(p, len(e.waiting), invalid)
	if was := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementActive); v.atOnce && was != nil && was.ObservedGeneration == version.Generation &&
		was.Reason == v1alpha1.ReasonAwaitsApproval && mode == v1alpha1.ChangeOnApproval {
		// It waited already, when it would have changed more.
		return t.pending(v1alpha1.ReasonAwaitsApproval, was.Message)
	}
	if v.atOnce {
		return settled(p)
	}
	e.spreads = v.starts
	if newest := contents[len(contents)-1]; v.starts && newest.Generation != version.Generation {
		t.later = slices.DeleteFunc(slices.Clone(t.later), func(c v1alpha1.PolicyContent) bool { return !s.isFollowed(p.Meta.UID, c.Generation) })
		if len(t.later) >= v1alpha1.MaxLaterContents {
			return t.pending(v1alpha1.ReasonTooManyContents, fmt.Sprintf("objects follow %d earlier contents of the policy, so generation %d waits until some of them change. "+
				"To put it into effect for all objects, run `%s`", len(t.later)+1, version.Generation, approveCommand(p)))
		}
		content, err := placement.Record(version.Generation, &p.Spec)
		if err != nil {
			return t.pending(v1alpha1.ReasonEditInvalid, err.Error())
		}
		// The condition follows when the content is in effect, with the event of this write.
		t.later, t.step, t.condition = append(t.later, content), nil, meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementActive)
		return t
	}
	if mode == v1alpha1.ChangeStaged && v.starts {
		s.advanceStep(p, &t, &v, e, contents[0].Spec.Changes)
	}
	return t.pending(v.reason, v.message)
}

// settled returns the status of a policy whose spec all objects follow.
func settled(p *placement.Subject) progress {
	if p.Spec.Changes.Mode() == v1alpha1.ChangeImmediate {
		return progress{}
	}
	content, err := placement.Record(p.Meta.Generation, &p.Spec)
	if err != nil {
		return progress{}
	}
	return progress{active: &content, condition: &metav1.Condition{Type: v1alpha1.PlacementActive, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonPolicyActive, Message: fmt.Sprintf("generation %d is in effect", p.Meta.Generation)}}
}

// pending returns the progress with the condition that the edit is not in effect for all objects.
func (t progress) pending(reason, message string) progress {
	t.condition = &metav1.Condition{Type: v1alpha1.PlacementActive, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	return t
}

func versionOf(p *placement.Subject) v1alpha1.PolicyVersion {
	return v1alpha1.PolicyVersion{Kind: p.Kind, Name: p.Meta.Name, UID: p.Meta.UID, Generation: p.Meta.Generation}
}

// hasAdopted reports whether an object follows a version already, or does not exist any more.
func (s *scheduler) hasAdopted(o object, v v1alpha1.PolicyVersion) bool {
	b, bound := s.Bindings.Get(o.binding())
	return !s.exists(o) || bound && slices.Contains(b.Spec.Adopted, v) || slices.Contains(s.edits.releasedFor(o), v)
}

// exists reports whether an object exists in the control plane.
func (s *scheduler) exists(o object) (exists bool) {
	if interpret.IsNamespace(o.GroupKind) {
		_, exists = s.Namespaces.Get(o.Name)
	} else {
		_, exists = s.Objects.Metadata(o.GroupKind, o.NamespacedName)
	}
	return exists
}

// isFollowed reports whether an object follows a later content of a policy.
func (s *scheduler) isFollowed(policy types.UID, generation int64) bool {
	return slices.ContainsFunc(s.Bindings.All(), func(b *v1alpha1.ResourceBinding) bool {
		return slices.ContainsFunc(b.Spec.Adopted, func(v v1alpha1.PolicyVersion) bool { return v.UID == policy && v.Generation == generation })
	})
}

// advanceStep begins the next step if the objects of all steps so far are Healthy. Otherwise the message says which
// are not.
func (s *scheduler) advanceStep(p *placement.Subject, t *progress, v *verdict, e *edit, changes *v1alpha1.PolicyChanges) {
	version := versionOf(p)
	number, left := int32(0), time.Duration(0)
	if t.step != nil && t.step.Generation == version.Generation {
		number, left = t.step.Number, changes.StepInterval()-s.Clock.Since(t.step.StartTime.Time)
	}
	followed, unhealthy := s.followers(version)
	if number > 0 {
		v.message = fmt.Sprintf("step %d: %s generation %d, and %s", number, countFollowing(followed), version.Generation, v.message)
	}
	switch {
	case left > 0:
		t.next = left
	case len(unhealthy) > 0:
		v.reason, v.message = v1alpha1.ReasonStepUnhealthy, fmt.Sprintf("the next step waits until these are Healthy: %s. %s", names.List(unhealthy), v.message)
	default:
		t.release = slices.Clone(e.waiting[:min(changes.StepSize(), len(e.waiting))])
		t.step = &v1alpha1.PolicyStep{Generation: version.Generation, Number: number + 1, StartTime: metav1.NewTime(s.Clock.Now())}
		t.next = max(changes.StepInterval(), time.Second)
	}
}

// followers returns how many objects follow a version, and which of them are not Healthy with it.
func (s *scheduler) followers(v v1alpha1.PolicyVersion) (n int, unhealthy []string) {
	seen := map[object]bool{}
	for _, b := range s.Bindings.All() {
		if !slices.Contains(b.Spec.Adopted, v) {
			continue
		}
		n++
		seen[boundBy(b)] = true
		if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingHealthy); c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration < b.Generation {
			unhealthy = append(unhealthy, describeObject(boundBy(b)))
		}
	}
	for _, o := range s.edits.releasedBy(v) {
		if s.exists(o) && !seen[o] {
			n++
			unhealthy = append(unhealthy, describeObject(o))
		}
	}
	slices.Sort(unhealthy)
	return n, unhealthy
}

func describeObject(o object) string {
	return o.Kind + " " + strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")
}

// changedBy returns the objects that a policy's spec changes, compared with the contents in effect.
func (s *scheduler) changedBy(p *placement.Subject, invalid error) []object {
	if invalid != nil {
		return nil
	}
	before, after := s.snapshot(), s.snapshot()
	after.Policies = s.approvedPolicies(p, before.Policies)
	for _, snap := range []*Snapshot{before, after} {
		snap.Allocations, snap.Rooms, snap.Pending = placement.NewAllocations(), placement.NewRooms(), nil
		for _, c := range s.Clusters.All() {
			f := placement.FromCluster(c, s.Started)
			snap.Rooms.Report(c.Name, f.Nodes, s.Clock.Now())
			snap.Rooms.ReportQuotas(c.Name, f.Quotas)
		}
		s.allocate(snap.Allocations, snap.Rooms)
	}
	var candidates []candidate
	for _, k := range s.Kinds.All() {
		for obj := range s.Objects.AllMetadata(k.GroupKind(), "") {
			o := refOf(k.GroupKind(), obj)
			if b, bound := s.Bindings.Get(o.binding()); obj.GetDeletionTimestamp() == nil && (bound || k.Placed) {
				candidates = append(candidates, candidate{kind: k, meta: obj, binding: b, object: func() (*unstructured.Unstructured, bool) {
					obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
					return obj, exists && (bound || !s.staysHome(k, obj) && !s.isHomeless(k, obj, nil))
				}})
			}
		}
	}
	for _, ns := range s.Namespaces.All() {
		if b, _ := s.Bindings.Get(namespaceRef(ns.GetName()).binding()); ns.GetDeletionTimestamp() == nil {
			candidates = append(candidates, candidate{kind: interpret.NamespaceKind(), meta: ns, binding: b, used: s.namespaceClusters.of(ns.GetName())})
		}
	}
	return changing(before, after, candidates)
}

// approvedPolicies returns the policies as if the spec of one were in effect for all objects.
func (s *scheduler) approvedPolicies(p *placement.Subject, known *placement.Policies) *placement.Policies {
	return placement.NewPolicies(approvedIn(p, s.Policies.Placements.All()), approvedClusterIn(p, s.Policies.ClusterPlacements.All()), known)
}

// approvedIn returns the Placements with the one of p approved, if it is one.
func approvedIn(p *placement.Subject, all []*v1alpha1.Placement) []*v1alpha1.Placement {
	out := slices.Clone(all)
	for i, q := range out {
		if p.Kind == "Placement" && q.Name == p.Meta.Name && q.Namespace == p.Meta.Namespace {
			out[i] = &v1alpha1.Placement{TypeMeta: q.TypeMeta, ObjectMeta: *p.Approved().Meta, Spec: p.Spec.PlacementSpec, Status: q.Status}
		}
	}
	return out
}

// approvedClusterIn is approvedIn for ClusterPlacements.
func approvedClusterIn(p *placement.Subject, all []*v1alpha1.ClusterPlacement) []*v1alpha1.ClusterPlacement {
	out := slices.Clone(all)
	for i, q := range out {
		if p.Kind == "ClusterPlacement" && q.Name == p.Meta.Name {
			out[i] = &v1alpha1.ClusterPlacement{TypeMeta: q.TypeMeta, ObjectMeta: *p.Approved().Meta, Spec: p.Spec, Status: q.Status}
		}
	}
	return out
}
