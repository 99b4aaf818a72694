package imports

import (
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// Indices of the imports' cache.
const (
	byLocation = "location"
	byType     = "type"
)

// imported is an APIResourceImport in the cache. A thousand members of one release serve the
// same types: each distinct schema is kept once.
type imported struct {
	*v1alpha1.APIResourceImport // without its schema
	schema                      unique.Handle[string]
	digest                      string
}

func (i *imported) typ() schema.GroupResource { return i.Spec.Resource().GroupResource() }

// negotiated is a NegotiatedAPIResource in the cache, with its schema shared likewise.
type negotiated struct {
	*v1alpha1.NegotiatedAPIResource
	schema unique.Handle[string]
	digest string
}

func (n *negotiated) typ() schema.GroupResource { return n.Spec.Resource().GroupResource() }

// cachedCRD is the part of a control plane's CRD that is kept in memory: enough to detect
// changes. The full CRD is read when needed.
type cachedCRD struct {
	metav1.ObjectMeta
	typ schema.GroupResource
	// state contains everything that negotiation depends on.
	state crdState
}

type crdState struct {
	uid               string
	generation        int64
	ours, established bool
	leaving           bool
}

func cacheCRD(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(u.Object, "spec", "names", "plural")
	return &cachedCRD{
		ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()},
		typ:        schema.GroupResource{Group: group, Resource: plural},
		state: crdState{uid: string(u.GetUID()), generation: u.GetGeneration(), ours: isOurs(u),
			established: conditionOf(u, "Established") == "True", leaving: u.GetDeletionTimestamp() != nil},
	}, nil
}

// isOurs reports whether the fleet created a CRD.
func isOurs(crd metav1.Object) bool { return crd.GetLabels()[v1alpha1.PublishedLabel] == "true" }

func conditionOf(u *unstructured.Unstructured, name string) string {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if fields, ok := c.(map[string]any); ok && fields["type"] == name {
			status, _ := fields["status"].(string)
			return status
		}
	}
	return ""
}

func watchImports(client dynamic.Interface) controllers.Cache[imported] {
	return controllers.NewCache[imported](client, v1alpha1.APIResourceImportResource, controllers.CacheOptions{Transform: cacheImport, Indexers: cache.Indexers{
		byLocation: indexed(func(i *imported) string { return i.Spec.Location }),
		byType:     indexed(func(i *imported) string { return i.typ().String() }),
	}})
}

// cacheImport converts an import for the cache, where equal schemas are shared.
func cacheImport(obj any) (any, error) {
	whole, err := controllers.Decode[v1alpha1.APIResourceImport](obj)
	i, ok := whole.(*v1alpha1.APIResourceImport)
	if err != nil || !ok {
		return obj, err // as with Decode: ignored by lookups
	}
	out := &imported{APIResourceImport: i, schema: unique.Make(string(i.Spec.OpenAPIV3Schema.Raw))}
	out.digest, err = digestOf(&i.Spec.CommonAPIResourceSpec, i.Spec.OpenAPIV3Schema.Raw)
	i.Spec.OpenAPIV3Schema = runtime.RawExtension{}
	return out, err
}

func watchNegotiated(client dynamic.Interface) controllers.Cache[negotiated] {
	return controllers.NewCache[negotiated](client, v1alpha1.NegotiatedAPIResourceResource, controllers.CacheOptions{Transform: cacheNegotiated, Indexers: cache.Indexers{
		byType: indexed(func(n *negotiated) string { return n.typ().String() }),
	}})
}

func cacheNegotiated(obj any) (any, error) {
	whole, err := controllers.Decode[v1alpha1.NegotiatedAPIResource](obj)
	n, ok := whole.(*v1alpha1.NegotiatedAPIResource)
	if err != nil || !ok {
		return obj, err
	}
	out := &negotiated{NegotiatedAPIResource: n, schema: unique.Make(string(n.Spec.OpenAPIV3Schema.Raw))}
	out.digest, err = digestOf(&n.Spec.CommonAPIResourceSpec, n.Spec.OpenAPIV3Schema.Raw)
	n.Spec.OpenAPIV3Schema = runtime.RawExtension{}
	return out, err
}

func indexed[T any](by func(*T) string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		if t, ok := obj.(*T); ok {
			return []string{by(t)}, nil
		}
		return nil, nil
	}
}
