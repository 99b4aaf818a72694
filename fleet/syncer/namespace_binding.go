package syncer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// A Namespace with a binding is applied like other objects, with two differences. One that this fleet did not create is
// used as it is, and one that is not empty is not deleted. If a policy places the Namespace, it carries the UID of its
// source: without that mark it is in the cluster for its objects, and stays when its binding goes. With it, it goes when
// the policy does not place it any more, or with its last object after that.

// foreignCheckInterval is the time between two checks of a namespace that this fleet did not create: it is not watched.
const foreignCheckInterval = time.Minute

// namespaceBinding returns the key of a namespace's own binding.
func namespaceBinding(name string) types.NamespacedName {
	return types.NamespacedName{Name: v1alpha1.BindingName(interpret.NamespaceKind().GroupKind(), name)}
}

// liveNamespace returns a namespace of the member, or nil. One that this fleet did not create is a
// conflictError, unless it may be adopted.
func (s *Syncer) liveNamespace(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding) (*unstructured.Unstructured, error) {
	if live, ok := s.member.cached(k, b.ObjectName()); ok && s.madeNamespace(live) {
		return live, nil
	}
	live, err := s.member.get(ctx, k, b.ObjectName())
	if err != nil || live == nil || s.madeNamespace(live) {
		return live, err
	}
	if source, ok := s.Source(b); ok && source.Adopt {
		return live, nil
	}
	return nil, conflictError{s.cluster, live}
}

// reportForeignNamespace reports a namespace that this fleet did not create. That is a conflict, unless the cluster joined
// with --adopt: then it is used as it is, if the control plane's has no other labels or annotations.
func (s *Syncer) reportForeignNamespace(ctx context.Context, t *target, taken conflictError) error {
	live := taken.live
	if !s.mayUse(live, interpret.NamespaceKind().GroupKind()) || !covers(live.GetLabels(), t.desired.GetLabels()) || !covers(live.GetAnnotations(), t.desired.GetAnnotations()) {
		return s.reportFailure(ctx, t.binding, t.record, taken)
	}
	s.queue.AddAfter(t.binding.Key(), foreignCheckInterval)
	return s.report(ctx, t.binding, t.record, &v1alpha1.ClusterState{Name: s.cluster, UID: live.GetUID(), Generation: t.source.Generation,
		Health: v1alpha1.Healthy, Message: "the namespace was not created by this fleet, and is used as it is"})
}

// covers reports whether all desired labels, apart from the fleet's own, have their values.
func covers(live, desired map[string]string) bool {
	for key, value := range desired {
		if is, ok := live[key]; !strings.HasPrefix(key, v1alpha1.Group+"/") && (!ok || is != value) {
			return false
		}
	}
	return true
}

// releaseNamespace ends the binding of a namespace in this cluster. A namespace that a policy placed is deleted if it
// is empty. Any other loses its overrides.
func (s *Syncer) releaseNamespace(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record) error {
	removal, err := s.ConfirmRemoval(ctx, b)
	if err != nil || removal.Binding == nil {
		return err
	}
	b = removal.Binding
	live, err := s.member.getForRemoval(ctx, k, b.ObjectName())
	if err != nil {
		return s.reportRemoving(ctx, b, m, err)
	}
	switch {
	case live == nil || !s.madeNamespace(live):
		return s.finishRemoval(ctx, k, b, m)
	case s.shouldOrphan(b):
		if b.Annotations[v1alpha1.LeaveAnnotation] == v1alpha1.LeaveOrphan && !s.clusterLeaving() {
			if err := s.applyPlain(ctx, b, live, false); err != nil { // without the mark of a placed one, it stays
				return s.reportRemoving(ctx, b, m, err)
			}
		}
		return s.finishRemoval(ctx, k, b, m)
	case live.GetDeletionTimestamp() != nil:
		s.checkGone(b, m)
		return s.reportState(ctx, b, m, v1alpha1.StateRemoving, terminating(live))
	case b.Spec.Suspend && !s.clusterLeaving():
		return s.reportState(ctx, b, m, v1alpha1.StateSuspended, "no longer placed here; the policy suspends its removal")
	}
	bound, leaving := s.objectsOf(b.Spec.Resource.Name)
	placed := live.GetAnnotations()[v1alpha1.SourceUIDAnnotation] == string(b.Spec.Resource.UID)
	switch {
	case placed && !bound && removal.Waits != "":
		return s.awaitReplacement(ctx, b, m, removal.Waits)
	case placed && leaving && !bound:
		s.checkGone(b, m)
		return s.reportState(ctx, b, m, v1alpha1.StateRemoving, "its objects are leaving the cluster")
	case !placed || bound: // a placed one goes with its last object
		if err := s.applyPlain(ctx, b, live, placed); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
		return s.finishRemoval(ctx, k, b, m)
	}
	return s.removePlacedNamespace(ctx, k, b, m, live, removal.Decided)
}

