package fleet

import (
	"maps"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// typeCaches hold the objects that determine the custom kinds: the control plane's CRDs, the
// negotiated types, the imports of each cluster, and the customizations. They drop the schemas,
// which are most of these objects.
type typeCaches struct {
	crds, negotiated, imports, interpretations cache.SharedIndexInformer
	// changed receives an element when one of these objects may have changed.
	changed chan struct{}

	mu sync.Mutex
	// deleted are the kinds whose CRDs were seen being deleted.
	deleted map[schema.GroupKind]bool
}

const byType = "type"

func crdResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

func newTypeCaches(dyn dynamic.Interface) *typeCaches {
	return &typeCaches{
		crds:       informer(dyn, crdResource(), cache.Indexers{byKind: kindDefined}, DecodeAs[customType]),
		negotiated: informer(dyn, v1alpha1.NegotiatedAPIResourceResource, nil, decodeWithout[v1alpha1.NegotiatedAPIResource]("spec", "openAPIV3Schema")),
		imports: informer(dyn, v1alpha1.APIResourceImportResource, cache.Indexers{byType: typeImported},
			decodeWithout[v1alpha1.APIResourceImport]("spec", "openAPIV3Schema")),
		interpretations: informer(dyn, v1alpha1.ResourceInterpretationResource, nil, DecodeAs[v1alpha1.ResourceInterpretation]),
		changed:         make(chan struct{}, 1),
		deleted:         map[schema.GroupKind]bool{},
	}
}

func (c *typeCaches) all() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.crds, c.negotiated, c.imports, c.interpretations}
}

// wake signals that a type may have changed. It never blocks.
func (c *typeCaches) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// recordDeletion records whether a CRD was being deleted: after it is gone, that can no longer be
// seen.
func (c *typeCaches) recordDeletion(was, is *customType) {
	last := is
	if is == nil {
		last = was
	}
	c.mu.Lock()
	if last.DeletionTimestamp != nil {
		c.deleted[last.kind()] = true
	} else if is != nil {
		delete(c.deleted, is.kind())
	}
	c.mu.Unlock()
	c.wake()
}

func (c *typeCaches) wasDeleted(gk schema.GroupKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deleted[gk]
}

// decodeWithout is DecodeAs for an object without one field.
func decodeWithout[T any](field ...string) cache.TransformFunc {
	return func(obj any) (any, error) {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			obj = &unstructured.Unstructured{Object: withoutField(u.Object, field)}
		}
		return DecodeAs[T](obj)
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

func kindDefined(obj any) ([]string, error) {
	if c, ok := obj.(*customType); ok {
		return []string{c.kind().String()}, nil
	}
	return nil, nil
}

func typeImported(obj any) ([]string, error) {
	if i, ok := obj.(*v1alpha1.APIResourceImport); ok {
		return []string{typeIn(i.Spec.GroupVersionKind().GroupKind(), i.Spec.Location)}, nil
	}
	return nil, nil
}

// typeIn identifies a cluster's type, regardless of the version.
func typeIn(gk schema.GroupKind, cluster string) string { return cluster + "/" + gk.String() }

// defines returns the CRD that defines a kind.
func (c *typeCaches) defines(gk schema.GroupKind) (*customType, bool) {
	items, err := c.crds.GetIndexer().ByIndex(byKind, gk.String())
	if err != nil || len(items) == 0 {
		return nil, false
	}
	for _, item := range items {
		// If two CRDs define one kind, the API server establishes one of them.
		if t, ok := item.(*customType); ok && (t.established() || len(items) == 1) {
			return t, true
		}
	}
	return nil, false
}

// agreed reports whether clusters accept a version of a type as the control plane defines it: it
// was negotiated, or a user's CRD is enforced.
func (c *typeCaches) agreed(gvr schema.GroupVersionResource) bool {
	n, ok := get[v1alpha1.NegotiatedAPIResource](c.negotiated, v1alpha1.NegotiatedName(gvr))
	return ok && (meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NegotiatedPublished) ||
		meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NegotiatedEnforced))
}
