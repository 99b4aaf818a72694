package join

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// findNamespaces adds the namespaces of the copies that Atoll lacks, with the labels and annotations that they
// have in the member, and those that are not adopted in the member. It returns the labels of all namespaces of copies.
func (c *copier) findNamespaces(ctx context.Context) (map[string]map[string]string, error) {
	found := map[string]map[string]string{}
	for _, one := range c.plan.Copies {
		if _, looked := found[one.Namespace]; looked || one.Namespace == "" {
			continue
		}
		exists, err := c.atoll.Resource(namespaceResource).Get(ctx, one.Namespace, metav1.GetOptions{})
		switch {
		case err == nil:
			found[one.Namespace] = exists.GetLabels()
			if err := c.findAdopted(ctx, exists); err != nil {
				return nil, err
			}
		case apierrors.IsForbidden(err): // without permission to look, it is taken to exist
			found[one.Namespace] = nil
		case apierrors.IsNotFound(err):
			missing, err := c.missingNamespace(ctx, one.Namespace)
			if err != nil {
				return nil, err
			}
			found[one.Namespace] = missing.GetLabels()
			c.plan.namespaces = append(c.plan.namespaces, missing)
			c.note("namespace %s does not exist in Atoll, so it is created with the labels that it has in %s", one.Namespace, c.member.Cluster)
		default:
			return nil, fmt.Errorf("read namespace %s in Atoll: %w", one.Namespace, err)
		}
	}
	return found, nil
}

func (c *copier) missingNamespace(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	out.SetName(name)
	out.SetAnnotations(map[string]string{v1alpha1.AdoptAnnotation: c.member.Cluster})
	live, err := c.member.get(ctx, namespaceResource, "", name)
	switch {
	case apierrors.IsForbidden(err):
		return out, nil
	case err != nil:
		return nil, fmt.Errorf("read namespace %s in cluster %s: %w", name, c.member.Cluster, err)
	}
	labels, annotations := interpret.NamespaceMetadata(live)
	out.SetLabels(labels)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AdoptAnnotation] = c.member.Cluster
	out.SetAnnotations(annotations)
	return out, nil
}

// findAdopted adds a namespace of Atoll to those to adopt in the member, unless it is adopted there or the fleet's.
func (c *copier) findAdopted(ctx context.Context, ns *unstructured.Unstructured) error {
	value := ns.GetAnnotations()[v1alpha1.AdoptAnnotation]
	if v1alpha1.Adopts(value, c.member.Cluster) || interpret.ReservedNamespace(ns.GetName()) != "" {
		return nil
	}
	live, err := c.member.get(ctx, namespaceResource, "", ns.GetName())
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read namespace %s in cluster %s: %w", ns.GetName(), c.member.Cluster, err)
	case live.GetLabels()[v1alpha1.ManagedLabel] == "true" && live.GetAnnotations()[v1alpha1.ClusterAnnotation] == c.member.Cluster:
		return nil
	}
	c.plan.adopted = append(c.plan.adopted, Conflict{Name{namespaceKind, types.NamespacedName{Name: ns.GetName()}}, ns.GetUID(), namespaceResource, []string{c.member.Cluster}})
	c.note("namespace %s exists in %s already, so it is adopted there", ns.GetName(), c.member.Cluster)
	return nil
}