// removePlacedNamespace deletes a namespace that a policy placed, if it is empty. Otherwise it stays, without its
// overrides. The binding has the reason as long as the control plane has the namespace.
func (s *Syncer) removePlacedNamespace(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record, live *unstructured.Unstructured, decided bool) error {
	name := b.Spec.Resource.Name
	found, err := s.member.contentOf(ctx, name)
	why := ""
	var unlisted *unlistedError
	switch {
	case errors.As(err, &unlisted):
		why = unlisted.Error()
	case err != nil:
		return s.reportRemoving(ctx, b, m, err)
	case found != "":
		why = fmt.Sprintf("namespace %s stays in the cluster, because it is not empty: it contains %s, which this fleet did not put there. Delete its content there, or keep it with the annotation %s=%s on this binding",
			name, found, v1alpha1.LeaveAnnotation, v1alpha1.LeaveOrphan)
	}
	if why != "" {
		if source, exists := s.Source(b); !exists || source.Deleting || s.clusterLeaving() {
			s.Event(b, corev1.EventTypeWarning, "NamespaceKept", "Cluster "+s.cluster+": "+why)
			return s.finishRemoval(ctx, k, b, m)
		}
		if err := s.applyPlain(ctx, b, live, true); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
		s.checkGone(b, m)
		return s.reportState(ctx, b, m, v1alpha1.StateHeld, why)
	}
	if held, err := s.holdRemoval(ctx, k, b, m, live, decided); held || err != nil {
		return err
	}
	s.removalMu.Lock()
	bound, leaving := s.objectsOf(name)
	if !bound && !leaving {
		err = s.member.deleteEmptyNamespace(ctx, name)
	}
	s.removalMu.Unlock()
	if err != nil {
		return s.reportRemoving(ctx, b, m, err)
	}
	s.metrics.wrote(s.cluster, operationDelete)
	s.checkGone(b, m)
	return s.reportState(ctx, b, m, v1alpha1.StateRemoving, "")
}

// terminating says what a namespace waits for that is being deleted in the member: its conditions have that.
func terminating(live *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["status"] == "True" {
			if message, _ := c["message"].(string); message != "" {
				return "it is being deleted in the cluster: " + message
			}
		}
	}
	return "it is being deleted in the cluster"
}

// objectsOf reports whether decisions name objects of a namespace for this cluster, and whether the cluster still has
// others, which leave.
func (s *Syncer) objectsOf(name string) (bound, leaving bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.Bindings() {
		if b.Namespace != name {
			continue
		}
		m := s.records[b.Key()]
		_, chosen := b.Share(s.cluster)
		if m != nil && m.gone.Load() && !chosen {
			continue
		}
		bound, leaving = bound || chosen && b.DeletionTimestamp == nil, true
	}
	return bound, leaving
}

// applyPlain removes the overrides of a namespace. placed keeps the mark that a policy placed it.
func (s *Syncer) applyPlain(ctx context.Context, b *v1alpha1.ResourceBinding, live *unstructured.Unstructured, placed bool) error {
	if source, exists := s.Source(b); !exists || source.Deleting {
		return nil // it goes with its last object
	}
	from, known := s.Namespace(live.GetName())
	if !known {
		return fmt.Errorf("%w: the labels of namespace %s are not known", errRequeue, live.GetName())
	}
	desired := s.plainNamespace(from)
	if placed {
		desired.SetAnnotations(withEntry(desired.GetAnnotations(), v1alpha1.SourceUIDAnnotation, live.GetAnnotations()[v1alpha1.SourceUIDAnnotation]))
	}
	desired.SetUID(live.GetUID())
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := s.member.dyn.Resource(namespaces()).Apply(ctx, live.GetName(), desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		return fmt.Errorf("remove the overrides of namespace %s: %w", live.GetName(), err)
	}
	return nil
}
