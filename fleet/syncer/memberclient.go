package syncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// requestTimeout bounds each request to the member, so that a member that accepts connections
// and never responds does not hold a worker for long.
const requestTimeout = 15 * time.Second

// memberClient reads and writes one member cluster.
type memberClient struct {
	dyn       dynamic.Interface
	meta      metadata.Interface
	discovery discovery.DiscoveryInterface
	volumes   volumeClient
	onChange  func(types.NamespacedName)
	// keeps reports whether the object of a binding is cached.
	keeps func(types.NamespacedName) bool
	// onWatchable is called for a kind that became watchable in the member, or stopped being
	// so.
	onWatchable func(interpret.KindInfo)

	ctx         context.Context // context of the watches; set by start
	running     sync.WaitGroup
	mu          sync.Mutex
	watches     map[schema.GroupVersionResource]kindWatch
	namespaces  map[string]bool // those that are known to exist, and to take objects of all kinds
	unwatchable map[schema.GroupVersionResource]error
}

// kindWatch is the watch of one kind in the member.
type kindWatch struct {
	cache.SharedIndexInformer
	stop context.CancelFunc
	// syncDeadline is done when the cache is no longer waited for.
	syncDeadline context.Context
}

// syncTimeout is how long to wait for a kind's cache after its watch started: the member may
// not allow the kind to be watched at all.
const syncTimeout = 2 * time.Second

func newMemberClient(dyn dynamic.Interface, meta metadata.Interface, disco discovery.DiscoveryInterface, changed func(types.NamespacedName)) *memberClient {
	return &memberClient{dyn: dyn, meta: meta, discovery: disco, onChange: changed, keeps: func(types.NamespacedName) bool { return true }, onWatchable: func(interpret.KindInfo) {},
		watches: map[schema.GroupVersionResource]kindWatch{}, namespaces: map[string]bool{}, unwatchable: map[schema.GroupVersionResource]error{}}
}

func (c *memberClient) start(ctx context.Context) { c.ctx = ctx }

func (c *memberClient) wait() { c.running.Wait() }

// What the caches of a kind take is bounded by the bindings of the cluster: a member may send any number of objects with
// Atoll's label.
const (
	maxCached      = 1_000_000
	maxCachedBytes = 32 << 20
	bytesEach      = 64 << 10
)

// nameOf returns the key of the binding of an object.
func nameOf(k interpret.KindInfo, o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: v1alpha1.BindingName(k.GroupKind(), o.GetName())}
}

// informer returns the watch of a kind in the member, and starts it if necessary. It watches
// only objects with Atoll's label.
func (c *memberClient) informer(k interpret.KindInfo) kindWatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.watches[k.GVR()]; ok {
		return w
	}
	bounds := fleet.ListBounds{Max: maxCached, Bytes: maxCachedBytes, BytesEach: bytesEach, Keep: func(o metav1.Object) bool { return c.keeps(nameOf(k, o)) }}
	i := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(bounds.Bound(c.listWatch(k)), c.dyn), &unstructured.Unstructured{}, 0, cache.Indexers{})
	notify := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if o, ok := obj.(metav1.Object); ok {
			c.onChange(nameOf(k, o))
		}
	}
	// Both fail only on an informer that has been started or stopped.
	_ = i.SetTransform(fleet.Pack(k.TrimManagedFields))
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: notify, DeleteFunc: notify,
		UpdateFunc: func(was, is any) {
			before, ok1 := was.(metav1.Object)
			after, ok2 := is.(metav1.Object)
			if ok1 && ok2 && before.GetResourceVersion() == after.GetResourceVersion() {
				return
			}
			notify(is)
		}})
	w := kindWatch{SharedIndexInformer: i, stop: func() {}}
	if c.ctx != nil {
		ctx, stop := context.WithCancel(c.ctx)
		young, grown := context.WithTimeout(ctx, syncTimeout)
		w.syncDeadline, w.stop = young, func() {
			grown()
			stop()
		}
		c.running.Go(func() { i.RunWithContext(ctx) })
	}
	c.watches[k.GVR()] = w
	return w
}

