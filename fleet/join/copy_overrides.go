package join

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/override"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// overrider changes copies for their cluster, as Atoll's policies would.
type overrider struct {
	cluster  string
	fleet    *placement.Fleet
	policies *placement.Policies
	// labels of the namespaces of copies.
	labels map[string]map[string]string
}

// readOverrider reads the policies that may select the copies. It returns nil if the user has no permission to.
func readOverrider(ctx context.Context, atoll dynamic.Interface, cluster *v1alpha1.Cluster, labels map[string]map[string]string) (*overrider, error) {
	var own []*v1alpha1.Placement
	for namespace := range labels {
		found, err := listTyped[v1alpha1.Placement](ctx, atoll, v1alpha1.PlacementResource, namespace)
		if apierrors.IsForbidden(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		own = append(own, found...)
	}
	general, err := listTyped[v1alpha1.ClusterPlacement](ctx, atoll, v1alpha1.ClusterPlacementResource, "")
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	fleet := placement.NewFleet([]placement.Cluster{placement.FromCluster(cluster, time.Time{})})
	return &overrider{cluster.Name, fleet, placement.NewPolicies(own, general, nil), labels}, nil
}

// apply returns a prepared object with the overrides of the policy that decides about it.
func (o *overrider) apply(one Copy, prepared *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	choice := o.policies.For(placement.PolicyTarget{GroupKind: one.GroupKind, Namespace: one.Namespace, Name: one.Name.Name,
		Labels: one.Object.GetLabels(), NamespaceLabels: o.labels[one.Namespace]})
	if choice.Err != nil || choice.Policy == nil {
		return prepared, nil // Atoll does nothing by an invalid policy
	}
	overrides, _ := choice.Policy.Overrides(o.fleet, one.kind.Group, one.kind.GroupVersionKind.Kind, []string{o.cluster})
	out, err := override.Apply(prepared, overrides)
	if err != nil {
		return nil, fmt.Errorf("override %s for cluster %s: %w", one.Name, o.cluster, err)
	}
	return out, nil
}

// listTyped returns all objects of a resource in Atoll; of all namespaces if namespace is "".
func listTyped[T any](ctx context.Context, atoll dynamic.Interface, resource schema.GroupVersionResource, namespace string) ([]*T, error) {
	options := metav1.ListOptions{Limit: 500}
	var out []*T
	for {
		list, err := atoll.Resource(resource).Namespace(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		for i := range list.Items {
			one := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, one); err != nil {
				return nil, fmt.Errorf("read %s %s: %w", resource.Resource, list.Items[i].GetName(), err)
			}
			out = append(out, one)
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return out, nil
		}
	}
}
