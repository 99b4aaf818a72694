package fleet

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

const widgetType = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com, uid: t}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1alpha1, served: true, storage: false}
  - {name: v1, served: true, storage: true, subresources: {status: {}}}
status: {conditions: [{type: Established, status: "True"}]}
`

func parse(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func negotiated(t *testing.T, version, condition string) *unstructured.Unstructured {
	return parse(t, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: NegotiatedAPIResource
metadata: {name: widgets.`+version+`.example.com}
spec: {groupVersion: {group: example.com, version: `+version+`}, plural: widgets, kind: Widget, scope: Namespaced}
status: {conditions: [{type: `+condition+`, status: "True", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`)
}

func imported(t *testing.T, cluster, version, compatible string) *unstructured.Unstructured {
	return parse(t, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: APIResourceImport
metadata: {name: widgets.`+cluster+`.`+version+`.example.com}
spec: {location: `+cluster+`, groupVersion: {group: example.com, version: `+version+`}, plural: widgets, kind: Widget, scope: Namespaced}
status:
  conditions:
  - {type: Available, status: "True", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}
  - {type: Compatible, status: "`+compatible+`", reason: R, message: "spec.size is narrower", lastTransitionTime: "2026-01-01T00:00:00Z"}
`)
}

func widget(t *testing.T, name string) *unstructured.Unstructured {
	return parse(t, "apiVersion: example.com/v1\nkind: Widget\nmetadata: {namespace: shop, name: "+name+", uid: w-"+name+"}")
}

// openSession starts a session over a fake control plane without built-in kinds.
func openSession(t *testing.T, objects ...runtime.Object) (*Session, *dynamicfake.FakeDynamicClient) {
	t.Helper()
	dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds(), objects...)
	ctx, stop := context.WithCancel(t.Context())
	session, err := NewSessionWithClients(ctx, Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}, kubefake.NewClientset(), dyn, nil, nil)
	if err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); session.Wait() })
	return session, dyn
}

// listKinds returns the kinds that every session watches, and widgets.
func listKinds() map[schema.GroupVersionResource]string {
	return map[schema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.ResourceBindingResource: "ResourceBindingList",
		v1alpha1.PlacementResource: "PlacementList", v1alpha1.ClusterPlacementResource: "ClusterPlacementList",
		v1alpha1.ClusterResourceBindingResource: "ClusterResourceBindingList", crdResource(): "CustomResourceDefinitionList",
		v1alpha1.NegotiatedAPIResourceResource: "NegotiatedAPIResourceList", v1alpha1.APIResourceImportResource: "APIResourceImportList",
		v1alpha1.ResourceInterpretationResource:                          "ResourceInterpretationList",
		{Version: "v1", Resource: "namespaces"}:                          "NamespaceList",
		{Group: "example.com", Version: "v1", Resource: "widgets"}:       "WidgetList",
		{Group: "example.com", Version: "v1", Resource: "gadgets"}:       "GadgetList",
		{Group: "example.com", Version: "v1alpha1", Resource: "widgets"}: "WidgetList",
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not: %s", what)
		}
	}
}

func widgets() schema.GroupKind { return schema.GroupKind{Group: "example.com", Kind: "Widget"} }

// TestCustomKindsComeAndGo: a kind is served when clusters accept its type, and for as long as it
// has bindings.
func TestCustomKindsComeAndGo(t *testing.T) {
	session, control := openSession(t, parse(t, widgetType), widget(t, "one"))
	served := func() bool { _, ok := session.Kinds.Get(widgets()); return ok }
	if served() {
		t.Fatal("served before any cluster reported its types")
	}
	var mu sync.Mutex
	heard, told := map[string]bool{}, 0
	if err := session.Objects.OnAnyChange(func(k interpret.KindInfo, _, is metav1.Object) {
		mu.Lock()
		defer mu.Unlock()
		heard[k.Kind+"/"+is.GetName()] = true
	}); err != nil {
		t.Fatal(err)
	}
	session.Kinds.OnChange(func(interpret.KindInfo) { mu.Lock(); defer mu.Unlock(); told++ })
	tracker := control.Tracker()
	if err := tracker.Create(v1alpha1.NegotiatedAPIResourceResource, negotiated(t, "v1", v1alpha1.NegotiatedEnforced), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kind is served", served)
	k, _ := session.Kinds.Get(widgets())
	if k.Version != "v1" || k.Resource != "widgets" || k.ClusterScoped || !session.Kinds.HasStatus(widgets()) {
		t.Errorf("served as %+v", k)
	}
	if _, ok := session.Objects.Get(widgets(), types.NamespacedName{Namespace: "shop", Name: "one"}); !ok {
		t.Error("served before its cache is filled")
	}
	eventually(t, "earlier handlers are called for its objects", func() bool { mu.Lock(); defer mu.Unlock(); return heard["Widget/one"] })
	if !session.Kinds.DependenciesComplete() {
		t.Error("the session is not complete")
	}

	binding := parse(t, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {namespace: shop, name: widget.example.com-one, uid: b}
spec: {resource: {apiVersion: example.com/v1, kind: Widget, name: one, uid: w-one, resource: widgets}, clusters: [{name: east, reason: R}]}
`)
	if err := tracker.Create(v1alpha1.ResourceBindingResource, binding, "shop"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the binding is in the cache", func() bool { return len(session.Bindings.Of(widgets())) == 1 })
	if err := tracker.Delete(v1alpha1.NegotiatedAPIResourceResource, "", "widgets.v1.example.com"); err != nil {
		t.Fatal(err)
	}
	waitForTypes(t, session, control)
	if !served() {
		t.Error("the kind is no longer served although it has a binding")
	}
	if err := tracker.Delete(v1alpha1.ResourceBindingResource, "shop", "widget.example.com-one"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kind is no longer served", func() bool { return !served() })
	eventually(t, "all kind handlers are called", func() bool { mu.Lock(); defer mu.Unlock(); return told == 4 })
}

// waitForTypes waits until the session has evaluated all types again. It adds and removes another
// kind; the session handles those events after everything that happened before.
func waitForTypes(t *testing.T, session *Session, control *dynamicfake.FakeDynamicClient) {
	t.Helper()
	served := func() bool {
		_, ok := session.Kinds.Get(schema.GroupKind{Group: "example.com", Kind: "Gadget"})
		return ok
	}
	crd, agreed := parse(t, widgetType), negotiated(t, "v1", v1alpha1.NegotiatedEnforced)
	for field, value := range map[string]string{"plural": "gadgets", "kind": "Gadget"} {
		for o, path := range map[*unstructured.Unstructured][]string{crd: {"spec", "names", field}, agreed: {"spec", field}} {
			if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
				t.Fatal(err)
			}
		}
	}
	crd.SetName("gadgets.example.com")
	agreed.SetName("gadgets.v1.example.com")
	if err := control.Tracker().Create(crdResource(), crd, ""); err != nil {
		t.Fatal(err)
	}
	if err := control.Tracker().Create(v1alpha1.NegotiatedAPIResourceResource, agreed, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another kind is served", served)
	if err := control.Tracker().Delete(v1alpha1.NegotiatedAPIResourceResource, "", agreed.GetName()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other kind is no longer served", func() bool { return !served() })
}

// TestBoundKindIsServedFromTheStart: a kind with a binding is served from the start, whatever is known
// of its type.
func TestBoundKindIsServedFromTheStart(t *testing.T) {
	session, control := openSession(t, parse(t, widgetType), widget(t, "one"), parse(t, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {namespace: shop, name: widget.example.com-one, uid: b}
spec: {resource: {apiVersion: example.com/v1alpha1, kind: Widget, name: one, uid: w-one, resource: widgets}}
`))
	k, served := session.Kinds.Get(widgets())
	if !served || k.Version != "v1alpha1" {
		t.Fatalf("served %v in version %s, want that of the binding", served, k.Version)
	}
	if gone, err := session.Types.Gone(t.Context(), k); gone || err != nil {
		t.Errorf("TypeGone = %v, %v before the CRD is deleted", gone, err)
	}
	if err := control.Tracker().Delete(crdResource(), "", "widgets.example.com"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kind is no longer served after its CRD is deleted", func() bool { _, served := session.Kinds.Get(widgets()); return !served })
	if gone, err := session.Types.Gone(t.Context(), k); !gone || err != nil {
		t.Errorf("TypeGone = %v, %v after the CRD is deleted", gone, err)
	}
	found, ok := session.Kinds.Of(session.Bindings.Of(widgets())[0])
	if !ok || found.GVR().String() != "example.com/v1alpha1, Resource=widgets" {
		t.Errorf("KindOf the binding: %v, %v", found.GVR(), ok)
	}
	if deployments, _ := interpret.BuiltIn().Find(schema.GroupKind{Group: "apps", Kind: "Deployment"}); Native(deployments.GroupKind()) {
		if gone, err := session.Types.Gone(t.Context(), deployments); gone || err != nil {
			t.Errorf("TypeGone = %v, %v for a disabled built-in kind", gone, err)
		}
	}
}

// TestVersions: the version is one that clusters accept, preferably the storage version.
func TestVersions(t *testing.T) {
	session, control := openSession(t, parse(t, widgetType), negotiated(t, "v1alpha1", v1alpha1.NegotiatedPublished))
	version := func() string { k, _ := session.Kinds.Get(widgets()); return k.Version }
	if version() != "v1alpha1" {
		t.Fatalf("in version %s", version())
	}
	if err := control.Tracker().Create(v1alpha1.NegotiatedAPIResourceResource, negotiated(t, "v1", v1alpha1.NegotiatedPublished), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the storage version is chosen", func() bool { return version() == "v1" })
}

func TestServes(t *testing.T) {
	session, control := openSession(t, parse(t, widgetType), imported(t, "east", "v1", "True"), imported(t, "west", "v1", "False"), imported(t, "north", "v1alpha1", "True"))
	v1 := widgets().WithVersion("v1")
	for cluster, want := range map[string]string{
		"east":  "",
		"west":  "type Widget.example.com of the cluster is not Compatible: spec.size is narrower",
		"north": "the cluster serves Widget.example.com in version v1alpha1, not in v1",
		"south": "the cluster does not serve Widget.example.com",
	} {
		if ok, why := session.Types.ServedBy(cluster, v1); why != want || ok != (want == "") {
			t.Errorf("%s: %v %q, want %q", cluster, ok, why, want)
		}
	}
	if ok, why := session.Types.ServedBy("south", schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}); !ok {
		t.Errorf("a built-in kind: %s", why)
	}
	heard := make(chan string, 20)
	if err := session.Types.OnServedBy(func(cluster string, gk schema.GroupKind) { heard <- cluster + " " + gk.String() }); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-heard
	}
	if err := control.Tracker().Update(v1alpha1.APIResourceImportResource, imported(t, "west", "v1", "True"), ""); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; !strings.HasPrefix(got, "west ") {
		t.Errorf("called for %s", got)
	}
}

// TestCustomizationReachesClusters: when a customization changes how a kind is interpreted, the
// clusters that have its objects are notified.
func TestCustomizationReachesClusters(t *testing.T) {
	bound := func(name, cluster string) *unstructured.Unstructured {
		return parse(t, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {namespace: shop, name: widget.example.com-`+name+`, uid: b-`+name+`}
spec: {resource: {apiVersion: example.com/v1, kind: Widget, name: `+name+`, uid: w-`+name+`, resource: widgets}, clusters: [{name: `+cluster+`, reason: R}]}
`)
	}
	session, control := openSession(t, parse(t, widgetType), widget(t, "one"), widget(t, "two"), negotiated(t, "v1", v1alpha1.NegotiatedEnforced), bound("one", "east"), bound("two", "west"))
	eventually(t, "the kind is served", func() bool { _, ok := session.Kinds.Get(widgets()); return ok })
	heard := make(chan types.NamespacedName, 100)
	defer session.Subscribe("east", func(key types.NamespacedName) { heard <- key })()
	<-heard // the initial notification
	customization := parse(t, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: ResourceInterpretation, metadata: {name: widgets, uid: l},
spec: {target: {apiVersion: example.com/v1, kind: Widget}, health: "'Degraded'"}}`)
	if err := control.Tracker().Create(v1alpha1.ResourceInterpretationResource, customization, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "east is notified", func() bool { return len(heard) > 0 })
	if key := <-heard; key.Name != "widget.example.com-one" {
		t.Errorf("east is notified of %s", key)
	}
}
