package fakeapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/test/fakeapi"
)

const widgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - name: v1
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}, tags: {type: array, items: {type: string}}}}
          status:
            type: object
            properties:
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, size: {type: integer}}}
`

var (
	widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

func start(t *testing.T) (*fakeapi.Server, dynamic.Interface) {
	t.Helper()
	s := fakeapi.New(t, append(fakeapi.CRDs(t, []byte(widgetCRD)), fakeapi.BuiltIn("", "v1", "ConfigMap", "configmaps"))...)
	return s, s.Dynamic()
}

func widget(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name, "namespace": "shop"}, "spec": map[string]any{"size": size}}}
}

func TestWrites(t *testing.T) {
	s, client := start(t)
	shop := client.Resource(widgets).Namespace("shop")
	made, err := shop.Create(t.Context(), widget("a", 1), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.GetUID() == "" || made.GetGeneration() != 1 || made.GetResourceVersion() == "" || made.GetCreationTimestamp().Time.IsZero() {
		t.Errorf("created %v", made.Object["metadata"])
	}
	if _, err := shop.Create(t.Context(), widget("a", 1), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the second create: %v", err)
	}

	stale := made.DeepCopy()
	made.Object["spec"].(map[string]any)["size"] = int64(2)
	made.Object["status"] = map[string]any{"parts": []any{}}
	updated, err := shop.Update(t.Context(), made, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if updated.GetGeneration() != 2 || updated.Object["status"] != nil {
		t.Errorf("an update of spec and status gives generation %d and status %v", updated.GetGeneration(), updated.Object["status"])
	}
	if _, err := shop.Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update from an old version: %v", err)
	}
	updated.Object["status"] = map[string]any{"parts": []any{map[string]any{"name": "x"}}}
	updated.Object["spec"].(map[string]any)["size"] = int64(3)
	after, err := shop.UpdateStatus(t.Context(), updated, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedInt64(after.Object, "spec", "size"); after.GetGeneration() != 2 || size != 2 || after.Object["status"] == nil {
		t.Errorf("an update of the status gives %v", after.Object)
	}
	same, err := shop.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{})
	if err != nil || same.GetResourceVersion() != after.GetResourceVersion() {
		t.Errorf("a patch that changes nothing leads from version %s to %s (%v)", after.GetResourceVersion(), same.GetResourceVersion(), err)
	}
	wrong := types.UID("other")
	if err := shop.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}); !apierrors.IsConflict(err) {
		t.Errorf("a delete of another UID: %v", err)
	}
	if err := shop.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := shop.Delete(t.Context(), "a", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the second delete: %v", err)
	}
	want := []string{"create widgets shop/a", "update widgets shop/a", "update widgets/status shop/a", "patch widgets shop/a", "delete widgets shop/a"}
	if got := s.Writes(); !slices.Equal(got, want) {
		t.Errorf("the journal has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFinalizersAndOwners(t *testing.T) {
	s, client := start(t)
	shop := client.Resource(widgets).Namespace("shop")
	owner := widget("owner", 1)
	owner.SetFinalizers([]string{"example.com/wait"})
	owner = s.Put(owner)
	child := widget("child", 1)
	child.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Widget", Name: "owner", UID: owner.GetUID()}})
	s.Put(child)

	if err := shop.Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if u := s.Get(widgets, "shop", "owner"); u == nil || u.GetDeletionTimestamp() == nil || u.GetGeneration() != 2 {
		t.Fatalf("the deletion of an object with a finalizer leaves %v", u)
	}
	if _, err := shop.Patch(t.Context(), "owner", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"owner", "child"} {
		if s.Get(widgets, "shop", name) != nil {
			t.Errorf("%s is left", name)
		}
	}
}

func TestServerSideApply(t *testing.T) {
	s, client := start(t)
	shop := client.Resource(widgets).Namespace("shop")
	apply := func(manager, subresource, object string, force bool) (*unstructured.Unstructured, error) {
		var sub []string
		if subresource != "" {
			sub = append(sub, subresource)
		}
		return shop.Patch(t.Context(), "a", types.ApplyPatchType, []byte(object), metav1.PatchOptions{FieldManager: manager, Force: &force}, sub...)
	}
	const head = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}`
	first, err := apply("one", "", head+`,"spec":{"size":1,"tags":["x"]}}`, false)
	if err != nil {
		t.Fatal(err)
	}
	again, err := apply("one", "", head+`,"spec":{"size":1,"tags":["x"]}}`, false)
	if err != nil || again.GetResourceVersion() != first.GetResourceVersion() {
		t.Errorf("applying the same again leads from version %s to %s (%v)", first.GetResourceVersion(), again.GetResourceVersion(), err)
	}
	if _, err := apply("two", "", head+`,"spec":{"size":2}}`, false); !apierrors.IsConflict(err) {
		t.Errorf("another manager's field: %v", err)
	}
	if u, err := apply("two", "", head+`,"spec":{"size":2}}`, true); err != nil || u.GetGeneration() != 2 {
		t.Errorf("by force: %v, %v", u, err)
	}
	u, err := apply("one", "", head+`,"spec":{}}`, false)
	if err != nil {
		t.Fatal(err)
	}
	if spec := fmt.Sprint(u.Object["spec"]); spec != "map[size:2]" {
		t.Errorf("a manager that no longer applies its fields leaves %s", spec)
	}

	// A list that is a map by its schema has entries of several managers.
	for _, manager := range []string{"east", "west"} {
		if _, err := apply(manager, "status", head+`,"status":{"parts":[{"name":"`+manager+`","size":1}]}}`, false); err != nil {
			t.Fatal(err)
		}
	}
	parts, _, _ := unstructured.NestedSlice(s.Get(widgets, "shop", "a").Object, "status", "parts")
	if len(parts) != 2 || s.Get(widgets, "shop", "a").GetGeneration() != u.GetGeneration() {
		t.Errorf("the status has %v", parts)
	}
	if u, err := shop.Patch(t.Context(), "new", types.ApplyPatchType, []byte(strings.Replace(head, `"a"`, `"new"`, 1)+`}`),
		metav1.PatchOptions{FieldManager: "one", DryRun: []string{"All"}}); err != nil || u.GetUID() == "" || s.Get(widgets, "shop", "new") != nil {
		t.Errorf("a dry run: %v, %v", u, err)
	}

	typed, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	m, err := typed.CoreV1().ConfigMaps("shop").Apply(t.Context(), applycorev1.ConfigMap("conf", "shop").WithData(map[string]string{"a": "b"}), metav1.ApplyOptions{FieldManager: "one"})
	if err != nil || m.Data["a"] != "b" || len(m.ManagedFields) != 1 {
		t.Errorf("a typed client applies %v, %v", m, err)
	}
}

