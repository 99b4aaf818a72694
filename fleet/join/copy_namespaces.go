package join

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// findNamespaces adds the namespaces of the copies that Atoll lacks, with the labels and annotations that they
// have in the member. It returns the labels of all namespaces of copies.
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
	live, err := c.member.get(ctx, namespaceResource, "", name)
	switch {
	case apierrors.IsForbidden(err):
		return out, nil
	case err != nil:
		return nil, fmt.Errorf("read namespace %s in cluster %s: %w", name, c.member.Cluster, err)
	}
	labels, annotations := interpret.NamespaceMetadata(live)
	out.SetLabels(labels)
	out.SetAnnotations(annotations)
	return out, nil
}
