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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// requestTimeout bounds each request to a member, so that one which takes
// connections and never answers holds no worker for long.
const requestTimeout = 15 * time.Second

// ourLabel selects what we made.
const ourLabel = v1alpha1.ManagedByLabel + "=" + v1alpha1.ManagedByAtoll

// errForeign: an object that is not ours has the name of one that we need.
var errForeign = errors.New("is not Atoll's: rename or delete it")

// member is the access to one member, with a watch of what we have there.
type member struct {
	way
	// state is what it was made for: a way to the member that answers.
	state string
	stop  context.CancelFunc

	watched   map[string]cache.SharedIndexInformer // by kind
	authority cache.SharedIndexInformer

	mu      sync.Mutex
	trouble error
	lists   listing
}

// newMember starts the watches. changed hears of all that matters.
func newMember(ctx context.Context, running *sync.WaitGroup, w way, state string, changed func()) (*member, error) {
	ctx, stop := context.WithCancel(ctx)
	m := &member{way: w, state: state, stop: stop, watched: map[string]cache.SharedIndexInformer{}}
	ours := func(o *metav1.ListOptions) { o.LabelSelector = ourLabel }
	for _, k := range kinds() {
		only := ours
		if k.name == apiServiceKind {
			// All of them: those of others tell which groups the member has already.
			only = nil
		}
		m.watched[k.name] = dynamicinformer.NewFilteredDynamicInformer(w.Interface, k.gvr, metav1.NamespaceAll, 0, cache.Indexers{}, only).Informer()
	}
	m.authority = dynamicinformer.NewFilteredDynamicInformer(w.Interface, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		authorityNamespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + authorityName }).Informer()
	for _, i := range m.informers() {
		err := errors.Join(i.SetTransform(withoutManagedFields),
			i.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { m.say(err); changed() }))
		if err == nil {
			_, err = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() }, UpdateFunc: func(_, _ any) { changed() }})
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("watch a member: %w", err)
		}
		running.Go(func() { i.RunWithContext(ctx) })
	}
	return m, nil
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

func (m *member) say(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trouble = err
}

// known tells whether what the member has is known; if not, perhaps why.
func (m *member) known() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.informers() {
		if !i.HasSynced() {
			return false, m.trouble
		}
	}
	return true, nil
}

// published gives the member's authority as it publishes it, if it does.
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

// ours gives all that carries our label, in the order of kinds.
func (m *member) ours() []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, k := range kinds() {
		out = append(out, slices.DeleteFunc(m.all(k.name), func(u *unstructured.Unstructured) bool { return !isOurs(u) })...)
	}
	return out
}

// empty asks the member whether it has nothing of ours.
func (m *member) empty(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, k := range kinds() {
		list, err := m.way.Resource(k.gvr).List(ctx, metav1.ListOptions{LabelSelector: ourLabel, Limit: 1})
		if err != nil {
			return false, fmt.Errorf("see whether %s are left in the member: %w", k.gvr.Resource, err)
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
				return m.way.Resource(k.gvr)
			}
			return m.way.Resource(k.gvr).Namespace(u.GetNamespace())
		}
	}
	panic("expose: Desired gives a kind that kinds does not know: " + u.GetKind())
}

// ensure writes desired unless the member has it. What has the name and is not ours
// stays as it is: a namespace is used all the same, anything else is errForeign.
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
		// Another of the same name is not the one that was looked at.
		desired.SetUID(live.GetUID())
	}
	// Where there was nothing, whoever was faster wins.
	had := desired.GetUID() != ""
	now, err := m.api(desired).Apply(ctx, desired.GetName(), desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: had})
	if had && desired.GetKind() == "Service" && (apierrors.IsInvalid(err) || err == nil && !covers(now.Object, desired.Object)) {
		return m.replaceSpec(ctx, desired)
	}
	return err
}

// replaceSpec puts right what applying cannot: the ports of a Service are told
// apart by number, so one with another number is another port, and stays.
func (m *member) replaceSpec(ctx context.Context, desired *unstructured.Unstructured) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": desired.GetUID()}, "spec": desired.Object["spec"]})
	if err != nil {
		return err
	}
	_, err = m.api(desired).Patch(ctx, desired.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return err
}

// remove deletes an object of ours.
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
	// The version too: if somebody has taken our label off meanwhile, it is theirs.
	uid, version := u.GetUID(), u.GetResourceVersion()
	err := m.api(u).Delete(ctx, u.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// inUse tells whether others have put something into our namespace that would go
// with it. What Kubernetes puts into every namespace does not count.
func (m *member) inUse(ctx context.Context, namespace string) (bool, error) {
	for _, resource := range []string{"pods", "services", "secrets", "configmaps", "persistentvolumeclaims", "serviceaccounts"} {
		list, err := m.way.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace).
			List(ctx, metav1.ListOptions{Limit: 10})
		if err != nil {
			return false, fmt.Errorf("see whether namespace %s is in use: %w", namespace, err)
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

// release takes our label off what others use, which then is theirs.
func (m *member) release(ctx context.Context, u *unstructured.Unstructured) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:null}}}`, u.GetUID(), v1alpha1.ManagedByLabel)
	_, err := m.api(u).Patch(ctx, u.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
