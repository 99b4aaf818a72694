package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestAutoscaledCountIsWritten: spec.replicas is what the clusters' autoscalers decided in total. A
// user's count is corrected, as by an autoscaler in one cluster, except 0.
func TestAutoscaledCountIsWritten(t *testing.T) {
	control := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "apps/v1 Deployment", "apps/v1 ReplicaSet",
		"autoscaling/v2 HorizontalPodAutoscaler", "apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)
	object := func(apiVersion, kind, namespace string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind,
			"metadata": map[string]any{"namespace": namespace, "name": "web", "uid": kind + "-" + namespace, "generation": int64(1)}, "spec": spec}}
	}
	binding := func(of *unstructured.Unstructured, more map[string]any, shares ...int64) *unstructured.Unstructured {
		spec := map[string]any{"resource": map[string]any{"apiVersion": of.GetAPIVersion(), "kind": of.GetKind(), "name": "web", "uid": string(of.GetUID())}}
		for field, value := range more {
			spec[field] = value
		}
		var clusters []any
		for i, n := range shares {
			clusters = append(clusters, map[string]any{"name": []string{"east", "west"}[i], "replicas": n})
		}
		spec["clusters"] = clusters
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ResourceBinding",
			"metadata": map[string]any{"namespace": of.GetNamespace(), "name": v1alpha1.BindingName(of.GroupVersionKind().GroupKind(), "web"), "uid": "b-" + string(of.GetUID())}, "spec": spec}}
	}
	scaledBy := map[string]any{"kind": "HorizontalPodAutoscaler", "name": "web"}
	for namespace, manual := range map[string]bool{"shop": false, "manual": true} {
		web := object("apps/v1", "Deployment", namespace, map[string]any{"replicas": int64(1)})
		scaler := object("autoscaling/v2", "HorizontalPodAutoscaler", namespace, map[string]any{"minReplicas": int64(2), "maxReplicas": int64(9),
			"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}})
		more := map[string]any{"scaledBy": scaledBy}
		if manual {
			more["manual"] = map[string]any{"content": "x"}
		}
		for _, o := range []*unstructured.Unstructured{web, scaler, binding(web, more, 1, 1), binding(scaler, nil, 1, 1)} {
			control.Put(o)
		}
	}
	for _, name := range []string{"east", "west"} {
		control.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster", "metadata": map[string]any{"name": name}}})
	}
	report := func(namespace string, desired map[string]int) {
		t.Helper()
		var states []any
		for name, n := range desired {
			states = append(states, map[string]any{"name": name, "uid": "m", "generation": 1, "replicas": 1, "health": "Healthy", "status": map[string]any{"currentReplicas": n, "desiredReplicas": n}})
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"clusters": states}})
		if err != nil {
			t.Fatal(err)
		}
		control.Merge(v1alpha1.ResourceBindingResource, namespace, "horizontalpodautoscaler.autoscaling-web", string(patch))
	}
	ctx, stop := context.WithCancel(t.Context())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: control.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, session) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	apps := schema.GroupVersion{Group: "apps", Version: "v1"}.WithResource("deployments")
	scalers := schema.GroupVersion{Group: "autoscaling", Version: "v2"}.WithResource("horizontalpodautoscalers")
	replicas := func(namespace string) int64 {
		n, _, _ := unstructured.NestedInt64(control.Get(apps, namespace, "web").Object, "spec", "replicas")
		return n
	}
	awaitCount := func(want int64) {
		t.Helper()
		await(t, fmt.Sprint(want, " replicas"), func() bool { return replicas("shop") == want })
	}
	report("manual", map[string]int{"east": 4, "west": 3})
	report("shop", map[string]int{"east": 1})
	awaitCount(2) // the cluster without a report counts with its share
	report("shop", map[string]int{"east": 4, "west": 3})
	awaitCount(7)
	await(t, "the autoscaler's own count", func() bool {
		n, _, _ := unstructured.NestedInt64(control.Get(scalers, "shop", "web").Object, "status", "desiredReplicas")
		return n == 7
	})
	control.Merge(apps, "shop", "web", `{"spec":{"replicas":1}}`)
	awaitCount(7)

	control.Merge(apps, "shop", "web", `{"spec":{"replicas":0}}`)
	report("shop", map[string]int{"east": 4, "west": 5})
	await(t, "the autoscaler's new count", func() bool {
		n, _, _ := unstructured.NestedInt64(control.Get(scalers, "shop", "web").Object, "status", "desiredReplicas")
		return n == 9
	})
	if n := replicas("shop"); n != 0 {
		t.Errorf("%d replicas, want the 0 that a user set", n)
	}
	control.Merge(apps, "shop", "web", `{"metadata":{"labels":{"a":"b"}},"spec":{"replicas":3}}`)
	awaitCount(9)
	await(t, "the other namespace's autoscaler", func() bool {
		n, _, _ := unstructured.NestedInt64(control.Get(scalers, "manual", "web").Object, "status", "desiredReplicas")
		return n == 7
	})
	if n := replicas("manual"); n != 1 {
		t.Errorf("%d replicas in a Manual namespace, want the 1 that a plan allowed", n)
	}
}

