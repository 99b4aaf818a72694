package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// A simulated member answers a syncer's requests as a real cluster does: a missing object,
// an applied one, an informer's events, and a ready status.
func TestSimulatedMember(t *testing.T) {
	crowd := &simulatedFleet{members: map[int]*simulatedMember{}, documents: map[string][]byte{"/openapi/v3": []byte(`{}`)}}
	server := httptest.NewServer(crowd)
	defer server.Close()
	crowd.members[server.Listener.Addr().(*net.TCPAddr).Port] = newSimulatedMember("member-0001")
	client, err := dynamic.NewForConfig(&rest.Config{Host: server.URL, BearerToken: "member-0001"})
	if err != nil {
		t.Fatal(err)
	}
	gvr := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	api := client.Resource(gvr).Namespace("shop")
	if _, err := api.Get(t.Context(), "web", metav1.GetOptions{}); !errors.IsNotFound(err) || errors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		t.Fatalf("a missing object: %v", err)
	}
	heard := make(chan *unstructured.Unstructured, 10)
	informer := dynamicinformer.NewFilteredDynamicInformer(client, gvr, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { heard <- o.(*unstructured.Unstructured) },
		UpdateFunc: func(_, o any) { heard <- o.(*unstructured.Unstructured) }}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	defer func() { stop(); <-ended }()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(deployment("web", "", 2)); err != nil {
		t.Fatal(err)
	}
	made, err := api.Apply(t.Context(), "web", u, metav1.ApplyOptions{FieldManager: "test"})
	if err != nil || made.GetUID() == "" || made.GetGeneration() != 1 || made.GetNamespace() != "shop" {
		t.Fatalf("applied: %v, %v", made, err)
	}
	for ready := int64(0); ready != 2; {
		select {
		case o := <-heard:
			ready, _, _ = unstructured.NestedInt64(o.Object, "status", "readyReplicas")
			if o.GetUID() != made.GetUID() {
				t.Errorf("event of another object: %v", o)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the Deployment did not become ready")
		}
	}
	if again, err := api.Apply(t.Context(), "web", u, metav1.ApplyOptions{FieldManager: "test"}); err != nil || again.GetGeneration() != 1 || again.GetUID() != made.GetUID() {
		t.Errorf("applied again: %v, %v", again, err)
	}
	if s := crowd.stats(); s.Watched != 1 || s.Objects != 1 || s.Requests == 0 {
		t.Errorf("%+v", s)
	}
}

func TestAddresses(t *testing.T) {
	for path, want := range map[string]address{
		"/api/v1/namespaces/kube-system":                 {"v1", "namespaces", "", "kube-system", ""},
		"/api/v1/nodes":                                  {"v1", "nodes", "", "", ""},
		"/apis/apps/v1/namespaces/a/deployments/b":       {"apps/v1", "deployments", "a", "b", ""},
		"/apis/apps/v1/namespaces/a/deployments/b/scale": {"apps/v1", "deployments", "a", "b", "scale"},
	} {
		if got, ok := addressOf(path); !ok || got != want {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if _, ok := addressOf("/healthz"); ok {
		t.Error("a path that is not of an object has an address")
	}
}

func TestObservationsAreOfOneRun(t *testing.T) {
	tr := &routeRun{name: "round-0-1", journal: (&writeNumbers{}).journal(2)}
	event := func(kind, name string, observed, ready int) string {
		raw, err := json.Marshal(map[string]any{"type": kind, "object": map[string]any{
			"metadata": map[string]any{"name": name, "generation": 1, "resourceVersion": "9"},
			"status":   map[string]any{"observedGeneration": observed, "readyReplicas": ready}}})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw) + "\n"
	}
	seen := newObservations(2, 3)
	calls := 0
	seen.onReady = func() { calls++ }
	_, left, err := tr.record(strings.NewReader(event("ADDED", "round-0-10-00000", 1, 3)+event("ADDED", "round-0-1-00001", 0, 3)+
		event("MODIFIED", "round-0-1-00001", 1, 2)+event("MODIFIED", "round-0-1-00001", 1, 3)), seen, "", 2)
	if err != nil || left != 1 || calls != 1 || seen.seen[0] != 0 || seen.seen[1] == 0 || seen.ready[1] <= seen.seen[1] {
		t.Errorf("%d left, %v, %+v", left, err, seen)
	}
}

func TestRequestsAreCounted(t *testing.T) {
	before := requests{"PATCH a": 10, "GET b": 5}
	got := requests{"PATCH a": 30, "GET b": 5.1, "POST c": 10}.perObject(before, 10)
	if len(got) != 2 || got["PATCH a"] != 2 || got["POST c"] != 1 {
		t.Errorf("%v", got)
	}
	if verb, sub := labelOf(`code="200",subresource="",verb="APPLY"`, "verb"), labelOf(`code="200",subresource="",verb="APPLY"`, "subresource"); verb != "APPLY" || sub != "" {
		t.Errorf("%q %q", verb, sub)
	}
}

func TestDeliveriesAreComparedWithDirectOnes(t *testing.T) {
	var out bytes.Buffer
	writeDeliveries(&out, []delivery{
		{Path: directly, ReadyP50: 100, ReadyP99: 200},
		{Path: toOneOf, ReadyP50: 150, ReadyP99: 600, SeenMax: 70, Requests: requests{"POST events": 1, "APPLY resourcebindings/status": 4}},
		{Path: toOneOf, Round: 1, ReadyP50: 250, ReadyP99: 600, SeenMax: 90, Requests: requests{"POST events": 1, "APPLY resourcebindings/status": 4}},
	})
	lines := strings.Split(out.String(), "\n")
	if !strings.Contains(lines[2], " 90.0 ") || !strings.Contains(lines[2], " 2.00  3.00 ") {
		t.Errorf("%q", lines[2])
	}
	if !strings.Contains(out.String(), "4.00  APPLY resourcebindings/status\n  1.00  POST events") {
		t.Errorf("%s", out.String())
	}
}
