package fleet

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/test/fakeapi"
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

// openSession starts a session over a control plane that serves widgets, gadgets, and these built-in
// kinds.
func openSession(t *testing.T, builtIn []string, objects ...*unstructured.Unstructured) (*Session, *fakeapi.Server) {
	t.Helper()
	kinds := append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns(append(builtIn, "v1 Namespace", "v1 Event", "apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)
	for _, gvk := range []schema.GroupVersionKind{widgets().WithVersion("v1"), widgets().WithVersion("v1alpha1"), gadgets().WithVersion("v1")} {
		kinds = append(kinds, fakeapi.Kind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Plural: strings.ToLower(gvk.Kind) + "s"})
	}
	control := fakeapi.New(t, kinds...)
	for _, o := range objects {
		control.Put(o)
	}
	ctx, stop := context.WithCancel(t.Context())
	session, err := NewSession(ctx, Config{REST: control.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); session.Wait() })
	return session, control
}

func widgets() schema.GroupKind { return schema.GroupKind{Group: "example.com", Kind: "Widget"} }

func gadgets() schema.GroupKind { return schema.GroupKind{Group: "example.com", Kind: "Gadget"} }

// TestCustomKindsComeAndGo: a kind is served when clusters accept its type, and for as long as it
// has bindings.
func TestCustomKindsComeAndGo(t *testing.T) {
	session, control := openSession(t, nil, parse(t, widgetType), widget(t, "one"))
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
	control.Put(negotiated(t, "v1", v1alpha1.NegotiatedEnforced))
	fakeapi.Until(t, "the kind is served", served)
	k, _ := session.Kinds.Get(widgets())
	if k.Version != "v1" || k.Resource != "widgets" || k.ClusterScoped || !session.Kinds.HasStatus(widgets()) {
		t.Errorf("served as %+v", k)
	}
	if _, ok := session.Objects.Get(widgets(), types.NamespacedName{Namespace: "shop", Name: "one"}); !ok {
		t.Error("served before its cache is filled")
	}
	fakeapi.Until(t, "earlier handlers are called for its objects", func() bool { mu.Lock(); defer mu.Unlock(); return heard["Widget/one"] })
	if !session.Kinds.DependenciesComplete() {
		t.Error("the session is not complete")
	}

	binding := parse(t, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {namespace: shop, name: widget.example.com-one, uid: b}
spec: {resource: {apiVersion: example.com/v1, kind: Widget, name: one, uid: w-one, resource: widgets}, clusters: [{name: east, reason: R}]}
`)
	control.Put(binding)
	fakeapi.Until(t, "the binding is in the cache", func() bool { return len(session.Bindings.Of(widgets())) == 1 })
	control.Delete(v1alpha1.NegotiatedAPIResourceResource, "", "widgets.v1.example.com")
	waitForTypes(t, session, control)
	if !served() {
		t.Error("the kind is no longer served although it has a binding")
	}
	control.Delete(v1alpha1.ResourceBindingResource, "shop", "widget.example.com-one")
	fakeapi.Until(t, "the kind is no longer served", func() bool { return !served() })
	fakeapi.Until(t, "all kind handlers are called", func() bool { mu.Lock(); defer mu.Unlock(); return told == 4 })
}

// waitForTypes waits until the session has evaluated all types again. It adds and removes another
// kind; the session handles those events after everything that happened before.
func waitForTypes(t *testing.T, session *Session, control *fakeapi.Server) {
	t.Helper()
	served := func() bool { _, ok := session.Kinds.Get(gadgets()); return ok }
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
	control.Put(crd)
	control.Put(agreed)
	fakeapi.Until(t, "another kind is served", served)
	control.Delete(v1alpha1.NegotiatedAPIResourceResource, "", agreed.GetName())
	fakeapi.Until(t, "the other kind is no longer served", func() bool { return !served() })
}

// TestBoundKindIsServedFromTheStart: a kind with a binding is served from the start, whatever is known
// of its type.
func TestBoundKindIsServedFromTheStart(t *testing.T) {
	session, control := openSession(t, nil, parse(t, widgetType), widget(t, "one"), parse(t, `
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
	control.Delete(crdResource(), "", "widgets.example.com")
	fakeapi.Until(t, "the kind is no longer served after its CRD is deleted", func() bool { _, served := session.Kinds.Get(widgets()); return !served })
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
	session, control := openSession(t, nil, parse(t, widgetType), negotiated(t, "v1alpha1", v1alpha1.NegotiatedPublished))
	version := func() string { k, _ := session.Kinds.Get(widgets()); return k.Version }
	if version() != "v1alpha1" {
		t.Fatalf("in version %s", version())
	}
	control.Put(negotiated(t, "v1", v1alpha1.NegotiatedPublished))
	fakeapi.Until(t, "the storage version is chosen", func() bool { return version() == "v1" })
}

func TestServes(t *testing.T) {
	session, control := openSession(t, nil, parse(t, widgetType), imported(t, "east", "v1", "True"), imported(t, "west", "v1", "False"), imported(t, "north", "v1alpha1", "True"))
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
	control.Put(imported(t, "west", "v1", "True"))
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
	session, control := openSession(t, nil, parse(t, widgetType), widget(t, "one"), widget(t, "two"), negotiated(t, "v1", v1alpha1.NegotiatedEnforced), bound("one", "east"), bound("two", "west"))
	fakeapi.Until(t, "the kind is served", func() bool { _, ok := session.Kinds.Get(widgets()); return ok })
	heard := make(chan types.NamespacedName, 100)
	defer session.Subscribe("east", func(key types.NamespacedName) { heard <- key })()
	<-heard // the initial notification
	customization := parse(t, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: ResourceInterpretation, metadata: {name: widgets, uid: l},
spec: {target: {apiVersion: example.com/v1, kind: Widget}, health: "'Degraded'"}}`)
	control.Put(customization)
	fakeapi.Until(t, "east is notified", func() bool { return len(heard) > 0 })
	if key := <-heard; key.Name != "widget.example.com-one" {
		t.Errorf("east is notified of %s", key)
	}
}