func TestWatches(t *testing.T) {
	s, client := start(t)
	shop := client.Resource(widgets).Namespace("shop")
	s.Put(widget("a", 1))
	list, err := shop.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	s.Put(widget("b", 1)) // between the list and the watch
	w, err := shop.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func() watch.Event {
		t.Helper()
		select {
		case e := <-w.ResultChan():
			return e
		case <-time.After(time.Minute):
			t.Fatal("no event")
			return watch.Event{}
		}
	}
	if e := next(); e.Type != watch.Added || e.Object.(*unstructured.Unstructured).GetName() != "b" {
		t.Errorf("the first event is %v", e)
	}
	s.Change(widgets, "shop", "b", func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"x": "y"}) })
	s.Delete(widgets, "shop", "b")
	if e := next(); e.Type != watch.Modified {
		t.Errorf("the second event is %v", e)
	}
	if e := next(); e.Type != watch.Deleted {
		t.Errorf("the third event is %v", e)
	}
	s.Compact()
	s.Put(widget("c", 1))
	if _, err := shop.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch from before the compaction: %v", err)
	}
}

func TestInformers(t *testing.T) {
	s, client := start(t)
	s.Put(widget("a", 1))
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(widgets).Informer()
	factory.Start(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer does not sync")
	}
	for i := range 50 {
		s.Put(widget(fmt.Sprint("w", i), 1))
		if i == 25 {
			s.Compact()
		}
	}
	s.Delete(widgets, "shop", "a")
	fakeapi.Until(t, "the informer has all widgets", func() bool { return len(informer.GetStore().ListKeys()) == 50 })

	all, err := s.Metadata().Resource(widgets).List(t.Context(), metav1.ListOptions{Limit: 10})
	if err != nil || len(all.Items) != 10 || all.Continue == "" || all.Items[0].Name == "" {
		t.Errorf("the metadata of a page: %v, %v", all, err)
	}
}

func TestHooks(t *testing.T) {
	s, client := start(t)
	s.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "create" && r.Resource == configMaps {
			status := apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, fmt.Errorf("the test says so")).Status()
			return &status
		}
		return nil
	})
	typed, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := typed.CoreV1().ConfigMaps("shop").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a refused create: %v", err)
	}
	if _, err := client.Resource(widgets).Namespace("shop").Create(t.Context(), widget("a", 1), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	groups, err := typed.Discovery().ServerPreferredResources()
	if err != nil || len(groups) != 2 {
		t.Errorf("discovery: %v, %v", groups, err)
	}
}

