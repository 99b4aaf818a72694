package fleet

import (
	"context"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// customType is a CustomResourceDefinition without its schemas.
type customType struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Group string `json:"group"`
		Scope string `json:"scope"`
		Names struct {
			Plural string `json:"plural"`
			Kind   string `json:"kind"`
		} `json:"names"`
		Versions []customVersion `json:"versions"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

type customVersion struct {
	Name         string `json:"name"`
	Served       bool   `json:"served"`
	Storage      bool   `json:"storage"`
	Subresources struct {
		Status *struct{} `json:"status"`
		Scale  *struct {
			SpecReplicasPath   string `json:"specReplicasPath"`
			StatusReplicasPath string `json:"statusReplicasPath"`
		} `json:"scale"`
	} `json:"subresources"`
}

func (c *customType) kind() schema.GroupKind {
	return schema.GroupKind{Group: c.Spec.Group, Kind: c.Spec.Names.Kind}
}

func (c *customType) established() bool {
	return meta.IsStatusConditionTrue(c.Status.Conditions, "Established")
}

// ours reports whether a type is one of the control plane's own, or a shared type. Both exist only
// here.
func (c *customType) ours() bool {
	return c.Spec.Group == "atoll.dev" || strings.HasSuffix(c.Spec.Group, ".atoll.dev") || c.Labels[v1alpha1.SharedLabel] == "true"
}

// version chooses the version in which objects are read here and written to clusters: of the
// allowed ones the storage version, or else the most stable and newest.
func (c *customType) version(allowed func(version string) bool) (customVersion, bool) {
	var best customVersion
	for _, v := range c.Spec.Versions {
		if !v.Served || !allowed(v.Name) {
			continue
		}
		if best.Name == "" || v.Storage || !best.Storage && version.CompareKubeAwareVersionStrings(v.Name, best.Name) > 0 {
			best = v
		}
	}
	return best, best.Name != ""
}

// scale returns where a version keeps its replicas, or nil if it has no scale subresource.
func (v *customVersion) scale() *interpret.Scale {
	if v.Subresources.Scale == nil {
		return nil
	}
	path := func(p string) []string {
		if p == "" {
			return nil
		}
		return strings.Split(strings.TrimPrefix(p, "."), ".")
	}
	return &interpret.Scale{Replicas: path(v.Subresources.Scale.SpecReplicasPath), StatusReplicas: path(v.Subresources.Scale.StatusReplicasPath)}
}

// ReadKind returns a custom kind as its CRD defines it; the name of the kind may be empty. Without a CRD, the
// kind has no namespace if clusterScoped is true. It is for parts without a Session.
func ReadKind(ctx context.Context, dyn dynamic.Interface, gvk schema.GroupVersionKind, resource string, clusterScoped bool) (interpret.KindInfo, error) {
	u, err := dyn.Resource(crdResource()).Get(ctx, resource+"."+gvk.Group, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return interpret.KindInfo{}, fmt.Errorf("read the CustomResourceDefinition of %s: %w", gvk.GroupKind(), err)
	}
	var scale *interpret.Scale
	if err == nil {
		crd := &customType{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd); err != nil {
			return interpret.KindInfo{}, fmt.Errorf("read the CustomResourceDefinition of %s: %w", gvk.GroupKind(), err)
		}
		gvk.Kind, clusterScoped = crd.Spec.Names.Kind, crd.Spec.Scope == "Cluster"
		for _, v := range crd.Spec.Versions {
			if v.Name == gvk.Version {
				scale = v.scale()
			}
		}
	}
	return interpret.Generic(gvk, resource, clusterScoped, scale), nil
}

func kindDefined(obj any) ([]string, error) {
	if c, ok := obj.(*customType); ok {
		return []string{c.kind().String()}, nil
	}
	return nil, nil
}

// decodeWithout is controllers.Decode for an object without one field.
func decodeWithout[T any](field ...string) cache.TransformFunc {
	return func(obj any) (any, error) {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			obj = &unstructured.Unstructured{Object: withoutField(u.Object, field)}
		}
		return controllers.Decode[T](obj)
	}
}

// withoutField returns a copy of an object without one field. The object itself is not changed.
func withoutField(object map[string]any, path []string) map[string]any {
	out := maps.Clone(object)
	if inner, ok := out[path[0]].(map[string]any); ok && len(path) > 1 {
		out[path[0]] = withoutField(inner, path[1:])
	} else {
		delete(out, path[0])
	}
	return out
}
