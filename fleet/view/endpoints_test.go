package view

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/multicluster"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// exported returns a Service and its binding to clusters. With an export, the binding is marked.
func exported(name, export string, clusters ...string) []*unstructured.Unstructured {
	b := bind(name, clusters...)
	b.SetName("service-" + name)
	_ = unstructured.SetNestedField(b.Object, "Service", "spec", "resource", "kind")
	if export != "" {
		b.SetAnnotations(map[string]string{v1alpha1.ExportedAnnotation: export})
	}
	return []*unstructured.Unstructured{b, object("v1", "Service", "shop", name, map[string]any{"spec": map[string]any{"ports": []any{}}})}
}

// endpointsAt are one slice of endpoints.
func endpointsAt(addresses ...string) multicluster.Endpoints {
	s := multicluster.Slice{AddressType: discoveryv1.AddressTypeIPv4}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return multicluster.Endpoints{Slices: []multicluster.Slice{s}}
}

func startExported(t *testing.T) *fixture {
	t.Helper()
	var objects []*unstructured.Unstructured
	objects = append(objects, exported("web", "export-uid", "east", "west")...)
	objects = append(objects, exported("private", "", "east")...)
	objects = append(objects, exported("theirs", "export-2", "west")...)
	return newFixtureOf(t, fakeapi.BuiltIns("v1 Service", "discovery.k8s.io/v1 EndpointSlice"), objects...)
}

// TestEndpointsOfOthers: a cluster reports only the endpoints of exported Services that are placed in it, within bounds.
func TestEndpointsOfOthers(t *testing.T) {
	s := startExported(t)
	bound := eastView + "/apis/" + apiVersion + "/namespaces/shop/boundobjects/"
	for _, c := range []struct {
		who  Caller
		name string
		uid  string
		body multicluster.Endpoints
		code int
		want string
	}{
		{syncerOf("east"), "service-private", "uid-binding-private", endpointsAt("10.0.0.1"), 403, "Service shop/private is no exported Service that is placed in cluster east: its endpoints are not to be reported"},
		{syncerOf("east"), "service-theirs", "uid-binding-theirs", endpointsAt("10.0.0.1"), 404, ""},
		{syncerOf("west"), "service-web", "uid-binding-web", endpointsAt("10.0.0.1"), 403, ""},
		{syncerOf("east"), "service-web", "another", endpointsAt("10.0.0.1"), 409, "different object of the same name"},
		{syncerOf("east"), "service-web", "uid-binding-web", endpointsAt("127.0.0.1"), 400, "the endpoints of Service shop/web in cluster east are refused: 127.0.0.1 is not the address of a pod"},
		{syncerOf("east"), "service-web", "uid-binding-web", endpointsAt(make([]string, 101)...), 400, "more than 100 in a slice"},
		{Caller{Name: "anybody"}, "service-web", "uid-binding-web", endpointsAt("10.0.0.1"), 403, ""},
	} {
		code, text := s.ask(c.who, "PUT", bound+c.name+"/endpoints", EndpointsReport{UID: types.UID(c.uid), Endpoints: c.body})
		if code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.who.Name, c.name, code, text, c.code, c.want)
		}
	}
	if code, text := s.ask(syncerOf("east"), "PUT", bound+"service-web/endpoints", "no report"); code != 400 {
		t.Errorf("%d %s", code, text)
	}
	if found := s.control.List(sliceResource()); len(found) > 0 {
		t.Errorf("written: %v", found)
	}
}