// A hook may change an object between a client's read and its write.
func TestHooksChangeObjects(t *testing.T) {
	s, client := start(t)
	read := s.Put(widget("a", 1))
	s.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "update" {
			s.Change(r.Resource, r.Namespace, r.Name, func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"x": "y"}) })
		}
		return nil
	})
	if _, err := client.Resource(widgets).Namespace("shop").Update(t.Context(), read, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update after another user's: %v", err)
	}
}

func TestTypedObjects(t *testing.T) {
	s, _ := start(t)
	m := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "shop"}}
	s.Put(m)
	m.Data = map[string]string{"a": "b"}
	s.Put(m)
	got := &corev1.ConfigMap{}
	if !s.Read(configMaps, "shop", "conf", got) || got.Data["a"] != "b" || got.UID == "" || got.Generation != 2 {
		t.Errorf("read %+v", got)
	}
	if s.Read(configMaps, "shop", "none", got) {
		t.Error("an object that does not exist is read")
	}
}

func TestSubresources(t *testing.T) {
	s, client := start(t)
	s.ServeSubresource(widgets, "size", func(w http.ResponseWriter, r *http.Request, namespace, name string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Size","metadata":{"name":%q}}`, namespace+" "+name)
	})
	u, err := client.Resource(widgets).Namespace("shop").Get(t.Context(), "a", metav1.GetOptions{}, "size")
	if err != nil || u.GetName() != "shop a" {
		t.Errorf("the subresource is %v, %v", u, err)
	}
	if _, err := client.Resource(widgets).Namespace("shop").Get(t.Context(), "a", metav1.GetOptions{}, "scale"); !apierrors.IsNotFound(err) {
		t.Errorf("another subresource: %v", err)
	}
}

func TestInitialEvents(t *testing.T) {
	s, client := start(t)
	s.Put(widget("a", 1))
	yes := true
	w, err := client.Resource(widgets).Watch(t.Context(), metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, want := range []watch.EventType{watch.Added, watch.Bookmark, watch.Added} {
		e := <-w.ResultChan()
		u, ok := e.Object.(*unstructured.Unstructured)
		if e.Type != want || !ok || (u.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true") != (want == watch.Bookmark) {
			t.Fatalf("the event is %v, want %s", e, want)
		}
		if e.Type == watch.Bookmark {
			s.Put(widget("b", 1))
		}
	}
}

// Clients tell a type that is not served from an object that does not exist.
func TestMissingTypes(t *testing.T) {
	_, client := start(t)
	for resource, missing := range map[string]bool{"widgets": false, "gadgets": true} {
		_, err := client.Resource(widgets.GroupVersion().WithResource(resource)).Namespace("shop").Get(t.Context(), "a", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) != missing {
			t.Errorf("%s: %v", resource, err)
		}
	}
}

func TestStoredByAnother(t *testing.T) {
	s, client := start(t)
	s.OnStore(func(u *unstructured.Unstructured) {
		if u.GetKind() == "Widget" && u.Object["status"] == nil {
			u.Object["status"] = map[string]any{"parts": []any{}}
		}
	})
	made, err := client.Resource(widgets).Namespace("shop").Create(t.Context(), widget("a", 1), metav1.CreateOptions{})
	if err != nil || made.Object["status"] == nil {
		t.Errorf("created %v, %v", made, err)
	}
	merged := s.Merge(widgets, "shop", "a", `{"spec":{"size":null},"status":{"parts":[{"name":"x"}]}}`)
	if parts, _, _ := unstructured.NestedSlice(merged.Object, "status", "parts"); len(parts) != 1 || len(merged.Object["spec"].(map[string]any)) != 0 || merged.GetGeneration() != 2 {
		t.Errorf("merged to %v", merged.Object)
	}
}

func TestNamesOfKinds(t *testing.T) {
	got := ""
	for _, k := range fakeapi.BuiltIns("v1 ConfigMap", "v1 Endpoints", "networking.k8s.io/v1 Ingress", "networking.k8s.io/v1 NetworkPolicy") {
		got += fmt.Sprintf("%s %v; ", k.GVR().GroupResource(), k.NoStatus)
	}
	if want := "configmaps true; endpoints true; ingresses.networking.k8s.io false; networkpolicies.networking.k8s.io false; "; got != want {
		t.Errorf("the kinds are %s", got)
	}
}

func TestHold(t *testing.T) {
	s, client := start(t)
	w, err := client.Resource(widgets).Namespace("shop").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	release := s.Hold(widgets)
	s.Put(widget("a", 1))
	select {
	case e := <-w.ResultChan():
		t.Fatalf("the event came although it is held: %v", e)
	default:
	}
	if s.Get(widgets, "shop", "a") == nil {
		t.Fatal("the object is not stored while events are held")
	}
	release()
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*unstructured.Unstructured).GetName() != "a" {
		t.Errorf("after the release the event is %v", e)
	}
}
