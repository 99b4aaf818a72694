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
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// requestTimeout bounds each request to the member, so that a member which takes
// connections and never answers holds no worker for long.
const requestTimeout = 15 * time.Second

// member is the syncer's access to its cluster.
type member struct {
	dyn       dynamic.Interface
	meta      metadata.Interface
	discovery discovery.DiscoveryInterface
	changed   func(types.NamespacedName)
	// sighted hears of kinds whose changes the member tells of no more, or again.
	sighted func(interpret.Kind)

	ctx     context.Context // of the watches; set by start
	running sync.WaitGroup
	mu      sync.Mutex
	watched map[schema.GroupVersionResource]watched
	made    map[string]bool // namespaces known to exist
	blind   map[schema.GroupVersionResource]error
}

// watched is a watch of one kind in the member.
type watched struct {
	cache.SharedIndexInformer
	stop context.CancelFunc
	// young ends when its cache is no longer waited for.
	young context.Context
}

// youth is how long the cache of a kind is waited for after its watch began: the member
// may not let it be watched at all.
const youth = 2 * time.Second

func newMember(dyn dynamic.Interface, meta metadata.Interface, disco discovery.DiscoveryInterface, changed func(types.NamespacedName)) *member {
	return &member{dyn: dyn, meta: meta, discovery: disco, changed: changed, sighted: func(interpret.Kind) {},
		watched: map[schema.GroupVersionResource]watched{}, made: map[string]bool{}, blind: map[schema.GroupVersionResource]error{}}
}

func (c *member) start(ctx context.Context) { c.ctx = ctx }

func (c *member) wait() { c.running.Wait() }

// informer watches a kind in the member, from its first object on, and only what
// carries our mark.
func (c *member) informer(k interpret.Kind) watched {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.watched[k.GVR()]; ok {
		return w
	}
	i := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(c.listWatch(k), c.dyn), &unstructured.Unstructured{}, 0, cache.Indexers{})
	notify := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if o, ok := obj.(metav1.Object); ok {
			c.changed(types.NamespacedName{Namespace: o.GetNamespace(), Name: v1alpha1.BindingName(k.GroupKind(), o.GetName())})
		}
	}
	// Both fail only on an informer that has been started or stopped.
	_ = i.SetTransform(fleet.Pack(k.TrimOwners))
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: notify, DeleteFunc: notify,
		UpdateFunc: func(was, is any) {
			before, ok1 := was.(metav1.Object)
			after, ok2 := is.(metav1.Object)
			if ok1 && ok2 && before.GetResourceVersion() == after.GetResourceVersion() {
				return
			}
			notify(is)
		}})
	w := watched{SharedIndexInformer: i, stop: func() {}}
	if c.ctx != nil {
		ctx, stop := context.WithCancel(c.ctx)
		young, grown := context.WithTimeout(ctx, youth)
		w.young, w.stop = young, func() {
			grown()
			stop()
		}
		c.running.Go(func() { i.RunWithContext(ctx) })
	}
	c.watched[k.GVR()] = w
	return w
}

// listWatch lists and watches a kind, and notes whether that is granted.
func (c *member) listWatch(k interpret.Kind) *cache.ListWatch {
	const ours = v1alpha1.ManagedLabel + "=true"
	api := c.dyn.Resource(k.GVR())
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = ours
			list, err := api.List(ctx, o)
			if err != nil {
				c.sees(k, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = ours
			w, err := api.Watch(ctx, o)
			c.sees(k, err)
			return w, err
		},
	}
}

// sees notes whether the member lets a kind be watched. What was seen of it until then
// is not true any more at some time: it is asked for, one by one. A member that does not answer at
// all has no say in it; that shows in its Cluster.
func (c *member) sees(k interpret.Kind, err error) {
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return
	}
	c.mu.Lock()
	_, was := c.blind[k.GVR()]
	if err != nil {
		c.blind[k.GVR()] = err
	} else {
		delete(c.blind, k.GVR())
	}
	c.mu.Unlock()
	if was != (err != nil) {
		c.sighted(k)
	}
}