// TestSharesDoNotFollowTheCount: with the scheduler, the written count moves no shares, and neither does
// a manifest that sets another one again and again. A lost cluster's replicas are divided as they are.
func TestSharesDoNotFollowTheCount(t *testing.T) {
	control := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "apps/v1 Deployment", "apps/v1 ReplicaSet",
		"autoscaling/v2 HorizontalPodAutoscaler", "apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)
	for i, name := range []string{"east", "west"} {
		control.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
			"metadata": map[string]any{"name": name, "uid": name, "creationTimestamp": fmt.Sprintf("2026-01-0%dT00:00:00Z", i+1)},
			"status":   map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "ClusterReady", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}}})
	}
	object := func(apiVersion, kind string, spec map[string]any) {
		control.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind,
			"metadata": map[string]any{"namespace": "shop", "name": "web", "uid": kind, "generation": int64(1)}, "spec": spec}})
	}
	object("apps/v1", "Deployment", map[string]any{"replicas": int64(1), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
		"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}})
	object("autoscaling/v2", "HorizontalPodAutoscaler", map[string]any{"minReplicas": int64(2), "maxReplicas": int64(9),
		"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}})

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	var sessions []*fleet.Session
	for _, run := range []fleet.Controller{Run, scheduler.NewController(scheduler.Config{})} {
		session, err := fleet.NewSession(ctx, fleet.Config{REST: control.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, session)
		go func() { done <- run(ctx, session) }()
	}
	defer func() {
		stop()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	}()

	apps := schema.GroupVersion{Group: "apps", Version: "v1"}.WithResource("deployments")
	shares := func(binding string) string {
		b := control.Get(v1alpha1.ResourceBindingResource, "shop", binding)
		if b == nil {
			return "none"
		}
		out := ""
		clusters, _, _ := unstructured.NestedSlice(b.Object, "spec", "clusters")
		for _, c := range clusters {
			share, _ := c.(map[string]any)
			out += fmt.Sprint(share["name"], " ", share["replicas"], " ")
		}
		return strings.TrimSpace(out)
	}
	const target, scaler = "deployment.apps-web", "horizontalpodautoscaler.autoscaling-web"
	awaitShares := func(want string) {
		t.Helper()
		await(t, "the shares "+want, func() bool { return shares(target) == want && shares(scaler) == want })
	}
	awaitCount := func(want int64) {
		t.Helper()
		await(t, fmt.Sprint(want, " replicas"), func() bool {
			n, _, _ := unstructured.NestedInt64(control.Get(apps, "shop", "web").Object, "spec", "replicas")
			return n == want && !slices.ContainsFunc(sessions, func(s *fleet.Session) bool { // the next decision is about this count
				cached, _ := s.Objects.Get(schema.GroupKind{Group: "apps", Kind: "Deployment"}, types.NamespacedName{Namespace: "shop", Name: "web"})
				n, _, _ := unstructured.NestedInt64(cached.Object, "spec", "replicas")
				return n != want
			})
		})
	}
	report := func(east, west int) {
		state := `{"name":%q,"uid":"m","generation":1,"replicas":1,"health":"Healthy","status":{"currentReplicas":%d,"desiredReplicas":%d}}`
		control.Merge(v1alpha1.ResourceBindingResource, "shop", scaler,
			fmt.Sprintf(`{"status":{"clusters":[`+state+`,`+state+`]}}`, "east", east, east, "west", west, west))
	}
	awaitShares("east 1 west 1")
	report(4, 3)
	awaitCount(7)
	for range 3 {
		control.Merge(apps, "shop", "web", `{"spec":{"replicas":1}}`)
		awaitCount(7)
	}
	report(4, 1)
	awaitCount(5)
	if now := shares(target); now != "east 1 west 1" {
		t.Errorf("the shares are %s, want east 1 and west 1 as before", now)
	}
	control.Merge(v1alpha1.ClusterResource, "", "east", `{"spec":{"taints":[{"key":"gone","effect":"NoExecute"}]}}`)
	awaitShares("west 5")
	report(0, 6)
	awaitCount(6)
}

// TestReportsAreWholeNumbers: counts that clusters report are numbers as in objects, so that those of
// custom resources add up.
func TestReportsAreWholeNumbers(t *testing.T) {
	b := reported(t, `{"replicas":3}`)
	m, err := memberOf(b, b.Spec.Clusters[0], "")
	if err != nil {
		t.Fatal(err)
	}
	if n, is := m.Status["replicas"].(int64); !is || n != 3 {
		t.Errorf("%T %v, want int64 3", m.Status["replicas"], m.Status["replicas"])
	}
}

func reported(t *testing.T, status string) *v1alpha1.ResourceBinding {
	t.Helper()
	b := &v1alpha1.ResourceBinding{}
	data := `{"spec":{"clusters":[{"name":"east"}]},"status":{"clusters":[{"name":"east","uid":"u","status":` + status + `}]}}`
	if err := json.Unmarshal([]byte(data), b); err != nil {
		t.Fatal(err)
	}
	return b
}
