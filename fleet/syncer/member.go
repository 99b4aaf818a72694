package syncer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
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

	ctx     context.Context // of the watches; set by start
	running sync.WaitGroup
	mu      sync.Mutex
	watched map[schema.GroupVersionResource]cache.SharedIndexInformer
	made    map[string]bool // namespaces known to exist
}

func newMember(dyn dynamic.Interface, meta metadata.Interface, disco discovery.DiscoveryInterface, changed func(types.NamespacedName)) *member {
	return &member{dyn: dyn, meta: meta, discovery: disco, changed: changed,
		watched: map[schema.GroupVersionResource]cache.SharedIndexInformer{}, made: map[string]bool{}}
}

func (c *member) start(ctx context.Context) { c.ctx = ctx }

func (c *member) wait() { c.running.Wait() }

// informer watches a kind in the member, from its first object on, and only what
// carries our mark.
func (c *member) informer(k interpret.Kind) cache.SharedIndexInformer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i, ok := c.watched[k.GVR()]; ok {
		return i
	}
	i := dynamicinformer.NewFilteredDynamicInformer(c.dyn, k.GVR(), metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.ManagedLabel + "=true" }).Informer()
	notify := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if u, ok := obj.(*unstructured.Unstructured); ok {
			c.changed(types.NamespacedName{Namespace: u.GetNamespace(), Name: v1alpha1.BindingName(k.GroupKind(), u.GetName())})
		}
	}
	// Both fail only on an informer that has been started or stopped.
	_ = i.SetTransform(func(obj any) (any, error) {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			u.SetManagedFields(nil)
		}
		return obj, nil
	})
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: notify, DeleteFunc: notify,
		UpdateFunc: func(was, is any) {
			before, ok1 := was.(*unstructured.Unstructured)
			after, ok2 := is.(*unstructured.Unstructured)
			if ok1 && ok2 && before.GetResourceVersion() == after.GetResourceVersion() {
				return
			}
			notify(is)
		}})
	c.watched[k.GVR()] = i
	if c.ctx != nil {
		c.running.Go(func() { i.RunWithContext(c.ctx) })
	}
	return i
}

func (c *member) cached(k interpret.Kind, name types.NamespacedName) (*unstructured.Unstructured, bool) {
	i := c.informer(k)
	if !i.HasSynced() {
		return nil, false
	}
	obj, found, err := i.GetStore().GetByKey(name.String())
	if err != nil || !found {
		return nil, false
	}
	u, ok := obj.(*unstructured.Unstructured)
	return u, ok
}

func (c *member) get(ctx context.Context, k interpret.Kind, name types.NamespacedName) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.dyn.Resource(k.GVR()).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
}

// apply writes desired by server-side apply. live is what the member has, nil if
// nothing: then a conflict with somebody who was faster is an error, not a
// takeover. With live, its UID is a precondition.
func (c *member) apply(ctx context.Context, k interpret.Kind, desired, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if live != nil {
		desired = desired.DeepCopy()
		desired.SetUID(live.GetUID())
	} else if err := c.ensureNamespace(ctx, desired.GetNamespace()); err != nil {
		return nil, err
	}
	api := c.dyn.Resource(k.GVR()).Namespace(desired.GetNamespace())
	out, err := api.Apply(ctx, desired.GetName(), desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: live != nil})
	if apierrors.IsNotFound(err) && live == nil {
		c.forgetNamespace(desired.GetNamespace())
	}
	if err != nil {
		return nil, err
	}
	out.SetManagedFields(nil)
	return out, nil
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

// digestOf identifies a value by its JSON, whose keys are in order.
func digestOf(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		// Objects come from JSON. Whatever else this is, it is equal to nothing.
		return fmt.Sprintf("%p", &data)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// digestLive identifies what of the member's object matters to us: all but what
// its cluster reports (status), and of labels and annotations only those that we
// set. While it stays the same, nobody has changed the object. Others may label
// and annotate it as they like: the member's own controllers do.
func digestLive(live, desired *unstructured.Unstructured) string {
	o := make(map[string]any, len(live.Object))
	for field, value := range live.Object {
		if field != "status" && field != "metadata" {
			o[field] = value
		}
	}
	return digestOf([]any{o, live.GetUID(),
		those(live.GetLabels(), desired.GetLabels()), those(live.GetAnnotations(), desired.GetAnnotations())})
}

// those gives the entries of have whose keys are in want.
func those(have, want map[string]string) map[string]string {
	out := map[string]string{}
	for key := range want {
		if value, ok := have[key]; ok {
			out[key] = value
		}
	}
	return out
}
