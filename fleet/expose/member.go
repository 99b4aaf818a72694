package expose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// requestTimeout bounds each request to a member, so that a hanging member does not block a worker
// for long.
const requestTimeout = 15 * time.Second

// ourLabel selects our objects.
const ourLabel = v1alpha1.ManagedByLabel + "=" + v1alpha1.ManagedByAtoll

// errForeign is returned when another owner's object has a name that we need.
var errForeign = errors.New("does not belong to Atoll: rename or delete it")

// member is the access to one member, with watches of our objects.
type member struct {
	memberAccess
	// state identifies the kubeconfig and the last time when the member became Ready.
	state string
	stop  context.CancelFunc

	watched   map[string]cache.SharedIndexInformer // by kind
	authority cache.SharedIndexInformer
	// crds are the member's own. The cluster's kubeconfig may not be allowed to read them.
	crds cache.SharedIndexInformer
	// apiServers are the Pods of the member's API servers, if it has any that may be read.
	apiServers cache.SharedIndexInformer

	mu       sync.Mutex
	watchErr error
	lists    listing
	held     map[string]exposure // groups that cannot be withdrawn now
}

// watchBounds limit each watch of a member, which has a few objects of ours, and some hundreds of types.
func watchBounds() fleet.ListBounds { return fleet.ListBounds{Max: 10_000, Bytes: 16 << 20} }

// newMember starts the watches. changed is called on every relevant event.
func newMember(ctx context.Context, running *sync.WaitGroup, w memberAccess, state string, changed func()) (*member, error) {
	ctx, stop := context.WithCancel(ctx)
	m := &member{memberAccess: w, state: state, stop: stop, watched: map[string]cache.SharedIndexInformer{}}
	ours := func(o *metav1.ListOptions) { o.LabelSelector = ourLabel }
	for _, k := range kinds() {
		only := ours
		if k.name == apiServiceKind {
			// Watch all of them: foreign ones show which groups the member already has.
			only = nil
		}
		m.watched[k.name] = watchBounds().Informer(w.Interface, k.gvr, metav1.NamespaceAll, only)
	}
	m.authority = watchBounds().Informer(w.Interface, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, authorityNamespace,
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + authorityName })
	crds := watchBounds()
	crds.Slim = slimCRDEvent
	m.crds = crds.Informer(w.Interface, crdResource, metav1.NamespaceAll, nil)
	m.apiServers = apiServerPods(w.Interface)
	for _, i := range append(m.informers(), m.crds, m.apiServers) {
		transform, failed := cache.TransformFunc(withoutManagedFields), func(_ *cache.Reflector, err error) { m.recordWatchError(err); changed() }
		// The others must not wait for these two.
		switch ignored := func(*cache.Reflector, error) {}; i {
		case m.crds:
			transform, failed = slimCRD, ignored
		case m.apiServers:
			transform, failed = slimPod, ignored
		}
		err := errors.Join(i.SetTransform(transform), i.SetWatchErrorHandler(failed))
		if err == nil {
			_, err = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() }, UpdateFunc: func(_, _ any) { changed() }})
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("watch the member: %w", err)
		}
		running.Go(func() { i.RunWithContext(ctx) })
	}
	return m, nil
}

// slimCRDEvent is slimCRD for a watch, which needs the resource version.
func slimCRDEvent(obj runtime.Object) runtime.Object {
	was, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj
	}
	out, err := slimCRD(was)
	if u, slim := out.(*unstructured.Unstructured); err == nil && slim {
		u.SetResourceVersion(was.GetResourceVersion())
		return u
	}
	return obj
}

func withoutManagedFields(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
	}
	return obj, nil
}

func (m *member) informers() []cache.SharedIndexInformer {
	out := []cache.SharedIndexInformer{m.authority}
	for _, i := range m.watched {
		out = append(out, i)
	}
	return out
}

func (m *member) recordWatchError(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchErr = err
}

// synced reports whether the watches are synced, and otherwise returns the last watch error, if
// any.
func (m *member) synced() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.informers() {
		if !i.HasSynced() {
			return false, m.watchErr
		}
	}
	return true, nil
}

// published returns the ConfigMap with the member's authority, if it exists.
func (m *member) published() (*unstructured.Unstructured, bool) {
	for _, obj := range m.authority.GetStore().List() {
		if u, ok := obj.(*unstructured.Unstructured); ok && u.GetName() == authorityName {
			return u, true
		}
	}
	return nil, false
}

func (m *member) all(kind string) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, obj := range m.watched[kind].GetStore().List() {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			out = append(out, u)
		}
	}
	return out
}

