package syncer

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// namespaces is used with the dynamic client, like every other resource of members.
func namespaces() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("namespaces")
}

// ensureNamespace creates the namespace of an object in the member if it does not exist, with Atoll's labels and those
// labels of the control plane's namespace that configure admission there. It returns a conflictError for an existing
// namespace that objects of this kind must not be put into.
func (s *Syncer) ensureNamespace(ctx context.Context, name string, of schema.GroupKind) error {
	if name == "" || s.member.isUsable(name) {
		return nil
	}
	live, err := s.getNamespace(ctx, name)
	if err != nil {
		return err
	}
	if live != nil && !s.madeNamespace(live) && !s.adopts(name) {
		if s.mayUse(live, of) {
			return nil
		}
		return conflictError{s.cluster, live}
	}
	if _, err := s.desiredNamespace(ctx, name); errors.Is(err, fleet.ErrTransform) {
		if live != nil {
			return nil
		}
		// Without its labels, a new namespace would admit pods that the override is to keep out.
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	if live == nil {
		ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": name, "labels": map[string]any{v1alpha1.ManagedLabel: "true"},
				"annotations": map[string]any{v1alpha1.ClusterAnnotation: s.cluster}}}}
		_, err := s.member.dyn.Resource(namespaces()).Create(ctx, ns, metav1.CreateOptions{FieldManager: FieldManager})
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%w: namespace %s was created in the cluster meanwhile", errRequeue, name)
		}
		if err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	if err := s.applyNamespaceMetadata(ctx, name); err != nil {
		return err
	}
	s.member.use(name)
	return nil
}

