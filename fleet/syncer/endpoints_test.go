package syncer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/multicluster"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var (
	serviceResource = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	sliceResource   = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
)

// serviceIn returns a Service of the control plane and its binding to the cluster.
func serviceIn(name string, annotations map[string]string, labels map[string]string) []*unstructured.Unstructured {
	o := object("v1", "Service", "shop", name, "uid-"+name, map[string]any{"spec": map[string]any{"selector": map[string]any{"app": "web"}, "ports": []any{map[string]any{"port": int64(80), "protocol": "TCP"}}}})
	o.SetLabels(labels)
	b := binding(true, nil)
	b.SetName("service-" + name)
	b.SetUID("binding-" + o.GetUID())
	withSpec(b, "resource", map[string]any{"apiVersion": "v1", "kind": "Service", "name": name, "uid": "uid-" + name})
	b.SetAnnotations(annotations)
	return []*unstructured.Unstructured{o, b}
}

// sliceOf returns an EndpointSlice of the member.
func sliceOf(service, name string, addresses ...string) *unstructured.Unstructured {
	var endpoints []any
	for _, a := range addresses {
		endpoints = append(endpoints, map[string]any{"addresses": []any{a}, "nodeName": "node-1", "conditions": map[string]any{"ready": true}})
	}
	o := object("discovery.k8s.io/v1", "EndpointSlice", "shop", name, name, map[string]any{"addressType": "IPv4", "endpoints": endpoints})
	o.SetLabels(map[string]string{"kubernetes.io/service-name": service})
	return o
}

// reported returns the addresses that the control plane has of the endpoints of the cluster.
func (s *fixture) reported() []string {
	out := []string{}
	for _, u := range s.control.List(sliceResource) {
		if u.GetLabels()["multicluster.kubernetes.io/source-cluster"] != "east" {
			continue
		}
		endpoints, _, _ := unstructured.NestedSlice(u.Object, "endpoints")
		for _, e := range endpoints {
			addresses, _, _ := unstructured.NestedStringSlice(e.(map[string]any), "addresses")
			out = append(out, addresses...)
		}
	}
	slices.Sort(out)
	return out
}

func (s *fixture) wantReported(what string, want ...string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, what, func() error {
		if got := s.reported(); !slices.Equal(got, want) {
			return fmt.Errorf("reported %v, want %v", got, want)
		}
		return nil
	})
}

// TestExportedEndpoints: the endpoints of an exported Service are reported, with each change, and those of no other.
func TestExportedEndpoints(t *testing.T) {
	s := newFixture(t, slices.Concat(serviceIn("web", nil, nil), serviceIn("other", nil, nil)),
		[]*unstructured.Unstructured{sliceOf("web", "web-1", "10.0.0.1"), sliceOf("other", "other-1", "10.0.0.9")})
	s.eventually("the Service is applied", func() bool { return s.member.Get(serviceResource, "shop", "web") != nil })
	s.settle()
	if got := s.control.List(sliceResource); len(got) > 0 {
		t.Errorf("reported without an export: %v", got)
	}
	if s.member.Watching(sliceResource) {
		t.Error("EndpointSlices are watched without an export")
	}
	s.control.Merge(v1alpha1.ResourceBindingResource, "shop", "service-web", `{"metadata": {"annotations": {"fleet.atoll.dev/exported": "export"}}}`)
	s.wantReported("the endpoints", "10.0.0.1")
	s.member.Put(sliceOf("web", "web-2", "10.0.0.2"))
	s.wantReported("a second slice", "10.0.0.1", "10.0.0.2")
	s.member.Delete(sliceResource, "shop", "web-1")
	s.wantReported("the first slice is gone", "10.0.0.2")
	s.member.Delete(sliceResource, "shop", "web-2")
	s.wantReported("no endpoints")
	if got := s.control.List(sliceResource); len(got) != 1 || !strings.HasPrefix(got[0].GetName(), multicluster.DerivedName("shop", "web")+"-east") {
		t.Errorf("%v", got)
	}
	s.control.Merge(v1alpha1.ResourceBindingResource, "shop", "service-web", `{"metadata": {"annotations": {"fleet.atoll.dev/exported": null}}}`)
	s.eventually("EndpointSlices are watched no more", func() bool { return !s.member.Watching(sliceResource) })
}

// TestTakenOverEndpoints: a cluster reports no endpoints of a Service whose pods other clusters have taken over, and reports them
// again when the Service stays after all.
func TestTakenOverEndpoints(t *testing.T) {
	s := newFixture(t, serviceIn("web", map[string]string{v1alpha1.ExportedAnnotation: "export"}, nil), []*unstructured.Unstructured{sliceOf("web", "web-1", "10.0.0.1")})
	s.wantReported("the endpoints", "10.0.0.1")
	remove := func(requests ...any) {
		s.control.Change(v1alpha1.ResourceBindingResource, "shop", "service-web", func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedSlice(u.Object, requests, "spec", "requestedRemovals")
		})
	}
	remove(map[string]any{"name": "east", "reason": v1alpha1.RemovalReplaced})
	s.eventually("EndpointSlices are watched no more", func() bool { return !s.member.Watching(sliceResource) })
	for _, u := range s.control.List(sliceResource) {
		s.control.Delete(sliceResource, "shop", u.GetName()) // as the controller does
	}
	s.settle()
	s.wantReported("none")
	remove()
	s.wantReported("they are back", "10.0.0.1")
}

// TestDerivedAddresses: the syncer reports the address of a derived Service, and of no other.
func TestDerivedAddresses(t *testing.T) {
	s := newFixture(t, slices.Concat(serviceIn("derived-x", nil, map[string]string{v1alpha1.ImportedLabel: "true"}), serviceIn("web", nil, nil)), nil)
	for _, name := range []string{"derived-x", "web"} {
		s.eventually(name+" is applied", func() bool { return s.member.Get(serviceResource, "shop", name) != nil })
		s.member.Merge(serviceResource, "shop", name, `{"spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"]}}`)
	}
	addresses := func(name string) []string {
		b := &v1alpha1.ResourceBinding{}
		s.control.Read(v1alpha1.ResourceBindingResource, "shop", "service-"+name, b)
		state, _ := b.State("east")
		return state.ClusterIPs
	}
	s.eventually("the address is reported", func() bool { return slices.Equal(addresses("derived-x"), []string{"10.96.0.7"}) })
	s.settle()
	if got := addresses("web"); len(got) > 0 {
		t.Errorf("reported %v of an ordinary Service", got)
	}
}

// TestEndpointReportDelay: changes that follow each other closely are reported at once. More of them are reported at the
// interval, and after a pause the next ones are reported at once again.
func TestEndpointReportDelay(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &reportedEndpoints{}
	for i := range endpointReportBurst {
		if wait := r.delay(now); wait != 0 {
			t.Fatalf("report %d is delayed by %s", i+1, wait)
		}
	}
	for range 3 { // an attempt that is delayed does not count
		if wait := r.delay(now); wait != endpointReportInterval {
			t.Fatalf("the report after the burst is delayed by %s, want %s", wait, endpointReportInterval)
		}
	}
	now = now.Add(endpointReportInterval)
	if first, second := r.delay(now), r.delay(now); first != 0 || second != endpointReportInterval {
		t.Errorf("after the interval, reports are delayed by %s and %s", first, second)
	}
	now = now.Add(time.Minute)
	for i := range endpointReportBurst {
		if wait := r.delay(now); wait != 0 {
			t.Errorf("after a pause, report %d is delayed by %s", i+1, wait)
		}
	}
}
