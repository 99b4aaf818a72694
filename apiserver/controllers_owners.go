package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// ownersView is what the garbage collector sees of owner references.
//
// An object of a shared API group may name an owner that lives in a member
// cluster. Upstream's collector would look for it here, not find it, and delete
// the object for all members. In this view such an owner is one that exists:
//
//   - Events, from which the collector builds its graph, leave these references
//     out, so that it neither looks for the owners nor makes one that is being
//     deleted wait.
//   - A single object, which it reads again before it deletes, names a namespace
//     that is always there in their place. An owner that exists saves an object
//     from deletion, and references to others that do not are taken away.
//   - A patch of references that would lose one of them is refused as a conflict,
//     and the collector tries again. It makes its patches from the informers'
//     stores, which have the references as they are; this is for the few that
//     it makes from the above.
type ownersView struct {
	shared func(group string) bool
}

// learn waits until it is known which groups are shared. Before, the collector
// must not run: it would take a shared group for any other.
func (v *ownersView) learn(ctx context.Context, sharedGroups func(context.Context) (func(string) bool, error)) error {
	const interval = 2 * time.Second
	return wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		shared, err := sharedGroups(ctx)
		if err != nil {
			if ctx.Err() == nil {
				klog.ErrorS(err, "Garbage collection waits until it is known which API groups are shared; asking again")
			}
			return false, nil
		}
		v.shared = shared
		return true, nil
	})
}

// inMember tells whether a reference of an object of a shared group is to an
// owner that lives in a member cluster.
func (v *ownersView) inMember(ref metav1.OwnerReference) bool {
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	return err != nil || !v.shared(version.Group)
}

// followed are the references of an object of that group that the collector may
// follow. It is a copy if it is not all of them.
func (v *ownersView) followed(group string, refs []metav1.OwnerReference) []metav1.OwnerReference {
	if len(refs) == 0 || !v.shared(group) || !slices.ContainsFunc(refs, v.inMember) {
		return refs
	}
	return slices.DeleteFunc(slices.Clone(refs), v.inMember)
}

// resourceInformers is upstream's informerfactory.InformerFactory.
type resourceInformers interface {
	ForResource(schema.GroupVersionResource) (informers.GenericInformer, error)
	Start(stop <-chan struct{})
}

// ownersInformers are caches as the collector sees them.
type ownersInformers struct {
	resourceInformers
	view *ownersView
}

func (f ownersInformers) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	informer, err := f.resourceInformers.ForResource(resource)
	if err != nil {
		return nil, err
	}
	return ownersGenericInformer{informer, resource.Group, f.view}, nil
}

type ownersGenericInformer struct {
	informers.GenericInformer
	group string
	view  *ownersView
}

func (i ownersGenericInformer) Informer() cache.SharedIndexInformer {
	return ownersInformer{i.GenericInformer.Informer(), i.group, i.view}
}

// ownersInformer changes the one way in which the collector adds its handler.
type ownersInformer struct {
	cache.SharedIndexInformer
	group string
	view  *ownersView
}

func (i ownersInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(ownersHandler{handler, i.group, i.view}, resync)
}

// ownersHandler passes additions and updates on. Of what is deleted, the
// collector reads no references.
type ownersHandler struct {
	cache.ResourceEventHandler
	group string
	view  *ownersView
}

func (h ownersHandler) OnAdd(obj any, initial bool) {
	h.ResourceEventHandler.OnAdd(h.seen(obj), initial)
}

func (h ownersHandler) OnUpdate(before, now any) {
	h.ResourceEventHandler.OnUpdate(h.seen(before), h.seen(now))
}

// seen is the object with the references that may be followed. The object itself
// is in a cache, and is left as it is.
func (h ownersHandler) seen(obj any) any {
	object, isObject := obj.(runtime.Object)
	accessor, err := meta.Accessor(obj)
	if err != nil || !isObject {
		return obj // the collector tells of it
	}
	followed := h.view.followed(h.group, accessor.GetOwnerReferences())
	if len(followed) == len(accessor.GetOwnerReferences()) {
		return obj
	}
	seen := object.DeepCopyObject()
	if accessor, err = meta.Accessor(seen); err == nil {
		accessor.SetOwnerReferences(followed)
	}
	return seen
}

// ownersClient is the metadata client as the collector sees it.
type ownersClient struct {
	metadata.Interface
	view *ownersView
}

func (c ownersClient) Resource(resource schema.GroupVersionResource) metadata.Getter {
	getter := c.Interface.Resource(resource)
	return ownersGetter{ownersResource{getter, resource, c}, getter}
}

type ownersGetter struct {
	ownersResource
	getter metadata.Getter
}

func (g ownersGetter) Namespace(namespace string) metadata.ResourceInterface {
	return ownersResource{g.getter.Namespace(namespace), g.resource, g.client}
}

type ownersResource struct {
	metadata.ResourceInterface
	resource schema.GroupVersionResource
	client   ownersClient
}

func (r ownersResource) Get(ctx context.Context, name string, options metav1.GetOptions, subresources ...string) (*metav1.PartialObjectMetadata, error) {
	object, err := r.ResourceInterface.Get(ctx, name, options, subresources...)
	if err != nil {
		return nil, err
	}
	followed := r.client.view.followed(r.resource.Group, object.OwnerReferences)
	if len(followed) == len(object.OwnerReferences) {
		return object, nil
	}
	existing, err := r.client.Interface.Resource(v1.SchemeGroupVersion.WithResource("namespaces")).
		Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look for namespace %s in the place of an owner in a member: %w", metav1.NamespaceSystem, err)
	}
	object.OwnerReferences = append(followed, metav1.OwnerReference{
		APIVersion: "v1", Kind: "Namespace", Name: existing.Name, UID: existing.UID,
	})
	return object, nil
}

func (r ownersResource) Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (*metav1.PartialObjectMetadata, error) {
	if err := r.mayPatch(ctx, name, kind, patch); err != nil {
		return nil, err
	}
	return r.ResourceInterface.Patch(ctx, name, kind, patch, options, subresources...)
}

// mayPatch refuses to replace the references of an object by others that lack
// one to an owner in a member. Of the two kinds of patches that the collector
// makes, the strategic one names what goes, and custom resources do not know it.
func (r ownersResource) mayPatch(ctx context.Context, name string, kind types.PatchType, patch []byte) error {
	if kind != types.MergePatchType || !r.client.view.shared(r.resource.Group) {
		return nil
	}
	var change struct {
		Metadata map[string]json.RawMessage `json:"metadata"`
	}
	if err := json.Unmarshal(patch, &change); err != nil {
		return fmt.Errorf("patch %s %s: %w", r.resource.Resource, name, err)
	}
	raw, replaces := change.Metadata["ownerReferences"]
	if !replaces {
		return nil
	}
	var owners []metav1.OwnerReference
	if err := json.Unmarshal(raw, &owners); err != nil {
		return fmt.Errorf("patch %s %s: %w", r.resource.Resource, name, err)
	}
	// The patch names the version that it is for: if the object changes after
	// this look at it, the patch fails.
	object, err := r.ResourceInterface.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, ref := range object.OwnerReferences {
		kept := slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return o.UID == ref.UID })
		if !kept && r.client.view.inMember(ref) {
			return apierrors.NewConflict(r.resource.GroupResource(), name,
				fmt.Errorf("the patch would take away the reference to %s %s in a member cluster", ref.Kind, ref.Name))
		}
	}
	return nil
}
