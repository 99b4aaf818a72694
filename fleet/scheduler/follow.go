package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Reasons for the placement of followers.
const (
	// ReasonRequired means that an object in the cluster needs it.
	ReasonRequired = "Required"
	// ReasonKeptData means that no object in the cluster needs it now, but it holds data.
	ReasonKeptData = "KeptBecauseOfData"
	// ReasonConfiguration means that the cluster runs a workload of its namespace.
	ReasonConfiguration = "WorkloadsOfNamespace"
	// ReasonObjects means that an object of the type would be in the cluster, if it served the type.
	ReasonObjects = "ObjectsOfType"
	// ReasonKeptPending means that the placement of its users is not decided yet, or not known.
	ReasonKeptPending = "KeptWhileUndecided"
)

// incompleteRetry is when to check an object again that is kept because not all objects are in
// the caches.
const incompleteRetry = 5 * time.Second

// follow places an object where its users are; for a cluster-scoped object these are the users
// in all namespaces. A label of its own that names a cluster counts as a user there.
func (s *scheduler) follow(ctx context.Context, k interpret.KindInfo, o object, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) error {
	users, undecided := s.usersOf(o)
	if !s.Kinds.DependenciesComplete() {
		undecided = true
		if b != nil {
			s.queue.AddAfter(o, incompleteRetry)
		}
	}
	if b != nil && s.unknown.hold(o) {
		undecided = true
	}
	p := bindingUpdate{requiredBy: requirers(o, users), condition: metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionTrue,
		Reason: ReasonRequired, Message: "follows its users"}}
	own := s.ownShares(k, obj, b, &p)
	var beside []string
	if s.goesWithNamespace(k, obj) && !s.mayBeCredentials(o, obj, b != nil) {
		var pending bool
		if beside, pending = s.use.clusters(o.Namespace); pending && b != nil {
			undecided = true
			s.queue.AddAfter(o, incompleteRetry)
		}
	}
	own = s.withWaitingObjects(own, k, o.Name)
	wanted := len(users) > 0 || len(own) > 0 || len(beside) > 0
	if !wanted && b == nil {
		return nil // not needed in any cluster
	}
	if !wanted && !undecided && (!k.KeepsData || s.isForgottenType(o, b)) {
		requested := s.requestedRemovals(b, nil)
		s.departed.record(o, requested, s.Clock.Now())
		return s.withdraw(ctx, b, requested)
	}
	s.departed.forget(o)
	shares := withConfiguration(s.withUsers(own, users), o.Namespace, beside, len(users) > 0)
	if len(beside) > 0 {
		p.requiredBy = append(p.requiredBy, namespaceRequirer(o.Namespace))
	}
	if len(shares) == 0 && b == nil {
		return nil // its users wait for a cluster, as their bindings report
	}
	if s.hasUnscaledTarget(o, users) {
		return nil // the target's next decision triggers another reconcile
	}
	p.shares = s.followWithinBounds(k, obj, b, s.withoutGaps(k, obj, b, shares, &p.condition), &p.condition)
	transfer, user := s.transferOf(o, users)
	switch {
	case transfer != nil:
		p.shares = s.goesAlong(b, p.shares, transfer, user)
	case isOneVolume(k, obj):
		p.shares = s.oneVolume(b, p.shares, users, &p.condition)
	}
	if boundsReplicas(o.GroupKind) {
		p.shares = withReplicas(p.shares, s.sharesOf(users))
		p.wantedReplicas = s.wantedOf(users)
	}
	if b != nil && transfer == nil && (k.KeepsData || undecided) {
		p.shares = s.withKept(p.shares, b, k.KeepsData)
	}
	if b != nil && undecided && len(users) == 0 {
		p.requiredBy = b.Spec.RequiredBy // the previous users; why they are gone matters
	}
	p.requested = s.withRequestsOfUsers(withReplaced(s.requestedRemovals(b, p.shares), b, p.shares, p.left), users)
	s.overrideFollower(k, obj, &p)
	return s.write(ctx, k, obj, b, p)
}

