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

// ownersView is the garbage collector's view of owner references.
//
// An object of a shared API group may name an owner that lives in a member cluster.
// Upstream's collector would look for it here, not find it, and delete the object for
// all members. In this view such an owner exists:
//
//   - Events, from which the collector builds its graph, omit these references. So the
//     collector neither looks for these owners nor lets an owner wait that is being
//     deleted.
//   - A single object, which the collector reads again before it deletes it, names in
//     their place a namespace that always exists. An existing owner protects the object
//     from deletion, and references to other owners that do not exist are removed.
//   - A patch that would remove such a reference is rejected as a conflict, and the
//     collector retries. It computes its patches from the informers' stores, which have
//     the original references; this check is for the few patches that it computes from
//     the single object above.
type ownersView struct {
	shared func(group string) bool
}

// load waits until the shared groups are known. The collector must not run before: it
// would treat a shared group like any other.
func (v *ownersView) load(ctx context.Context, sharedGroups func(context.Context) (func(string) bool, error)) error {
	const interval = 2 * time.Second
	return wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		shared, err := sharedGroups(ctx)
		if err != nil {
			if ctx.Err() == nil {
				klog.ErrorS(err, "garbage collection waits for the list of shared API groups; retrying")
			}
			return false, nil
		}
		v.shared = shared
		return true, nil
	})
}

// inMember reports whether a reference in an object of a shared group is to an owner
// that lives in a member cluster.
func (v *ownersView) inMember(ref metav1.OwnerReference) bool {
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	return err != nil || !v.shared(version.Group)
}

// followed returns the references of an object that the collector may follow. It
// returns a copy if it leaves any out.
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

// ownersInformers are the informers with the collector's view.
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

// ownersInformer overrides the one method by which the collector adds its handler.
type ownersInformer struct {
	cache.SharedIndexInformer
	group string
	view  *ownersView
}

func (i ownersInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(ownersHandler{handler, i.group, i.view}, resync)
}

// ownersHandler forwards additions and updates. The collector reads no references of
// deleted objects.
type ownersHandler struct {
	cache.ResourceEventHandler
	group string
	view  *ownersView
}

func (h ownersHandler) OnAdd(obj any, initial bool) {
	h.ResourceEventHandler.OnAdd(h.filtered(obj), initial)
}

func (h ownersHandler) OnUpdate(before, now any) {
	h.ResourceEventHandler.OnUpdate(h.filtered(before), h.filtered(now))
}

// filtered returns the object with only the references that may be followed. It does
// not change the original, which is in a cache.
func (h ownersHandler) filtered(obj any) any {
	object, isObject := obj.(runtime.Object)
	accessor, err := meta.Accessor(obj)
	if err != nil || !isObject {
		return obj // the collector logs it
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

// ownersClient is the metadata client with the collector's view.
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
		return nil, fmt.Errorf("get namespace %s as a placeholder for an owner in a member cluster: %w", metav1.NamespaceSystem, err)
	}
	object.OwnerReferences = append(followed, metav1.OwnerReference{
		APIVersion: "v1", Kind: "Namespace", Name: existing.Name, UID: existing.UID,
	})
	return object, nil
}

func (r ownersResource) Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (*metav1.PartialObjectMetadata, error) {
	if err := r.checkPatch(ctx, name, kind, patch); err != nil {
		return nil, err
	}
	return r.ResourceInterface.Patch(ctx, name, kind, patch, options, subresources...)
}

// checkPatch rejects a patch that would remove a reference to an owner in a member. The
// collector makes two kinds of patches. Only merge patches matter: a strategic patch
// names what to remove, and custom resources do not support it.
func (r ownersResource) checkPatch(ctx context.Context, name string, kind types.PatchType, patch []byte) error {
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
	// The patch carries the resourceVersion it applies to: if the object changes after
	// this read, the patch fails.
	object, err := r.ResourceInterface.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, ref := range object.OwnerReferences {
		kept := slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return o.UID == ref.UID })
		if !kept && r.client.view.inMember(ref) {
			return apierrors.NewConflict(r.resource.GroupResource(), name,
				fmt.Errorf("the patch would remove the owner reference to %s %s in a member cluster", ref.Kind, ref.Name))
		}
	}
	return nil
}