// TestEndpoints: a report becomes EndpointSlices of the cluster, whose names, labels and owner do not come from it. The next
// report replaces them, and changes none of another cluster.
func TestEndpoints(t *testing.T) {
	s := startExported(t)
	report := func(cluster string, e multicluster.Endpoints) {
		t.Helper()
		path := v1alpha1.ViewsPath + cluster + "/apis/" + apiVersion + "/namespaces/shop/boundobjects/service-web/endpoints"
		if code, text := s.ask(syncerOf(cluster), "PUT", path, EndpointsReport{UID: "uid-binding-web", Endpoints: e}); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
	}
	written := func() (out []string) {
		for _, u := range s.control.List(sliceResource()) {
			l := u.GetLabels()
			endpoints, _, _ := unstructured.NestedSlice(u.Object, "endpoints")
			out = append(out, fmt.Sprint(u.GetName(), " ", l["multicluster.kubernetes.io/source-cluster"], " ", l["kubernetes.io/service-name"], " ", u.GetOwnerReferences()[0].UID, " ", len(endpoints)))
		}
		return out
	}
	derived := multicluster.DerivedName("shop", "web")
	two := endpointsAt("10.0.0.1", "10.0.0.2")
	two.Slices = append(two.Slices, endpointsAt("10.0.0.3").Slices...)
	report("west", endpointsAt("10.1.0.1"))
	report("east", two)
	want := []string{derived + "-east-ipv4-0 east " + derived + " export-uid 2", derived + "-east-ipv4-1 east " + derived + " export-uid 1", derived + "-west-ipv4-0 west " + derived + " export-uid 1"}
	if got := written(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	want = []string{derived + "-east-ipv4-0 east " + derived + " export-uid 0", want[2]}
	fakeapi.Eventually(t, "without endpoints one slice stays", func() error {
		report("east", multicluster.Endpoints{})
		if got := written(); strings.Join(got, "\n") != strings.Join(want, "\n") {
			return fmt.Errorf("%s", strings.Join(got, "\n"))
		}
		return nil
	})
}

// TestEndpointsInQuickSuccession: reports that follow each other closely are written although the cache has none of them yet. A pod
// may get the address of the one before it.
func TestEndpointsInQuickSuccession(t *testing.T) {
	s := startExported(t)
	report := func(e multicluster.Endpoints) {
		t.Helper()
		path := eastView + "/apis/" + apiVersion + "/namespaces/shop/boundobjects/service-web/endpoints"
		if code, text := s.ask(syncerOf("east"), "PUT", path, EndpointsReport{UID: "uid-binding-web", Endpoints: e}); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
	}
	want := func(addresses ...string) {
		t.Helper()
		var got []string
		for _, u := range s.control.List(sliceResource()) {
			endpoints, _, _ := unstructured.NestedSlice(u.Object, "endpoints")
			for _, e := range endpoints {
				of, _, _ := unstructured.NestedStringSlice(e.(map[string]any), "addresses")
				got = append(got, of...)
			}
		}
		if !slices.Equal(got, addresses) {
			t.Errorf("%v, want %v", got, addresses)
		}
	}
	report(endpointsAt("10.0.0.1"))
	caches, release, err := s.host.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	first := types.NamespacedName{Namespace: "shop", Name: multicluster.SliceName(types.NamespacedName{Namespace: "shop", Name: "web"}, "east", discoveryv1.AddressTypeIPv4, 0)}
	fakeapi.Eventually(t, "the cache has the first report", func() error {
		if _, ok := caches.session.Objects.Get(sliceKind(), first); !ok {
			return errors.New("it has not")
		}
		return nil
	})
	defer s.control.Hold(sliceResource())()
	report(endpointsAt())
	want()
	report(endpointsAt("10.0.0.1"))
	want("10.0.0.1")
	two := endpointsAt("10.0.0.1")
	two.Slices = append(two.Slices, endpointsAt("10.0.0.2").Slices...)
	report(two)
	want("10.0.0.1", "10.0.0.2")
	report(endpointsAt("10.0.0.1"))
	want("10.0.0.1")
}

// TestRemoteEndpoints: a syncer in mode Pull sees in its view which Services are exported, and reports their endpoints there.
func TestRemoteEndpoints(t *testing.T) {
	s := startExported(t)
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	b, ok := r.Binding(types.NamespacedName{Namespace: "shop", Name: "service-web"})
	if !ok || b.Annotations[v1alpha1.ExportedAnnotation] != "export-uid" {
		t.Fatalf("%v %+v", ok, b)
	}
	if err := r.ReportEndpoints(t.Context(), b, endpointsAt("10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	if found := s.control.List(sliceResource()); len(found) != 1 || found[0].GetName() != multicluster.DerivedName("shop", "web")+"-east-ipv4-0" {
		t.Errorf("%v", found)
	}
	private, ok := r.Binding(types.NamespacedName{Namespace: "shop", Name: "service-private"})
	if !ok {
		t.Fatal("the binding is not in the view")
	}
	err := r.ReportEndpoints(t.Context(), private, endpointsAt("10.0.0.1"))
	if err == nil || !strings.Contains(err.Error(), "is no exported Service that is placed in cluster east") {
		t.Error(err)
	}
}
