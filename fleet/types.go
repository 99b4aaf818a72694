package fleet

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Types are the types that custom kinds have, and which clusters accept them: the control plane's
// CRDs, the negotiated types, and the imports of each cluster. The caches drop the schemas, which are
// most of these objects.
type Types struct {
	dynamic    dynamic.Interface
	crds       controllers.Cache[customType]
	negotiated controllers.Cache[v1alpha1.NegotiatedAPIResource]
	imports    controllers.Cache[v1alpha1.APIResourceImport]

	mu sync.Mutex
	// deleted are the kinds whose CRDs were seen being deleted.
	deleted map[schema.GroupKind]bool
}

const byType = "type"

func crdResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

func newTypes(dyn dynamic.Interface) *Types {
	return &Types{
		dynamic: dyn,
		crds:    controllers.NewCache[customType](dyn, crdResource(), controllers.CacheOptions{Indexers: cache.Indexers{byKind: kindDefined}}),
		negotiated: controllers.NewCache[v1alpha1.NegotiatedAPIResource](dyn, v1alpha1.NegotiatedAPIResourceResource,
			controllers.CacheOptions{Transform: decodeWithout[v1alpha1.NegotiatedAPIResource]("spec", "openAPIV3Schema")}),
		imports: controllers.NewCache[v1alpha1.APIResourceImport](dyn, v1alpha1.APIResourceImportResource, controllers.CacheOptions{
			Indexers: cache.Indexers{byType: typeImported}, Transform: decodeWithout[v1alpha1.APIResourceImport]("spec", "openAPIV3Schema")}),
		deleted: map[schema.GroupKind]bool{},
	}
}

// recordDeletion records whether a CRD was being deleted: after it is gone, that can no longer be
// seen.
func (c *Types) recordDeletion(was, is *customType) {
	last := is
	if is == nil {
		last = was
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if last.DeletionTimestamp != nil {
		c.deleted[last.kind()] = true
	} else if is != nil {
		delete(c.deleted, is.kind())
	}
}

func (c *Types) wasDeleted(gk schema.GroupKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deleted[gk]
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
func (c *Types) defines(gk schema.GroupKind) (*customType, bool) {
	found := c.crds.By(byKind, gk.String())
	for _, t := range found {
		// If two CRDs define one kind, the API server establishes one of them.
		if t.established() || len(found) == 1 {
			return t, true
		}
	}
	return nil, false
}

// agreed reports whether clusters accept a version of a type as the control plane defines it: it
// was negotiated, or a user's CRD is enforced.
func (c *Types) agreed(gvr schema.GroupVersionResource) bool {
	n, ok := c.negotiated.Get(v1alpha1.NegotiatedName(gvr))
	return ok && (meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NegotiatedPublished) ||
		meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NegotiatedEnforced))
}

// ServedBy reports whether a cluster accepts objects of a kind in a version, and the reason if
// not. Every cluster has the kinds that are built into the API server.
func (c *Types) ServedBy(cluster string, gvk schema.GroupVersionKind) (bool, string) {
	t, custom := c.defines(gvk.GroupKind())
	if !custom {
		return true, ""
	}
	i, ok := c.imports.Get(v1alpha1.ImportName(gvk.GroupVersion().WithResource(t.Spec.Names.Plural), cluster))
	if !ok {
		return false, c.notServed(cluster, gvk)
	}
	return ImportServes(i)
}

// ImportServes reports whether a cluster accepts objects of a type, going by the conditions of its
// import, and the reason if not.
func ImportServes(i *v1alpha1.APIResourceImport) (bool, string) {
	for _, need := range []string{v1alpha1.ImportAvailable, v1alpha1.ImportCompatible} {
		condition := conditionOf(i.Status.Conditions, need)
		if condition.Status == metav1.ConditionTrue {
			continue
		}
		why := condition.Message
		if why == "" {
			why = "not checked yet"
		}
		return false, fmt.Sprintf("type %s of the cluster is not %s: %s", i.Spec.GroupVersionKind().GroupKind(), need, why)
	}
	return true, ""
}

func (c *Types) notServed(cluster string, gvk schema.GroupVersionKind) string {
	for _, i := range c.imports.By(byType, typeIn(gvk.GroupKind(), cluster)) {
		return fmt.Sprintf("the cluster serves %s in version %s, not in %s", gvk.GroupKind(), i.Spec.GroupVersion.Version, gvk.Version)
	}
	return fmt.Sprintf("the cluster does not serve %s", gvk.GroupKind())
}

func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	for _, c := range conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}
}

// OnServedBy calls f when the result of ServedBy may have changed for a cluster and kind.
func (c *Types) OnServedBy(f func(cluster string, gk schema.GroupKind)) error {
	return c.imports.OnChange(func(was, is *v1alpha1.APIResourceImport) {
		if was != nil && is != nil && verdict(was) == verdict(is) {
			return
		}
		i := is
		if i == nil {
			i = was
		}
		f(i.Spec.Location, i.Spec.GroupVersionKind().GroupKind())
	})
}

// verdict returns the conditions that ServedBy depends on.
func verdict(i *v1alpha1.APIResourceImport) [2]metav1.ConditionStatus {
	return [2]metav1.ConditionStatus{conditionOf(i.Status.Conditions, v1alpha1.ImportAvailable).Status,
		conditionOf(i.Status.Conditions, v1alpha1.ImportCompatible).Status}
}

// Gone reports whether a kind was custom and its CRD is gone. It reads the CRD from the API,
// not from the cache. A kind that is built into Kubernetes and disabled in this control plane is
// not gone: it may be enabled again.
func (c *Types) Gone(ctx context.Context, k interpret.KindInfo) (bool, error) {
	if _, known := c.defines(k.GroupKind()); known {
		return false, nil
	}
	if Native(k.GroupKind()) {
		return false, nil
	}
	name := k.GVR().GroupResource().String()
	_, err := c.dynamic.Resource(crdResource()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return false, nil
	case !apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return false, fmt.Errorf("check that type %s is gone: %w", name, err)
	}
	return true, nil
}

// Deleted reports whether this session has seen a user delete the CRD of a custom kind: it is
// being deleted, or was seen being deleted before it disappeared. The API server deletes the
// objects of such a type, so the user requested that too.
func (c *Types) Deleted(gk schema.GroupKind) bool {
	if t, known := c.defines(gk); known {
		return t.DeletionTimestamp != nil
	}
	return c.wasDeleted(gk)
}

// Vanished reports whether the CRD of a custom kind is missing and this session has not seen
// its deletion. No user requested the removal of its objects.
func (c *Types) Vanished(gk schema.GroupKind) bool {
	_, known := c.defines(gk)
	return !known && !Native(gk) && !c.wasDeleted(gk)
}

// Native reports whether a kind of the built-in table, or that of Namespaces, is also built into API
// servers. The others come from CRDs in any cluster.
func Native(gk schema.GroupKind) bool {
	k, known := interpret.Find(gk)
	return known && !k.Custom || interpret.IsNamespace(gk)
}