// ours returns all objects with our label, in the order of kinds.
func (m *member) ours() []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, k := range kinds() {
		out = append(out, slices.DeleteFunc(m.all(k.name), func(u *unstructured.Unstructured) bool { return !isOurs(u) })...)
	}
	return out
}

// empty reads from the member whether it has none of our objects.
func (m *member) empty(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, k := range kinds() {
		list, err := m.memberAccess.Resource(k.gvr).List(ctx, metav1.ListOptions{LabelSelector: ourLabel, Limit: 1})
		if err != nil {
			return false, fmt.Errorf("check for remaining %s in the member: %w", k.gvr.Resource, err)
		}
		if len(list.Items) > 0 {
			return false, nil
		}
	}
	return true, nil
}

func isOurs(u *unstructured.Unstructured) bool {
	return u.GetLabels()[v1alpha1.ManagedByLabel] == v1alpha1.ManagedByAtoll
}

func (m *member) api(u *unstructured.Unstructured) dynamic.ResourceInterface {
	for _, k := range kinds() {
		if k.name == u.GetKind() {
			if u.GetNamespace() == "" {
				return m.memberAccess.Resource(k.gvr)
			}
			return m.memberAccess.Resource(k.gvr).Namespace(u.GetNamespace())
		}
	}
	panic("expose: kind of Desired is missing in kinds: " + u.GetKind())
}

// ensure applies desired unless the member has it. A foreign object of that name stays unchanged: a
// namespace is used as it is, and any other object is errForeign.
func (m *member) ensure(ctx context.Context, desired *unstructured.Unstructured) error {
	cached, found, err := m.watched[desired.GetKind()].GetStore().GetByKey(cache.NewObjectName(desired.GetNamespace(), desired.GetName()).String())
	if err != nil {
		return err
	}
	if u, ok := cached.(*unstructured.Unstructured); found && ok && isOurs(u) && covers(u.Object, desired.Object) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	desired = desired.DeepCopy()
	live, err := m.api(desired).Get(ctx, desired.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case !isOurs(live) && live.GetKind() == "Namespace":
		return nil
	case !isOurs(live):
		return fmt.Errorf("%s %s of the member %w", live.GetKind(), live.GetName(), errForeign)
	case covers(live.Object, desired.Object):
		return nil
	default:
		// With the UID, a recreated object is not overwritten.
		desired.SetUID(live.GetUID())
	}
	// If the object did not exist, do not overwrite a concurrent creation.
	had := desired.GetUID() != ""
	now, err := m.api(desired).Apply(ctx, desired.GetName(), desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: had})
	if had && desired.GetKind() == "Service" && (apierrors.IsInvalid(err) || err == nil && !covers(now.Object, desired.Object)) {
		return m.replaceSpec(ctx, desired)
	}
	return err
}

// replaceSpec corrects the ports of a Service, which applying cannot: ports are keyed by number, so
// a port with another number would stay.
func (m *member) replaceSpec(ctx context.Context, desired *unstructured.Unstructured) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": desired.GetUID()}, "spec": desired.Object["spec"]})
	if err != nil {
		return err
	}
	_, err = m.api(desired).Patch(ctx, desired.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return err
}

// remove deletes one of our objects.
func (m *member) remove(ctx context.Context, u *unstructured.Unstructured) error {
	if u.GetDeletionTimestamp() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if u.GetKind() == "Namespace" {
		used, err := m.inUse(ctx, u.GetName())
		if err != nil {
			return err
		}
		if used {
			return m.release(ctx, u)
		}
	}
	// Also check the version: if our label was removed meanwhile, the object is no longer ours.
	uid, version := u.GetUID(), u.GetResourceVersion()
	err := m.api(u).Delete(ctx, u.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// inUse reports whether our namespace has foreign objects that would be deleted with it. Objects
// that Kubernetes creates in every namespace do not count.
func (m *member) inUse(ctx context.Context, namespace string) (bool, error) {
	for _, resource := range []string{"pods", "services", "secrets", "configmaps", "persistentvolumeclaims", "serviceaccounts"} {
		list, err := m.memberAccess.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace).
			List(ctx, metav1.ListOptions{Limit: 10})
		if err != nil {
			return false, fmt.Errorf("check whether namespace %s is in use: %w", namespace, err)
		}
		for i := range list.Items {
			switch name := list.Items[i].GetName(); {
			case isOurs(&list.Items[i]):
			case resource == "configmaps" && name == "kube-root-ca.crt", resource == "serviceaccounts" && name == "default":
			default:
				return true, nil
			}
		}
	}
	return false, nil
}

// release removes our label from an object that others use.
func (m *member) release(ctx context.Context, u *unstructured.Unstructured) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:null}}}`, u.GetUID(), v1alpha1.ManagedByLabel)
	_, err := m.api(u).Patch(ctx, u.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