// getNamespace returns a namespace of the member, or nil.
func (s *Syncer) getNamespace(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	live, err := s.member.dyn.Resource(namespaces()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return live, nil
}

// reconcileNamespace brings a namespace of the member in line with the control plane's, if the
// member has it and it is ours. If the control plane's namespace is deleted and nothing is
// bound in it, the member's is deleted now; otherwise it goes with its last object.
func (s *Syncer) reconcileNamespace(ctx context.Context, name string) error {
	s.namespaceChanged(name)
	if from, exists := s.Namespace(name); !exists || from.GetDeletionTimestamp() != nil {
		s.removalMu.Lock()
		defer s.removalMu.Unlock()
		if s.isLast(nil, func(b *v1alpha1.ResourceBinding) bool { return b.Namespace == name }) {
			return s.removeNamespace(ctx, name)
		}
		return nil
	}
	if b, bound := s.Binding(namespaceBinding(name)); bound {
		_, chosen := b.Share(s.cluster)
		if _, reported := b.State(s.cluster); chosen || reported {
			return nil // the reconcile of the binding applies them
		}
	}
	if err := s.applyNamespaceMetadata(ctx, name); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// applyNamespaceMetadata applies labels and annotations; pod security depends on them. The
// apply is separate from the creation, so that a label removed here is also removed there.
func (s *Syncer) applyNamespaceMetadata(ctx context.Context, name string) error {
	desired, err := s.desiredNamespace(ctx, name)
	if err != nil || desired == nil {
		return err // nothing is known to apply
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api := s.member.dyn.Resource(namespaces())
	live, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !s.ownsNamespace(live) && (!s.adopts(name) || live.GetDeletionTimestamp() != nil) {
		return nil
	}
	desired.SetUID(live.GetUID())
	if uid := live.GetAnnotations()[v1alpha1.SourceUIDAnnotation]; uid != "" { // a policy placed it
		desired.SetAnnotations(withEntry(desired.GetAnnotations(), v1alpha1.SourceUIDAnnotation, uid))
	}
	if _, err := api.Apply(ctx, name, desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		return fmt.Errorf("label namespace %s: %w", name, err)
	}
	return nil
}

// desiredNamespace returns a namespace as the member should have it, nil if that is not known.
func (s *Syncer) desiredNamespace(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	from, exists := s.Namespace(name)
	if !exists || from.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	if b, bound := s.Binding(namespaceBinding(name)); bound {
		if _, chosen := b.Share(s.cluster); chosen {
			desired, _, ok, err := s.Desired(ctx, b, nil)
			if err != nil || ok {
				return desired, err
			}
		}
	}
	return s.plainNamespace(from), nil
}

// plainNamespace returns a namespace with the labels and annotations of the control plane's.
func (s *Syncer) plainNamespace(from metav1.Object) *unstructured.Unstructured {
	labels, annotations := interpret.NamespaceMetadata(interpret.NamespaceObject(from))
	desired := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	desired.SetName(from.GetName())
	desired.SetLabels(withEntry(labels, v1alpha1.ManagedLabel, "true"))
	desired.SetAnnotations(withEntry(annotations, v1alpha1.ClusterAnnotation, s.cluster))
	return desired
}

// ownsNamespace reports whether this syncer created a namespace, and it is not being deleted.
func (s *Syncer) ownsNamespace(ns *unstructured.Unstructured) bool {
	return s.madeNamespace(ns) && ns.GetDeletionTimestamp() == nil
}

// madeNamespace reports whether this syncer created a namespace. Namespaces of older versions of Atoll do not name the
// cluster.
func (s *Syncer) madeNamespace(ns *unstructured.Unstructured) bool {
	cluster := ns.GetAnnotations()[v1alpha1.ClusterAnnotation]
	return ns.GetLabels()[v1alpha1.ManagedLabel] == "true" && (cluster == "" || cluster == s.cluster)
}

func withEntry(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// removeNamespace deletes a namespace of the member if this fleet created it, it is empty, and the control plane no longer
// has it, the cluster leaves, or a policy had placed it here.
func (s *Syncer) removeNamespace(ctx context.Context, name string) error {
	c, joined := s.Cluster()
	if !joined {
		return nil
	}
	leaving, orphan := c.Leaving()
	if leaving && orphan {
		return nil
	}
	if !leaving {
		gone, err := s.ConfirmNamespaceGone(ctx, name)
		if err == nil && !gone {
			gone, err = s.placedBefore(ctx, name)
		}
		if err != nil || !gone {
			return err
		}
	}
	return s.member.deleteEmptyNamespace(ctx, name)
}

// placedBefore reports whether a policy placed a namespace in this cluster, and does not any more. It stayed for its objects.
func (s *Syncer) placedBefore(ctx context.Context, name string) (bool, error) {
	if b, bound := s.Binding(namespaceBinding(name)); bound {
		_, chosen := b.Share(s.cluster)
		if _, reported := b.State(s.cluster); chosen || reported {
			return false, nil // the reconcile of the binding decides
		}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ns, err := s.member.dyn.Resource(namespaces()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return s.ownsNamespace(ns) && ns.GetAnnotations()[v1alpha1.SourceUIDAnnotation] != "", nil
}

func (c *memberClient) deleteEmptyNamespace(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api := c.dyn.Resource(namespaces())
	ns, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get namespace %s: %w", name, err)
	}
	if ns.GetLabels()[v1alpha1.ManagedLabel] != "true" || ns.GetDeletionTimestamp() != nil {
		return nil
	}
	if found, err := c.contentOf(ctx, name); err != nil || found != "" {
		return err
	}
	uid, rv := ns.GetUID(), ns.GetResourceVersion()
	err = api.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &rv}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete namespace %s: %w", name, err)
	}
	c.forgetNamespace(name)
	return nil
}

// requeueLeftNamespaces queues the namespaces of this fleet in the member that the control plane does
// not have: an earlier syncer did not know whether they were empty.
func (s *Syncer) requeueLeftNamespaces(ctx context.Context) {
	err := s.eachManagedNamespace(ctx, func(ns *metav1.PartialObjectMetadata) error {
		if _, exists := s.Namespace(ns.Name); !exists && ns.Annotations[v1alpha1.ClusterAnnotation] == s.cluster {
			s.queue.Add(types.NamespacedName{Namespace: ns.Name})
		}
		return nil
	})
	if err != nil {
		s.log.Debug("list the namespaces of the cluster failed; those that were left are not removed", "error", err)
	}
}

// eachManagedNamespace calls use for each namespace of the member with the fleet's label, until it returns an error.
func (s *Syncer) eachManagedNamespace(ctx context.Context, use func(*metav1.PartialObjectMetadata) error) error {
	list := func(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return s.member.meta.Resource(namespaces()).List(ctx, o)
	}
	return fleet.EachPage(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ManagedLabel + "=true"}, list, func(page *metav1.PartialObjectMetadataList) (more bool, err error) {
		for i := range page.Items {
			if err := use(&page.Items[i]); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}
