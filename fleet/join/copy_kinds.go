package join

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// copyKinds knows how the kinds of copied objects are interpreted.
type copyKinds struct {
	atoll   dynamic.Interface
	mapper  meta.RESTMapper
	catalog interpret.Catalog
}

// newCopyKinds reads the customizations. Without permission to read them, the kinds are interpreted without.
func newCopyKinds(ctx context.Context, atoll dynamic.Interface, mapper meta.RESTMapper) (*copyKinds, error) {
	list, err := atoll.Resource(v1alpha1.ResourceInterpretationResource).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list the customizations of kinds: %w", err)
	}
	var found []*v1alpha1.ResourceInterpretation
	if err == nil {
		for i := range list.Items {
			one := &v1alpha1.ResourceInterpretation{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, one); err != nil {
				return nil, fmt.Errorf("read ResourceInterpretation %s: %w", list.Items[i].GetName(), err)
			}
			found = append(found, one)
		}
	}
	customizations, _ := interpret.Customizations(found) // those with errors are not in use
	return &copyKinds{atoll, mapper, interpret.BuiltIn().WithCustomizations(customizations...)}, nil
}

// find returns how a kind is interpreted, or an error if Atoll places no objects of it.
func (c *copyKinds) find(ctx context.Context, gk schema.GroupKind) (interpret.KindInfo, error) {
	if gk == (schema.GroupKind{Kind: "Namespace"}) {
		return interpret.KindInfo{}, errors.New("Atoll creates namespaces together with the objects in them: name these objects")
	}
	if k, known := c.catalog.Find(gk); known && !k.Custom {
		return k, nil
	}
	mapping, err := c.mapper.RESTMapping(gk)
	if err != nil {
		return interpret.KindInfo{}, fmt.Errorf("Atoll does not have the type %s: apply its CustomResourceDefinition to Atoll first: %w", gk, err)
	}
	definition, err := c.atoll.Resource(crdResource).Get(ctx, mapping.Resource.Resource+"."+gk.Group, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return interpret.KindInfo{}, fmt.Errorf("Atoll never places objects of kind %s in clusters: docs/kinds.md has the kinds that it places", gk)
	case err != nil:
		return interpret.KindInfo{}, fmt.Errorf("read the CustomResourceDefinition of %s: %w", gk, err)
	case definition.GetLabels()[v1alpha1.SharedLabel] == "true":
		return interpret.KindInfo{}, fmt.Errorf("clusters share the objects of %s in Atoll, so no cluster has any of its own", gk.Group)
	case interpret.StaysHome(emptyOf(mapping.GroupVersionKind)) != "":
		return interpret.KindInfo{}, errors.New(interpret.StaysHome(emptyOf(mapping.GroupVersionKind)))
	case interpret.HomeOf(definition, nil) == v1alpha1.HomeAbove:
		return interpret.KindInfo{}, fmt.Errorf("the label %s of its CustomResourceDefinition keeps objects of the type in Atoll", v1alpha1.HomeLabel)
	}
	if err := c.agreed(ctx, mapping.Resource); err != nil {
		return interpret.KindInfo{}, err
	}
	k, known := c.catalog.Find(gk)
	if known {
		k.GroupVersionKind, k.Resource, k.ClusterScoped = mapping.GroupVersionKind, mapping.Resource.Resource, mapping.Scope.Name() == meta.RESTScopeNameRoot
	} else if k, err = fleet.ReadKind(ctx, c.atoll, mapping.GroupVersionKind, mapping.Resource.Resource, mapping.Scope.Name() == meta.RESTScopeNameRoot); err != nil {
		return k, err
	}
	c.catalog = c.catalog.With(k)
	k, _ = c.catalog.Find(gk)
	return k, nil
}

// agreed returns an error if clusters have not agreed on a type. Then Atoll places none of its objects.
func (c *copyKinds) agreed(ctx context.Context, resource schema.GroupVersionResource) error {
	name := v1alpha1.NegotiatedName(resource)
	u, err := c.atoll.Resource(v1alpha1.NegotiatedAPIResourceResource).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read NegotiatedAPIResource %s: %w", name, err)
	}
	if err == nil {
		n := &v1alpha1.NegotiatedAPIResource{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, n); err != nil {
			return fmt.Errorf("read NegotiatedAPIResource %s: %w", name, err)
		}
		if meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NegotiatedPublished) || meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NegotiatedEnforced) {
			return nil
		}
	}
	return fmt.Errorf("Atoll places no objects of %s yet, because its type is not compared with the clusters': see `kubectl describe negotiatedapiresource %s`", resource.GroupResource(), name)
}

// order sorts kinds for creation: dependencies first, then autoscalers and the like, then workloads. So no
// workload is decided without its autoscaler.
func (c *copyKinds) order(k interpret.KindInfo) int {
	all := c.catalog.Kinds()
	at := slices.IndexFunc(all, func(o interpret.KindInfo) bool { return o.GroupKind() == k.GroupKind() })
	if k.Placed {
		at += len(all)
	}
	return at
}

// maxOwners is how many owners of owners are followed.
const maxOwners = 5

// whyOwned returns why an object with a controller is not copied: the controller would create another one. It
// names the owner that has no controller itself.
func (c *copyKinds) whyOwned(ctx context.Context, m *Member, obj *unstructured.Unstructured) string {
	top := metav1.GetControllerOf(obj)
	for range maxOwners {
		gvk := schema.FromAPIVersionAndKind(top.APIVersion, top.Kind)
		mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			break // Atoll does not have the type
		}
		namespace := obj.GetNamespace()
		if mapping.Scope.Name() == meta.RESTScopeNameRoot {
			namespace = ""
		}
		owner, err := m.get(ctx, mapping.Resource, namespace, top.Name)
		if err != nil || owner.GetUID() != top.UID || metav1.GetControllerOf(owner) == nil {
			break
		}
		top = metav1.GetControllerOf(owner)
	}
	gk := schema.FromAPIVersionAndKind(top.APIVersion, top.Kind).GroupKind()
	return fmt.Sprintf("a controller there makes it for %s %s: copy %s instead", top.Kind, top.Name,
		Name{GroupKind: gk, NamespacedName: types.NamespacedName{Name: top.Name}})
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func emptyOf(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}
