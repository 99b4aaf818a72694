package quotas

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// quotasIn returns the quotas of a namespace. Until the cache is filled, it reads them.
func (g *Gate) quotasIn(ctx context.Context, namespace string) ([]*v1alpha1.FleetQuota, error) {
	if g.quotas.Informer.HasSynced() {
		return g.quotas.In(namespace), nil
	}
	list, err := g.dyn.Resource(v1alpha1.FleetQuotaResource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // the type is not installed yet
	}
	if err != nil {
		return nil, fmt.Errorf("list the quotas: %w", err)
	}
	var out []*v1alpha1.FleetQuota
	for i := range list.Items {
		q := &v1alpha1.FleetQuota{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, q); err != nil {
			return nil, fmt.Errorf("read FleetQuota %s: %w", list.Items[i].GetName(), err)
		}
		out = append(out, q)
	}
	return out, nil
}

// kindOf returns how a kind is interpreted now. Without its name it is found by its resource.
func (g *Gate) kindOf(ctx context.Context, gvk schema.GroupVersionKind, resource string) (interpret.KindInfo, interpret.Catalog, error) {
	customizations, _ := interpret.Customizations(g.interpretations.All())
	catalog := interpret.BuiltIn().WithCustomizations(customizations...)
	for _, k := range catalog.Kinds() {
		if k.Group == gvk.Group && (k.Kind == gvk.Kind || gvk.Kind == "" && k.Resource == resource) {
			return k, catalog, nil
		}
	}
	k, err := fleet.ReadKind(ctx, g.dyn, gvk, resource, false)
	if err != nil {
		return k, catalog, err
	}
	catalog = catalog.With(k)
	k, _ = catalog.Find(k.GroupKind())
	return k, catalog, nil
}

// read returns an object, nil if it does not exist.
func (g *Gate) read(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	u, err := g.dyn.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check the quotas: read %s %s: %w", gvr.Resource, name, err)
	}
	return u, nil
}

// shares returns an object's shares of clusters.
func (g *Gate) shares(ctx context.Context, k interpret.KindInfo, namespace, name string) ([]v1alpha1.ClusterShare, error) {
	u, err := g.read(ctx, v1alpha1.ResourceBindingResource, namespace, v1alpha1.BindingName(k.GroupKind(), name))
	if err != nil || u == nil {
		return nil, err
	}
	b, err := controllers.Decode[v1alpha1.ResourceBinding](u)
	if err != nil {
		return nil, err
	}
	binding, ok := b.(*v1alpha1.ResourceBinding)
	if !ok {
		return nil, errors.New("check the quotas: the object's binding cannot be decoded")
	}
	return binding.Decided(), nil
}

// autoscalerOf returns the autoscaler of an object, nil if it has none.
func (g *Gate) autoscalerOf(ctx context.Context, gk schema.GroupKind, namespace, name string) (*unstructured.Unstructured, error) {
	scaler, found := interpret.BuiltIn().Find(interpret.AutoscalerKind())
	if !found {
		return nil, nil
	}
	list, err := g.dyn.Resource(scaler.GVR()).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // this control plane serves no autoscalers
	}
	if err != nil {
		return nil, fmt.Errorf("check the quotas: list the autoscalers: %w", err)
	}
	for i := range list.Items {
		targets, err := scaler.Follows(&list.Items[i])
		if err != nil {
			continue
		}
		for _, t := range targets {
			if t.To.GroupKind == gk && t.To.Namespace == namespace && t.To.Name == name {
				return &list.Items[i], nil
			}
		}
	}
	return nil, nil
}
