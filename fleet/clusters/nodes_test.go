package clusters

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func put(t *testing.T, s *fakeapi.Server, manifest string) {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		t.Fatal(err)
	}
	s.Put(u)
}

// watchNodes puts objects into a member and counts its nodes until the test ends.
func watchNodes(t *testing.T, manifests ...string) (*nodes, *fakeapi.Server) {
	t.Helper()
	member := fakeapi.New(t, fakeapi.BuiltIns("v1 Node", "v1 Pod", "v1 ResourceQuota")...)
	for _, manifest := range manifests {
		put(t, member, manifest)
	}
	client, err := typedcorev1.NewForConfig(member.Config())
	if err != nil {
		t.Fatal(err)
	}
	n := newNodes(client)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { n.run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return n, member
}

func everyNamespace(string) bool { return true }

// TestNodesHaveRoom: nodes that accept pods are summarized with what their pods have not requested.
func TestNodesHaveRoom(t *testing.T) {
	n, member := watchNodes(t,
		`{apiVersion: v1, kind: Node, metadata: {name: a, uid: a, labels: {kubernetes.io/hostname: a, zone: "1"}}, status: {allocatable: {cpu: "8", pods: "110"}, conditions: [{type: Ready, status: "True"}]}}`,
		`{apiVersion: v1, kind: Node, metadata: {name: b, uid: b, labels: {kubernetes.io/hostname: b, zone: "1"}}, spec: {unschedulable: true}, status: {allocatable: {cpu: "8", pods: "110"}, conditions: [{type: Ready, status: "True"}]}}`,
		`{apiVersion: v1, kind: Node, metadata: {name: c, uid: c}, status: {allocatable: {cpu: "8", pods: "110"}, conditions: [{type: Ready, status: Unknown}]}}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop, uid: p}, spec: {nodeName: a, containers: [{name: c, resources: {requests: {cpu: "2"}}}]}}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: q, namespace: shop, uid: q}, spec: {containers: [{name: c, resources: {requests: {cpu: "1"}}}]}}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: waits, namespace: shop, uid: w, labels: {pod-template-hash: x1}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-x1, uid: rs, controller: true}]}, spec: {containers: [{name: c, resources: {requests: {cpu: "12"}}}]},
			status: {conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: elsewhere, namespace: shop, uid: r}, spec: {nodeName: b, containers: [{name: c, resources: {requests: {cpu: "3"}}}]}}`,
	)
	shapes := func() *v1alpha1.NodeShapes {
		var status v1alpha1.ClusterStatus
		n.count(&status, everyNamespace, time.Now())
		return status.NodeShapes
	}
	waiting := func(at string) string {
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		var status v1alpha1.ClusterStatus
		n.count(&status, everyNamespace, now)
		out := ""
		for _, p := range status.PendingPods {
			out += fmt.Sprintf("%d of %s %s/%s since %s; ", p.Count, p.Kind, p.Namespace, p.Name, p.Since.UTC().Format(time.TimeOnly))
		}
		return out
	}
	free := func(want string, pods int64) {
		t.Helper()
		fakeapi.Until(t, "there is room for "+want, func() bool {
			s := shapes()
			return s != nil && len(s.Shapes) == 1 && s.Shapes[0].Count == 1 && s.Shapes[0].Free.Cpu().String() == want && s.Shapes[0].Free.Pods().Value() == pods
		})
	}
	free("5", 108)
	if s := shapes(); s.Labels["zone"] != "1" {
		t.Errorf("labels %v", s.Labels)
	}
	if early, late := waiting("2026-01-01T00:00:59Z"), waiting("2026-01-01T00:01:00Z"); early != "" || late != "1 of Deployment.apps shop/web since 00:00:00; " {
		t.Errorf("pending pods: %q, %q", early, late)
	}
	member.Delete(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "shop", "waits")
	fakeapi.Until(t, "no pod waits", func() bool { return waiting("2026-01-01T00:02:00Z") == "" })
	member.Delete(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "shop", "p")
	free("7", 109)
}

// TestFreeRoomIsWrittenNowAndThen: pods come and go all the time, so a change of free room alone is not written at
// once.
func TestFreeRoomIsWrittenNowAndThen(t *testing.T) {
	shapes := func(cpu, free string) *v1alpha1.NodeShapes {
		var s v1alpha1.NodeShapes
		if err := yaml.Unmarshal([]byte(`{shapes: [{count: 1, allocatable: {cpu: "`+cpu+`"}, free: {cpu: "`+free+`"}}]}`), &s); err != nil {
			t.Fatal(err)
		}
		return &s
	}
	now := time.Now()
	at := metav1.NewTime(now)
	for name, tt := range map[string]struct {
		was   *v1alpha1.NodeShapes
		is    *v1alpha1.NodeShapes
		after time.Duration
		kept  bool
	}{
		"a moment later":           {shapes("8", "2"), shapes("8", "1"), time.Second, true},
		"later":                    {shapes("8", "2"), shapes("8", "1"), freeInterval, false},
		"another node":             {shapes("8", "2"), shapes("16", "2"), time.Second, false},
		"known for the first time": {nil, shapes("8", "2"), time.Second, false},
		"unknown":                  {shapes("8", "2"), nil, time.Second, false},
	} {
		was, is := &v1alpha1.ClusterStatus{NodeShapes: tt.was, LastProbeTime: &at}, &v1alpha1.ClusterStatus{NodeShapes: tt.is}
		settleRoom(was, is, now.Add(tt.after))
		if kept := is.NodeShapes == was.NodeShapes; kept != tt.kept {
			t.Errorf("%s: kept %v", name, kept)
		}
	}
}