// unseen gives why changes of a kind are not told, nil if they are.
func (c *member) unseen(k interpret.Kind) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blind[k.GVR()]
}

// unwatch ends the watch of a kind of which nothing is left there.
func (c *member) unwatch(k interpret.Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.watched[k.GVR()]; ok {
		w.stop()
		delete(c.watched, k.GVR())
		delete(c.blind, k.GVR())
	}
}

// await waits until the cache of a kind is filled, for as long as it is young.
func (c *member) await(ctx context.Context, k interpret.Kind) {
	w := c.informer(k)
	if w.young == nil {
		return
	}
	select {
	case <-w.HasSyncedChecker().Done():
	case <-w.young.Done():
	case <-ctx.Done():
	}
}

func (c *member) cached(k interpret.Kind, name types.NamespacedName) (*unstructured.Unstructured, bool) {
	i := c.informer(k)
	if !i.HasSynced() || c.unseen(k) != nil {
		return nil, false
	}
	obj, found, err := i.GetStore().GetByKey(fleet.CacheKey(name))
	if err != nil || !found {
		return nil, false
	}
	return fleet.Unpack(obj)
}

// get asks the member for an object; nil is none.
func (c *member) get(ctx context.Context, k interpret.Kind, name types.NamespacedName) (*unstructured.Unstructured, error) {
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

// look is get for what is to be removed: a type that the member does not have has no
// objects there. One that it only does not serve at this moment may have.
func (c *member) look(ctx context.Context, k interpret.Kind, name types.NamespacedName) (*unstructured.Unstructured, error) {
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

// typeUnknown tells a server that does not serve a type from one that has no object
// of a name: only the second answers with a Status.
func typeUnknown(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// unservedError: the member does not serve the type of an object.
type unservedError struct{ kind interpret.Kind }

func (e unservedError) Error() string {
	return fmt.Sprintf("the cluster does not serve %s in version %s now; install the type there, or place the object elsewhere",
		e.kind.GVR().GroupResource(), e.kind.Version)
}

// apply writes desired by server-side apply. live is what the member has, nil if
// nothing: then a conflict with somebody who was faster is an error, not a
// takeover. With live, its UID is a precondition. A dry run writes nothing, and
// gives what would be.
func (c *member) apply(ctx context.Context, k interpret.Kind, desired, live *unstructured.Unstructured, dry bool) (*unstructured.Unstructured, error) {
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
		k.TrimOwners(out)
		return out, nil
	case typeUnknown(err):
		return nil, unservedError{k}
	case apierrors.IsNotFound(err) && live == nil:
		c.forgetNamespace(desired.GetNamespace())
	}
	return nil, err
}

// definesType tells whether objects of a kind are types, which take their objects
// along when they go.
func definesType(k interpret.Kind) bool {
	return k.Group == "apiextensions.k8s.io" && k.GroupVersionKind.Kind == "CustomResourceDefinition"
}

// instances names some objects of a type that the member has.
func (c *member) instances(ctx context.Context, crd *unstructured.Unstructured) (string, error) {
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
			return "", fmt.Errorf("look for objects of type %s: %w", gvr.GroupResource(), err)
		}
		var names []string
		for i := range found.Items {
			names = append(names, fleet.CacheKey(types.NamespacedName{Namespace: found.Items[i].Namespace, Name: found.Items[i].Name}))
		}
		if found.Continue != "" {
			names = append(names, "…")
		}
		return strings.Join(names, ", "), nil
	}
	return "", nil // not served in any version: nobody could have any
}

// delete removes exactly the object that was seen.
func (c *member) delete(ctx context.Context, k interpret.Kind, live *unstructured.Unstructured) error {
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

// release takes our marks off an object, which then is the member's own.
func (c *member) release(ctx context.Context, k interpret.Kind, live *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":    live.GetUID(),
		"labels": map[string]any{v1alpha1.ManagedLabel: nil},
		"annotations": map[string]any{
			v1alpha1.ClusterAnnotation: nil, v1alpha1.SourceUIDAnnotation: nil},
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