// overrideFollower sets the overrides of policies that have nothing else. A policy that also decides where objects
// run overrides only those followers that it decides about.
func (s *scheduler) overrideFollower(k interpret.KindInfo, obj *unstructured.Unstructured, p *bindingUpdate) {
	snap := s.snapshot()
	choice := snap.Choose(k, obj)
	p.adopted, p.lazy = choice.Adopted, choice.Lazy
	policy := choice.Overrides
	if choice.Explicit {
		policy = choice.Policy
	}
	if policy == nil || choice.Overrides == nil {
		return
	}
	p.shares = slices.Clone(p.shares)
	p.overrides = setOverrides(policy, snap.Fleet, k, p.shares)
}

// ownShares returns the clusters of a follower that a label of its own, or a policy that names
// it or its kind, requests.
func (s *scheduler) ownShares(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, p *bindingUpdate) []v1alpha1.ClusterShare {
	choice := s.snapshot().Choose(k, obj)
	if !choice.Explicit {
		return nil
	}
	var own *v1alpha1.ResourceBinding
	if b != nil {
		// Clusters where others need it were not requested for itself.
		own = b.DeepCopy()
		own.Spec.Clusters = slices.DeleteFunc(own.Spec.Clusters, func(c v1alpha1.ClusterShare) bool {
			return c.Reason == ReasonRequired || c.Reason == ReasonConfiguration
		})
	}
	a := s.schedule(k, obj, own)
	p.setPolicy(&a)
	p.setFailover(&a, own)
	if !a.Decision.Recheck.IsZero() {
		s.queue.AddAfter(refOf(k.GroupKind(), obj), a.Decision.Recheck.Sub(a.Request.Now))
	}
	if a.Condition.Status != metav1.ConditionTrue {
		p.condition = a.Condition
	}
	return a.Shares
}

// withWaitingObjects adds, for a type, the clusters that its objects would go to if all clusters served it.
// An object that no cluster can take because none serves its type would wait forever otherwise. Only
// objects with a policy for them, or a label, count: an operator that runs against Atoll works on its
// objects there, and they and their type have no business in members. Objects that are in clusters add
// nothing: a cluster that serves the type may have it from elsewhere.
func (s *scheduler) withWaitingObjects(shares []v1alpha1.ClusterShare, k interpret.KindInfo, definition string) []v1alpha1.ClusterShare {
	if k.GroupKind() != crdKind() {
		return shares
	}
	all := s.Kinds.All()
	at := slices.IndexFunc(all, func(k interpret.KindInfo) bool { return definitionOf(k).Name == definition })
	if at < 0 || fleet.Native(all[at].GroupKind()) {
		return shares
	}
	of := all[at]
	snap := s.snapshot()
	snap.Obstacles, snap.Allocations = nil, nil
	have, looked := clustersIn(shares), 0
	for meta := range s.Objects.AllMetadata(of.GroupKind(), "") {
		o := refOf(of.GroupKind(), meta)
		b, bound := s.Bindings.Get(o.binding())
		obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
		if !bound || len(b.Spec.Clusters) > 0 || b.DeletionTimestamp != nil || !exists || !snap.Choose(of, obj).Explicit {
			continue
		}
		if looked++; looked > maxWaitingObjects {
			break // the others are looked at when these have clusters
		}
		for _, share := range snap.Schedule(of, obj, nil).Shares {
			if !have[share.Name] {
				have[share.Name] = true
				shares = append(shares, v1alpha1.ClusterShare{Name: share.Name, Reason: ReasonObjects,
					Message: fmt.Sprintf("%s %s waits for a cluster that serves the type", of.Kind, o.Name)})
			}
		}
	}
	return shares
}

// definitionOf returns the CustomResourceDefinition of a kind.
func definitionOf(k interpret.KindInfo) object {
	return object{crdKind(), types.NamespacedName{Name: k.Resource + "." + k.Group}}
}

// maxWaitingObjects is how many objects are placed to find the clusters for their type.
const maxWaitingObjects = 100

