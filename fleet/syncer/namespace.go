package syncer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// namespaces is addressed without types, as everything else in members.
func namespaces() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("namespaces")
}

// ensureNamespace makes a namespace in the member, with our marks and what the
// control plane's namespace says to admission there, if there is none. One that
// exists and is not ours is used as it is.
func (s *Syncer) ensureNamespace(ctx context.Context, name string) error {
	if name == "" || s.member.knows(name) {
		return nil
	}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": name, "labels": map[string]any{v1alpha1.ManagedLabel: "true"},
			"annotations": map[string]any{v1alpha1.ClusterAnnotation: s.cluster}}}}
	_, err := s.member.dyn.Resource(namespaces()).Create(ctx, ns, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	if err := s.markNamespace(ctx, name); err != nil {
		return err
	}
	s.member.mu.Lock()
	s.member.made[name] = true
	s.member.mu.Unlock()
	return nil
}

// keepNamespace brings a namespace of the member in step with that of the control
// plane, if the member has it and it is ours. One that goes here and that nothing is
// bound in goes there; else it goes with the last object of it.
func (s *Syncer) keepNamespace(ctx context.Context, name string) error {
	if from, exists := s.Namespace(name); !exists || from.GetDeletionTimestamp() != nil {
		s.last.Lock()
		defer s.last.Unlock()
		if s.lastOf(nil, func(b *v1alpha1.ResourceBinding) bool { return b.Namespace == name }) {
			return s.removeNamespace(ctx, name)
		}
		return nil
	}
	if err := s.markNamespace(ctx, name); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// markNamespace applies labels and annotations: pod security goes by them. It is an
// apply apart from the creation, so that what is taken off a namespace here goes
// there too.
func (s *Syncer) markNamespace(ctx context.Context, name string) error {
	from, exists := s.Namespace(name)
	if !exists || from.GetDeletionTimestamp() != nil {
		return nil // nothing is known to say
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api := s.member.dyn.Resource(namespaces())
	live, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !s.oursAlone(live) {
		return nil
	}
	labels, annotations := interpret.NamespaceMarks(&unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"labels": anyMap(from.GetLabels()), "annotations": anyMap(from.GetAnnotations())}}})
	desired := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	desired.SetName(name)
	desired.SetUID(live.GetUID())
	desired.SetLabels(with(labels, v1alpha1.ManagedLabel, "true"))
	desired.SetAnnotations(with(annotations, v1alpha1.ClusterAnnotation, s.cluster))
	if _, err := api.Apply(ctx, name, desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		return fmt.Errorf("label namespace %s: %w", name, err)
	}
	return nil
}

// oursAlone tells whether this syncer made a namespace. Those of an older Atoll do
// not say which cluster's syncer did.
func (s *Syncer) oursAlone(ns *unstructured.Unstructured) bool {
	cluster := ns.GetAnnotations()[v1alpha1.ClusterAnnotation]
	return ns.GetLabels()[v1alpha1.ManagedLabel] == "true" && (cluster == "" || cluster == s.cluster) && ns.GetDeletionTimestamp() == nil
}

func with(m map[string]string, key, value string) map[string]string {
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

func (c *member) knows(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made[namespace]
}

func (c *member) forgetNamespace(name string) {
	c.mu.Lock()
	delete(c.made, name)
	c.mu.Unlock()
}

// removeNamespace deletes a namespace of the member if this fleet made it, the
// control plane has it no more (or the cluster leaves), and nothing is in it.
func (s *Syncer) removeNamespace(ctx context.Context, name string) error {
	c, joined := s.Cluster()
	if !joined {
		return nil
	}
	leaving, orphan := c.Leaves()
	if leaving && orphan {
		return nil
	}
	if !leaving {
		gone, err := s.NamespaceGone(ctx, name)
		if err != nil || !gone {
			return err
		}
	}
	return s.member.deleteEmptyNamespace(ctx, name)
}

func (c *member) deleteEmptyNamespace(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api := c.dyn.Resource(namespaces())
	ns, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at namespace %s: %w", name, err)
	}
	if ns.GetLabels()[v1alpha1.ManagedLabel] != "true" || ns.GetDeletionTimestamp() != nil {
		return nil
	}
	empty, err := c.empty(ctx, name)
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

// empty tells whether a namespace holds nothing that somebody put there: only
// what every namespace has, and what belongs to something else and goes with it.
func (c *member) empty(ctx context.Context, namespace string) (bool, error) {
	lists, err := c.discovery.ServerPreferredNamespacedResources()
	if err != nil {
		return false, fmt.Errorf("ask what namespace %s may hold: %w", namespace, err)
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
			if err != nil {
				return false, fmt.Errorf("look for %s in namespace %s: %w", r.Name, namespace, err)
			}
			for i := range items.Items {
				if !incidental(r.Kind, &items.Items[i].ObjectMeta) {
					return false, nil
				}
			}
		}
	}
	return true, nil
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
		return true // made for Services, which count themselves
	}
	return metav1.GetControllerOf(o) != nil
}
