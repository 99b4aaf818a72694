package scheduler

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// reconcile brings the binding of one object in line with the object, its users and the
// clusters. It does nothing until the cache has the last write: the decision about an older binding would be another one, and
// its write would fail.
func (s *scheduler) reconcile(ctx context.Context, o object) error {
	if is, since := s.assumed.await(o.binding()); is != nil {
		return s.awaitEvent(ctx, o, is, since)
	}
	err := s.reconcileBinding(ctx, o)
	if is := s.assumed.settle(o.binding(), err != nil); is != nil && err != nil {
		s.undo(o, is)
	}
	return err
}

// reconcileBinding is reconcile with a cache that has the last write.
func (s *scheduler) reconcileBinding(ctx context.Context, o object) error {
	b, bound := s.Bindings.Get(o.binding())
	if bound && boundBy(b) != o {
		return fmt.Errorf("binding %s belongs to %s %s: delete it if it was created by hand",
			b.Key(), b.Spec.Resource.Kind, b.Spec.Resource.Name)
	}
	if interpret.IsNamespace(o.GroupKind) {
		return s.reconcileNamespace(ctx, o, b)
	}
	k, served := s.Kinds.Get(o.GroupKind)
	if !served {
		return s.unserved(ctx, o, b)
	}
	obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
	if bound {
		if err := s.forgetGoneClusters(ctx, b); err != nil {
			return err
		}
	}
	s.refreshNeeds(k, o, obj, exists)
	gone := !exists || bound && b.Spec.Resource.UID != obj.GetUID()
	switch {
	case gone && bound:
		if err := s.finalize(ctx, k, b); err != nil || !exists {
			return err
		}
		return s.awaitPredecessor(ctx, k, obj, b)
	case gone:
		return nil
	case obj.GetDeletionTimestamp() != nil:
		// The object is being deleted, and other finalizers are pending. The clusters' copies
		// are removed when it is gone, or when the binding is deleted before it (the garbage
		// collector does that in foreground deletion).
		if bound && b.DeletionTimestamp != nil {
			return s.removeFinalizer(ctx, b)
		}
		return nil
	case s.staysHome(k, obj):
		if !bound {
			return nil
		}
		b, err := s.allowRemoval(ctx, b, obj.GetLabels(), "it is to stay in the control plane")
		if b == nil || err != nil {
			return err
		}
		return s.withdraw(ctx, b, withoutReplaced(b.Spec.RequestedRemovals))
	case k.Placed && s.isHomeless(k, obj, b):
		return nil
	case k.Placed:
		if why := s.leavesForHome(k, obj, b); why != "" {
			b, err := s.allowRemoval(ctx, b, obj.GetLabels(), why)
			if b == nil || err != nil {
				return err
			}
			return s.withdraw(ctx, b, withoutReplaced(s.typeRemovals(k, b)))
		}
		return s.place(ctx, k, obj, b)
	}
	return s.follow(ctx, k, o, obj, b)
}

func (s *scheduler) staysHome(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	why := s.Kinds.Catalog().StaysHome(obj)
	if why != interpret.PermissionsOfPeople {
		return why != ""
	}
	snap := s.snapshot()
	return snap.Policies == nil || !isForFleet(snap.Choose(k, obj))
}

// isForFleet reports whether an administrator places an object: a ClusterPlacement names its kind. A Placement of
// its namespace does not suffice, because whoever writes that need not have any rights in clusters.
func isForFleet(c placement.PolicyChoice) bool {
	return c.Err == nil && c.OfKind && c.Reference.Kind == "ClusterPlacement"
}

// unserved handles a binding of a kind that the fleet does not serve now. If its type is gone,
// so are its objects, and the binding is finalized like theirs. Otherwise it is unchanged: a
// newer version of Atoll may know the kind, or the kind may be served again.
func (s *scheduler) unserved(ctx context.Context, o object, b *v1alpha1.ResourceBinding) error {
	if b == nil {
		s.withoutNeeds(o)
		return nil
	}
	k, found := s.Kinds.Of(b)
	if !found {
		return nil
	}
	gone, err := s.Types.Gone(ctx, k)
	if err != nil || !gone {
		return err
	}
	for _, needed := range s.withoutNeeds(o) {
		s.queue.Add(needed)
	}
	if err := s.forgetGoneClusters(ctx, b); err != nil {
		return err
	}
	return s.finalize(ctx, k, b)
}

// refreshNeeds updates the dependencies of an object and queues the affected objects.
func (s *scheduler) refreshNeeds(k interpret.KindInfo, o object, obj *unstructured.Unstructured, exists bool) {
	var changed []object
	if exists {
		var err error
		if changed, err = s.updateNeeds(k, obj); err != nil && !interpret.IsPending(err) {
			s.Events.Event(obj, corev1.EventTypeWarning, "NeedsUnknown", err.Error())
		}
	} else {
		changed = s.withoutNeeds(o)
		s.forget(o)
	}
	for _, needed := range changed {
		if needed != o {
			s.queue.Add(needed)
		}
	}
}

