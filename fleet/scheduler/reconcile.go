package scheduler

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// reconcile brings the binding of one object in line with the object, its users
// and the clusters.
func (s *scheduler) reconcile(ctx context.Context, o object) error {
	b, bound := s.Binding(o.binding())
	if bound && boundBy(b) != o {
		return fmt.Errorf("binding %s is about %s %s: delete it if it was written by hand",
			b.Key(), b.Spec.Resource.Kind, b.Spec.Resource.Name)
	}
	k, served := s.Served(o.GroupKind)
	if !served {
		return s.unserved(ctx, o, b)
	}
	obj, exists := s.Object(o.GroupKind, o.NamespacedName)
	if bound {
		if err := s.forgetGoneClusters(ctx, b); err != nil {
			return err
		}
	}
	s.relearn(k, o, obj, exists)
	gone := !exists || bound && b.Spec.Resource.UID != obj.GetUID()
	switch {
	case gone && bound:
		return s.release(ctx, k, b)
	case gone:
		return nil
	case obj.GetDeletionTimestamp() != nil:
		// It is on its way out and others still work on that. What the clusters
		// run goes when it is gone, or when the binding is deleted before it (the
		// garbage collector does, in the foreground).
		if bound && b.DeletionTimestamp != nil {
			return s.finish(ctx, b)
		}
		return nil
	case s.staysHome(obj):
		if !bound {
			return nil
		}
		b, err := s.letGo(ctx, b, obj.GetLabels(), "it is to stay in the control plane")
		if b == nil || err != nil {
			return err
		}
		return s.withdraw(ctx, b, b.Spec.RequestedRemovals)
	case k.Placed:
		return s.place(ctx, k, obj, b)
	}
	return s.follow(ctx, k, o, obj, b)
}

func (s *scheduler) staysHome(obj *unstructured.Unstructured) bool {
	return s.Knowledge().StaysHome(obj) != ""
}

// unserved looks after a binding of a kind that the fleet does not know now. If its
// type is gone, its objects are, and it is released as theirs are. Else it stays as
// it is: a newer Atoll may know the kind, or it may come again.
func (s *scheduler) unserved(ctx context.Context, o object, b *v1alpha1.ResourceBinding) error {
	if b == nil {
		s.needs.set(o, statement{})
		return nil
	}
	k, found := s.KindOf(b)
	if !found {
		return nil
	}
	gone, err := s.TypeGone(ctx, k)
	if err != nil || !gone {
		return err
	}
	for _, needed := range s.needs.set(o, statement{}) {
		s.queue.Add(needed)
	}
	if err := s.forgetGoneClusters(ctx, b); err != nil {
		return err
	}
	return s.release(ctx, k, b)
}

// relearn keeps needs true and has those looked at again whom a change concerns.
func (s *scheduler) relearn(k interpret.Kind, o object, obj *unstructured.Unstructured, exists bool) {
	var changed []object
	if exists {
		var err error
		if changed, err = s.learn(k, obj); err != nil {
			s.Events.Event(obj, corev1.EventTypeWarning, "NeedsUnknown", err.Error())
		}
	} else {
		changed = s.needs.set(o, statement{})
		s.forget(o)
	}
	for _, needed := range changed {
		if needed != o {
			s.queue.Add(needed)
		}
	}
}

// place decides about an object of its own standing.
func (s *scheduler) place(ctx context.Context, k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) error {
	o := refOf(k.GroupKind(), obj)
	a := s.answer(k, obj, b)
	if !a.Decision.Recheck.IsZero() {
		s.queue.AddAfter(o, a.Decision.Recheck.Sub(a.Request.Now))
	}
	s.hope(o, len(a.Request.Near) > 0 && !a.Decision.Scheduled)
	p := proposal{shares: a.Shares, scaledBy: s.scalerOf(o), condition: a.Condition}
	p.policy(&a)
	return s.write(ctx, k, obj, b, p)
}

func status(b bool) metav1.ConditionStatus {
	if b {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// release takes leave of an object that is gone: asked for live, because a cache
// may lag, and what runs in the clusters depends on the answer.
func (s *scheduler) release(ctx context.Context, k interpret.Kind, b *v1alpha1.ResourceBinding) error {
	asked := s.deletion(b)
	allowed := b.Spec.Manual == nil || b.Spec.Manual.Removal
	if b.DeletionTimestamp != nil && len(asked) == 0 && allowed {
		return s.finish(ctx, b)
	}
	live, err := s.Live(ctx, k, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name})
	if err != nil {
		return fmt.Errorf("make sure that it is gone: %w", err)
	}
	if live != nil && live.GetUID() == b.Spec.Resource.UID {
		return nil // an event will follow
	}
	if b, err = s.letGo(ctx, b, nil, "it was deleted"); b == nil || err != nil {
		return err
	}
	if len(asked) > 0 {
		spec := b.Spec
		spec.RequestedRemovals = slices.Concat(spec.RequestedRemovals, asked)
		if b, err = s.updateSpec(ctx, b, spec); err != nil {
			return err
		}
	}
	if b.DeletionTimestamp != nil {
		return s.finish(ctx, b)
	}
	// Deleted with --cascade=orphan: the garbage collector took the owner off, so
	// the clusters' copies are to be left alone too.
	if orphaned(b) && b.Annotations[v1alpha1.LeaveAnnotation] != v1alpha1.LeaveOrphan {
		patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, b.UID, v1alpha1.LeaveAnnotation, v1alpha1.LeaveOrphan)
		_, err := s.BindingAPI(b.Namespace).Patch(ctx, b.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: FieldManager})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("leave the copies of %s %s/%s running: %w", k.Kind, b.Namespace, b.Spec.Resource.Name, err)
		}
	}
	return s.deleteBinding(ctx, b)
}

// withdraw takes an object that still exists out of all clusters: first the
// decision says so, since a binding that is merely deleted changes nothing while
// its object lives. requested says of which clusters that was asked for.
func (s *scheduler) withdraw(ctx context.Context, b *v1alpha1.ResourceBinding, requested []v1alpha1.RequestedRemoval) error {
	if len(b.Spec.Clusters) > 0 {
		spec := b.Spec
		spec.Clusters, spec.RequiredBy, spec.ScaledBy, spec.RequestedRemovals = nil, nil, nil, requested
		var err error
		if b, err = s.updateSpec(ctx, b, spec); err != nil {
			return err
		}
	}
	if b.DeletionTimestamp == nil {
		return s.deleteBinding(ctx, b)
	}
	return s.finish(ctx, b)
}

// finish lets a deleted binding go once no cluster has the object.
func (s *scheduler) finish(ctx context.Context, b *v1alpha1.ResourceBinding) error {
	if len(b.Status.Clusters) > 0 {
		return nil // the syncers are at it
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

// forgetGoneClusters drops reports of clusters that are no longer registered and
// whose syncer can therefore not do it.
func (s *scheduler) forgetGoneClusters(ctx context.Context, b *v1alpha1.ResourceBinding) error {
	for _, c := range b.Status.Clusters {
		if _, joined := s.Cluster(c.Name); joined {
			continue
		}
		_, err := s.Dynamic.Resource(v1alpha1.ClusterResource).Get(ctx, c.Name, metav1.GetOptions{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("make sure that cluster %s is gone: %w", c.Name, err)
		}
		// One at a time: the binding changes with it, and comes back here.
		return s.StripState(ctx, b, c.Name)
	}
	return nil
}