func crdKind() schema.GroupKind {
	return schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

// withoutGaps removes the clusters that lack something for an object and do not have it yet,
// and reports them in the condition. Its users run there without it.
func (s *scheduler) withoutGaps(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare, c *metav1.Condition) []v1alpha1.ClusterShare {
	if len(shares) == 0 || !fleet.Native(k.GroupKind()) {
		return shares
	}
	against := s.obstacles(k, obj, b)
	if len(against) == 0 {
		return shares
	}
	var out []v1alpha1.ClusterShare
	var without []string
	for _, share := range shares {
		obstacle, is := against[share.Name]
		if is && !obstacle.Keeps {
			without = append(without, fmt.Sprintf("%s: the cluster %s", share.Name, obstacle.Message))
			c.Reason = obstacle.Reason
			continue
		}
		if is {
			share.Message = "keeps the existing copy, although the cluster " + obstacle.Message
		}
		out = append(out, share)
	}
	if len(without) > 0 {
		c.Status, c.Message = metav1.ConditionFalse, runWithout(without)
	}
	return out
}

// runWithout says in which clusters the users of an object run without it.
func runWithout(clusters []string) string {
	const most = 3
	message := "its users run without it in " + strings.Join(clusters[:min(most, len(clusters))], "; ")
	if more := len(clusters) - most; more > 0 {
		message += fmt.Sprintf("; and in %d more clusters", more)
	}
	return message
}

// withKept adds the clusters that have the object and must keep it.
func (s *scheduler) withKept(shares []v1alpha1.ClusterShare, b *v1alpha1.ResourceBinding, data bool) []v1alpha1.ClusterShare {
	have := clustersIn(shares)
	for _, c := range b.Spec.Clusters {
		cluster, joined := s.Clusters.Get(c.Name)
		if have[c.Name] || !joined || cluster.DeletionTimestamp != nil {
			continue
		}
		c.Message = "kept until the placement of its users is decided"
		switch {
		case data:
			c.Reason, c.Message = ReasonKeptData, "no object there needs it now, but it holds data: it is removed when it is deleted"
		case c.Reason != ReasonConfiguration: // then still nothing there uses it
			c.Reason = ReasonKeptPending
		}
		shares = append(shares, c)
	}
	return shares
}

func clustersIn(shares []v1alpha1.ClusterShare) map[string]bool {
	out := make(map[string]bool, len(shares))
	for _, c := range shares {
		out[c.Name] = true
	}
	return out
}

// hasUnscaledTarget reports whether a target of an autoscaler was decided before the autoscaler
// existed. Divided by such a decision, the whole lower bound could go to the one cluster that
// has the only replica.
func (s *scheduler) hasUnscaledTarget(o object, targets []object) bool {
	if o.GroupKind != interpret.AutoscalerKind() {
		return false
	}
	return slices.ContainsFunc(targets, func(target object) bool {
		k, served := s.Kinds.Get(target.GroupKind)
		b, bound := s.Bindings.Get(target.binding())
		return served && k.Placed && bound && b.Spec.ScaledBy == nil
	})
}

// autoscalerOf returns the autoscaler that sets the replicas of an object in its clusters, or
// nil.
func (s *scheduler) autoscalerOf(o object) *unstructured.Unstructured {
	for _, f := range s.needs.neededBy(o) {
		if f.GroupKind != interpret.AutoscalerKind() {
			continue
		}
		if obj, exists := s.Objects.Get(f.GroupKind, f.NamespacedName); exists && obj.GetDeletionTimestamp() == nil {
			return obj
		}
	}
	return nil
}

// scaledBy returns a reference to the autoscaler of a decision.
func (a *Result) scaledBy() *v1alpha1.Requirer {
	if a.Autoscaler == nil {
		return nil
	}
	return &v1alpha1.Requirer{Kind: interpret.AutoscalerKind().Kind, Name: a.Autoscaler.GetName()}
}

func budgetKind() schema.GroupKind {
	return schema.GroupKind{Group: "policy", Kind: "PodDisruptionBudget"}
}