// place decides about an object that is placed by its own decision.
func (s *scheduler) place(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) error {
	if s.awaitsContent(k, obj, b) {
		return nil
	}
	if interpret.IsPending(k.Unanswered(obj)) {
		return nil // the answer causes another reconcile
	}
	o := refOf(k.GroupKind(), obj)
	if b == nil {
		if known, err := s.knowsPolicies(ctx, obj); err != nil {
			return err
		} else if !known {
			s.queue.AddAfter(o, policyRetry)
			return nil
		}
	}
	started := s.Clock.Now()
	a := s.schedule(k, obj, b)
	s.Config.Metrics.decided(&a, s.Clock.Since(started))
	if !a.Decision.Recheck.IsZero() {
		s.queue.AddAfter(o, a.Decision.Recheck.Sub(a.Request.Now))
	}
	s.trackPending(o, a.waitsForOthers(), hasWideTerms(a.Choice.Policy))
	s.volumes.track(o, a.Volumes != "")
	_, failsOver := a.Choice.Policy.ApplicationFailover()
	s.failingOver.track(o, failsOver)
	s.requeueGroup(&a, b)
	a.Condition.Message += s.contenderMessage(k, obj)
	if err := s.admitCopies(ctx, o, &a, k, obj, b); err != nil {
		return err
	}
	p := bindingUpdate{shares: a.Shares, scaledBy: a.scaledBy(), condition: a.Condition, why: a.pendingText(), preemption: a.Preemption, preempted: a.preemptedText(), result: &a}
	p.setPolicy(&a)
	p.setDegraded(&a)
	p.why += a.consolidationText()
	p.setFailover(&a, b)
	s.recordHeld(obj, b, &a)
	return s.write(ctx, k, obj, b, p)
}

func status(b bool) metav1.ConditionStatus {
	if b {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// finalize handles the binding of a deleted object. It confirms the deletion with a live read,
// because a cache may lag, and the copies in the clusters depend on the answer.
func (s *scheduler) finalize(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding) error {
	b, err := s.resume(ctx, b)
	if err != nil {
		return err
	}
	asked := s.requestedByDeletion(b)
	allowed := b.Spec.Manual == nil || b.Spec.Manual.Removal
	if b.DeletionTimestamp != nil && len(asked) == 0 && allowed {
		return s.removeFinalizer(ctx, b)
	}
	live, err := s.Objects.Live(ctx, k, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name})
	if err != nil {
		return fmt.Errorf("confirm that it is gone: %w", err)
	}
	if live != nil && live.GetUID() == b.Spec.Resource.UID {
		return nil // an event will follow
	}
	if b, err = s.allowRemoval(ctx, b, nil, "it was deleted"); b == nil || err != nil {
		return err
	}
	if len(asked) > 0 {
		spec := b.Spec
		spec.RequestedRemovals = withRequests(spec.RequestedRemovals, asked)
		if b, err = s.updateSpec(ctx, b, spec); err != nil {
			return err
		}
	}
	if b.DeletionTimestamp != nil {
		return s.removeFinalizer(ctx, b)
	}
	// Deleted with --cascade=orphan: the garbage collector removed the owner reference, so the
	// clusters' copies are to stay too.
	if isOrphaned(b) && b.Annotations[v1alpha1.LeaveAnnotation] != v1alpha1.LeaveOrphan {
		patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, b.UID, v1alpha1.LeaveAnnotation, v1alpha1.LeaveOrphan)
		_, err := s.BindingAPI(b.Namespace).Patch(ctx, b.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: FieldManager})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("orphan the copies of %s %s/%s: %w", k.Kind, b.Namespace, b.Spec.Resource.Name, err)
		}
	}
	return s.deleteBinding(ctx, b)
}

// withdraw removes an object that still exists from all clusters. It first updates the
// decision, because deleting a binding has no effect while its object exists. requested lists
// the clusters for which the removal was requested.
func (s *scheduler) withdraw(ctx context.Context, b *v1alpha1.ResourceBinding, requested []v1alpha1.RequestedRemoval) error {
	b, err := s.resume(ctx, b)
	if err != nil {
		return err
	}
	if len(b.Spec.Clusters) > 0 || b.Spec.Transition != nil {
		spec := b.Spec
		spec.Goal, spec.Transition, spec.Avoided, spec.Home = nil, nil, nil, nil
		spec.Clusters, spec.RequiredBy, spec.ScaledBy, spec.Preemption, spec.RequestedRemovals = nil, nil, nil, nil, requested
		if b, err = s.updateSpec(ctx, b, spec); err != nil {
			return err
		}
	}
	if b.DeletionTimestamp == nil {
		return s.deleteBinding(ctx, b)
	}
	return s.removeFinalizer(ctx, b)
}

// removeFinalizer releases a deleted binding once no cluster has the object.
func (s *scheduler) removeFinalizer(ctx context.Context, b *v1alpha1.ResourceBinding) error {
	if len(b.Status.Clusters) > 0 {
		return nil // the syncers are still removing it
	}
	finalizers := []string{}
	mine := false
	for _, f := range b.Finalizers {
		if f == v1alpha1.BindingFinalizer {
			mine = true
			continue
		}
		finalizers = append(finalizers, f)
	}
	if !mine {
		return nil
	}
	return s.setFinalizers(ctx, b, finalizers)
}

// forgetGoneClusters removes the entries of clusters that are no longer registered, because
// their syncers cannot do that.
func (s *scheduler) forgetGoneClusters(ctx context.Context, b *v1alpha1.ResourceBinding) error {
	for _, c := range b.Status.Clusters {
		if _, joined := s.Clusters.Get(c.Name); joined {
			continue
		}
		_, err := s.Dynamic.Resource(v1alpha1.ClusterResource).Get(ctx, c.Name, metav1.GetOptions{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("confirm that cluster %s is gone: %w", c.Name, err)
		}
		// One at a time: the changed binding causes another reconcile.
		return s.RemoveClusterState(ctx, b, c.Name)
	}
	return nil
}
