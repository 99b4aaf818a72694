package syncer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// namespaces is used with the dynamic client, like every other resource of members.
func namespaces() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("namespaces")
}

// ensureNamespace creates a namespace in the member if there is none, with Atoll's labels and
// those labels of the control plane's namespace that configure admission there. An existing
// namespace that is not ours is used as it is.
func (s *Syncer) ensureNamespace(ctx context.Context, name string) error {
	if name == "" || s.member.namespaceExists(name) {
		return nil
	}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": name, "labels": map[string]any{v1alpha1.ManagedLabel: "true"},
			"annotations": map[string]any{v1alpha1.ClusterAnnotation: s.cluster}}}}
	_, err := s.member.dyn.Resource(namespaces()).Create(ctx, ns, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	if err := s.applyNamespaceMetadata(ctx, name); err != nil {
		return err
	}
	s.member.mu.Lock()
	s.member.namespaces[name] = true
	s.member.mu.Unlock()
	return nil
}

// reconcileNamespace brings a namespace of the member in line with the control plane's, if the
// member has it and it is ours. If the control plane's namespace is deleted and nothing is
// bound in it, the member's is deleted now; otherwise it goes with its last object.
func (s *Syncer) reconcileNamespace(ctx context.Context, name string) error {
	if from, exists := s.Namespace(name); !exists || from.GetDeletionTimestamp() != nil {
		s.removalMu.Lock()
		defer s.removalMu.Unlock()
		if s.isLast(nil, func(b *v1alpha1.ResourceBinding) bool { return b.Namespace == name }) {
			return s.removeNamespace(ctx, name)
		}
		return nil
	}
	if err := s.applyNamespaceMetadata(ctx, name); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// applyNamespaceMetadata applies labels and annotations; pod security depends on them. The
// apply is separate from the creation, so that a label removed here is also removed there.
func (s *Syncer) applyNamespaceMetadata(ctx context.Context, name string) error {
	from, exists := s.Namespace(name)
	if !exists || from.GetDeletionTimestamp() != nil {
		return nil // nothing is known to apply
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api := s.member.dyn.Resource(namespaces())
	live, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !s.ownsNamespace(live) {
		return nil
	}
	labels, annotations := interpret.NamespaceMetadata(&unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"labels": anyMap(from.GetLabels()), "annotations": anyMap(from.GetAnnotations())}}})
	desired := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	desired.SetName(name)
	desired.SetUID(live.GetUID())
	desired.SetLabels(withEntry(labels, v1alpha1.ManagedLabel, "true"))
	desired.SetAnnotations(withEntry(annotations, v1alpha1.ClusterAnnotation, s.cluster))
	if _, err := api.Apply(ctx, name, desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		return fmt.Errorf("label namespace %s: %w", name, err)
	}
	return nil
}

// ownsNamespace reports whether this syncer created a namespace. Namespaces of older versions
// of Atoll do not name the cluster.
func (s *Syncer) ownsNamespace(ns *unstructured.Unstructured) bool {
	cluster := ns.GetAnnotations()[v1alpha1.ClusterAnnotation]
	return ns.GetLabels()[v1alpha1.ManagedLabel] == "true" && (cluster == "" || cluster == s.cluster) && ns.GetDeletionTimestamp() == nil
}

func withEntry(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for key, value := range m {
		out[key] = value
	}
	return out
}

func (c *memberClient) namespaceExists(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.namespaces[namespace]
}

func (c *memberClient) forgetNamespace(name string) {
	c.mu.Lock()
	delete(c.namespaces, name)
	c.mu.Unlock()
}

// removeNamespace deletes a namespace of the member if this fleet created it, the control plane
// no longer has it (or the cluster leaves), and it is empty.
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
		if err != nil || !gone {
			return err
		}
	}
	return s.member.deleteEmptyNamespace(ctx, name)
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
	empty, err := c.isEmpty(ctx, name)
	if err != nil || !empty {
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

// unlistedError says which groups of the member could not be listed. Usually the program behind an
// aggregated API is down. Whether a namespace has objects of such a group is not known, so the
// namespace stays; that concerns no other object.
type unlistedError struct {
	namespace string
	groups    []string
}

func (e *unlistedError) Error() string {
	return fmt.Sprintf("namespace %s stays in the cluster until it is known to be empty: the cluster cannot list the objects of %s (see kubectl get apiservices there)",
		e.namespace, strings.Join(e.groups, ", "))
}

// isEmpty reports whether a namespace holds no object that a user created: only the objects
// that every namespace has, and those that have a controller and are deleted with it. If some
// groups cannot be listed and the others have no such object, it returns an unlistedError.
func (c *memberClient) isEmpty(ctx context.Context, namespace string) (bool, error) {
	unlisted := map[string]bool{}
	lists, err := c.discovery.ServerPreferredNamespacedResources()
	if failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err); partly {
		for gv := range failed {
			unlisted[gv.String()] = true
		}
	} else if err != nil {
		return false, fmt.Errorf("discover the resources of namespace %s: %w", namespace, err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return false, err
		}
		for _, r := range list.APIResources {
			if !canList(r) || r.Kind == "Event" {
				continue
			}
			items, err := c.meta.Resource(gv.WithResource(r.Name)).Namespace(namespace).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if apierrors.IsServiceUnavailable(err) {
				unlisted[gv.String()] = true
				break
			}
			if err != nil {
				return false, fmt.Errorf("list %s in namespace %s: %w", r.Name, namespace, err)
			}
			for i := range items.Items {
				if !incidental(r.Kind, &items.Items[i].ObjectMeta) {
					return false, nil
				}
			}
		}
	}
	if len(unlisted) > 0 {
		return false, &unlistedError{namespace, slices.Sorted(maps.Keys(unlisted))}
	}
	return true, nil
}

// requeueLeftNamespaces queues the namespaces of this fleet in the member that the control plane does
// not have: an earlier syncer did not know whether they were empty.
func (s *Syncer) requeueLeftNamespaces(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := s.member.meta.Resource(namespaces()).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ManagedLabel + "=true"})
	if err != nil {
		s.log.Debug("list the namespaces of the cluster failed; those that were left are not removed", "error", err)
		return
	}
	for i := range list.Items {
		ns := &list.Items[i]
		if _, exists := s.Namespace(ns.Name); !exists && ns.Annotations[v1alpha1.ClusterAnnotation] == s.cluster {
			s.queue.Add(types.NamespacedName{Namespace: ns.Name})
		}
	}
}

func canList(r metav1.APIResource) bool {
	for _, verb := range r.Verbs {
		if verb == "list" {
			return true
		}
	}
	return false
}

func incidental(kind string, o *metav1.ObjectMeta) bool {
	switch {
	case kind == "ServiceAccount" && o.Name == "default", kind == "ConfigMap" && o.Name == "kube-root-ca.crt":
		return true
	case kind == "Endpoints":
		return true // created for Services, which are counted themselves
	}
	return metav1.GetControllerOf(o) != nil
}