// listWatch lists and watches a kind, and records whether the member permits it.
func (c *memberClient) listWatch(k interpret.KindInfo) *cache.ListWatch {
	const ours = v1alpha1.ManagedLabel + "=true"
	api := c.dyn.Resource(k.GVR())
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = ours
			list, err := api.List(ctx, o)
			if err != nil {
				c.recordWatch(k, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = ours
			w, err := api.Watch(ctx, o)
			c.recordWatch(k, err)
			return w, err
		},
	}
}

// recordWatch records whether the member permits a kind to be watched. If it does not, the
// cached objects become stale at some point, and each object is read individually. A member
// that does not respond at all changes nothing here; that shows in the conditions of its
// Cluster.
func (c *memberClient) recordWatch(k interpret.KindInfo, err error) {
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return
	}
	c.mu.Lock()
	_, was := c.unwatchable[k.GVR()]
	if err != nil {
		c.unwatchable[k.GVR()] = err
	} else {
		delete(c.unwatchable, k.GVR())
	}
	c.mu.Unlock()
	if was != (err != nil) {
		c.onWatchable(k)
	}
}

// watchError returns why a kind cannot be watched, nil if it can.
func (c *memberClient) watchError(k interpret.KindInfo) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unwatchable[k.GVR()]
}

// unwatch stops the watch of a kind that has no objects left in the member.
func (c *memberClient) unwatch(k interpret.KindInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.watches[k.GVR()]; ok {
		w.stop()
		delete(c.watches, k.GVR())
		delete(c.unwatchable, k.GVR())
	}
}

// waitForSync waits until the cache of a kind has synced, for at most syncTimeout.
func (c *memberClient) waitForSync(ctx context.Context, k interpret.KindInfo) {
	w := c.informer(k)
	if w.syncDeadline == nil {
		return
	}
	select {
	case <-w.HasSyncedChecker().Done():
	case <-w.syncDeadline.Done():
	case <-ctx.Done():
	}
}

func (c *memberClient) cached(k interpret.KindInfo, name types.NamespacedName) (*unstructured.Unstructured, bool) {
	i := c.informer(k)
	if !i.HasSynced() || c.watchError(k) != nil {
		return nil, false
	}
	obj, found, err := i.GetStore().GetByKey(controllers.CacheKey(name))
	if err != nil || !found {
		return nil, false
	}
	return fleet.Unpack(obj)
}

// get reads an object from the member; nil if it does not exist.
func (c *memberClient) get(ctx context.Context, k interpret.KindInfo, name types.NamespacedName) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	obj, err := c.dyn.Resource(k.GVR()).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return obj, nil
	case !apierrors.IsNotFound(err):
		return nil, err
	case typeUnknown(err):
		return nil, unservedError{k}
	}
	return nil, nil
}

// getForRemoval is get for an object that is to be removed: if the member has no such type, it
// has no such object. A type that is only not served at the moment may still have objects.
func (c *memberClient) getForRemoval(ctx context.Context, k interpret.KindInfo, name types.NamespacedName) (*unstructured.Unstructured, error) {
	live, err := c.get(ctx, k, name)
	var unserved unservedError
	if !errors.As(err, &unserved) || fleet.Native(k.GroupKind()) {
		return live, err
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, crdErr := c.dyn.Resource(crds).Get(ctx, k.GVR().GroupResource().String(), metav1.GetOptions{})
	switch {
	case crdErr == nil:
		return nil, err
	case apierrors.IsNotFound(crdErr) && !typeUnknown(crdErr):
		return nil, nil
	}
	return nil, crdErr
}

// typeUnknown reports whether a not-found error means that the server does not serve the type,
// rather than that there is no object of the name: only the latter is answered with a Status.
func typeUnknown(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// unservedError reports that the member does not serve an object's type.
type unservedError struct{ kind interpret.KindInfo }

func (e unservedError) Error() string {
	return fmt.Sprintf("the cluster does not serve %s in version %s; install the type there, or place the object elsewhere",
		e.kind.GVR().GroupResource(), e.kind.Version)
}

// apply writes desired by server-side apply. live is the member's object, nil if there is none:
// then a conflict with a faster writer is an error, not a takeover. With live, its UID is a
// precondition. A dry run writes nothing. The result has its managed fields.
func (c *memberClient) apply(ctx context.Context, k interpret.KindInfo, desired, live *unstructured.Unstructured, dry bool) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if live != nil {
		desired = desired.DeepCopy()
		desired.SetUID(live.GetUID())
	}
	options := metav1.ApplyOptions{FieldManager: FieldManager, Force: live != nil}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	out, err := c.dyn.Resource(k.GVR()).Namespace(desired.GetNamespace()).Apply(ctx, desired.GetName(), desired, options)
	switch {
	case err == nil:
		return out, nil
	case typeUnknown(err):
		return nil, unservedError{k}
	case apierrors.IsNotFound(err) && live == nil:
		c.forgetNamespace(desired.GetNamespace())
	}
	return nil, err
}

// definesType reports whether objects of a kind are types: deleting one deletes all its
// objects.
func definesType(k interpret.KindInfo) bool {
	return k.Group == "apiextensions.k8s.io" && k.GroupVersionKind.Kind == "CustomResourceDefinition"
}

// instances returns the names of some objects of a type in the member.
func (c *memberClient) instances(ctx context.Context, crd *unstructured.Unstructured) (string, error) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, ok := v.(map[string]any)
		if !ok || version["served"] != true {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		gvr := schema.GroupVersionResource{Group: group, Version: fmt.Sprint(version["name"]), Resource: plural}
		found, err := c.meta.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 3})
		if err != nil {
			return "", fmt.Errorf("list objects of type %s: %w", gvr.GroupResource(), err)
		}
		var names []string
		for i := range found.Items {
			names = append(names, controllers.CacheKey(types.NamespacedName{Namespace: found.Items[i].Namespace, Name: found.Items[i].Name}))
		}
		if found.Continue != "" {
			names = append(names, "…")
		}
		return strings.Join(names, ", "), nil
	}
	return "", nil // not served in any version: it cannot have objects
}

// delete deletes exactly the object that was observed.
func (c *memberClient) delete(ctx context.Context, k interpret.KindInfo, live *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	uid, background := live.GetUID(), metav1.DeletePropagationBackground
	err := c.dyn.Resource(k.GVR()).Namespace(live.GetNamespace()).Delete(ctx, live.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// setManagedFields replaces who owns the fields of an object, unless the object has changed since. It
// returns the object with its new version.
func (c *memberClient) setManagedFields(ctx context.Context, k interpret.KindInfo, live *unstructured.Unstructured, entries []metav1.ManagedFieldsEntry) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": entries},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": live.GetResourceVersion()},
	})
	if err != nil {
		return nil, err
	}
	out, err := c.dyn.Resource(k.GVR()).Namespace(live.GetNamespace()).
		Patch(ctx, live.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, fmt.Errorf("take over the fields that were added to %s %s: %w", k.Kind, live.GetName(), err)
	}
	return out, nil
}

// release removes Atoll's labels and annotations from an object, which then belongs to the
// member. What stays is whose copy it was, so that the same fleet can adopt it again.
func (c *memberClient) release(ctx context.Context, k interpret.KindInfo, live *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":    live.GetUID(),
		"labels": map[string]any{v1alpha1.ManagedLabel: nil},
		"annotations": map[string]any{
			v1alpha1.ClusterAnnotation: nil, v1alpha1.SourceUIDAnnotation: nil,
			v1alpha1.LeftAnnotation: live.GetAnnotations()[v1alpha1.SourceUIDAnnotation]},
	}})
	if err != nil {
		return err
	}
	_, err = c.dyn.Resource(k.GVR()).Namespace(live.GetNamespace()).
		Patch(ctx, live.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
