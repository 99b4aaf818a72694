package syncer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// deploymentOf returns a Deployment of the control plane and its binding, with 3 replicas in the cluster.
func deploymentOf(name string) []*unstructured.Unstructured {
	labels := map[string]any{"app": name}
	o := object("apps/v1", "Deployment", "shop", name, "uid-"+name, map[string]any{"spec": map[string]any{"replicas": int64(3), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}})
	b := binding(false, nil)
	b.SetName("deployment.apps-" + name)
	b.SetUID("binding-" + o.GetUID())
	withSpec(b, "resource", map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": "uid-" + name})
	withSpec(b, "clusters", []any{map[string]any{"name": "east", "reason": "Scheduled", "replicas": int64(3)}})
	return []*unstructured.Unstructured{o, b}
}

// podOf returns a pod of a Deployment in the member, with the address 10.0.0.N.
func podOf(deployment string, n int, annotations map[string]string) *unstructured.Unstructured {
	name := fmt.Sprintf("%s-%d", deployment, n)
	o := object("v1", "Pod", "shop", name, "uid-"+name, map[string]any{"spec": map[string]any{"nodeName": "node-" + name},
		"status": map[string]any{"phase": "Running", "podIPs": []any{map[string]any{"ip": fmt.Sprintf("10.0.0.%d", n)}},
			"conditions": []any{map[string]any{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}})
	o.SetLabels(map[string]string{"app": deployment, "pod-template-hash": "x"})
	o.SetAnnotations(annotations)
	yes := true
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: deployment + "-x", UID: "rs", Controller: &yes}})
	return o
}

// draining starts a syncer of a Deployment with 3 pods, whose Service is exported. A pod of another Deployment has the same label.
func draining(t *testing.T, s *fixture, annotations map[string]string) *fixture {
	t.Helper()
	s.t = t
	foreign := podOf("other", 9, nil)
	foreign.SetLabels(map[string]string{"app": "web", "pod-template-hash": "x"})
	s.start(slices.Concat(deploymentOf("web"), serviceIn("web", map[string]string{v1alpha1.ExportedAnnotation: "export"}, nil)),
		[]*unstructured.Unstructured{podOf("web", 1, annotations), podOf("web", 2, nil), podOf("web", 3, nil), foreign, sliceOf("web", "web-1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9")})
	s.wantReady("all pods are endpoints", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9")
	s.eventually("the Deployment is applied", func() bool { return s.member.Get(deployments, "shop", "web") != nil })
	s.run3()
	return s
}

// run3 has the member's controllers report what the Deployment runs.
func (s *fixture) run3() {
	s.t.Helper()
	s.member.Change(deployments, "shop", "web", func(u *unstructured.Unstructured) {
		n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		u.Object["status"] = map[string]any{"observedGeneration": u.GetGeneration(), "replicas": n, "updatedReplicas": n, "readyReplicas": n, "availableReplicas": n}
	})
}

// wantReady waits until the control plane has exactly these ready endpoints of the cluster.
func (s *fixture) wantReady(what string, want ...string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, what, func() error {
		var got []string
		for _, u := range s.control.List(sliceResource) {
			endpoints, _, _ := unstructured.NestedSlice(u.Object, "endpoints")
			for _, e := range endpoints {
				ready, set, _ := unstructured.NestedBool(e.(map[string]any), "conditions", "ready")
				if addresses, _, _ := unstructured.NestedStringSlice(e.(map[string]any), "addresses"); ready || !set {
					got = append(got, addresses...)
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("ready are %v, want %v; the journal is\n%s", got, want, strings.Join(s.writes(), "\n"))
		}
		return nil
	})
}

// share sets the share of the cluster: the replicas, and how many of them stay if stay is not negative.
func (s *fixture) share(replicas, stay int64, revision int64) {
	s.t.Helper()
	share := map[string]any{"name": "east", "reason": "Scheduled", "replicas": replicas}
	if stay >= 0 {
		share["drain"] = map[string]any{"replicas": stay, "revision": revision, "since": "2026-01-01T00:00:00Z"}
	}
	s.control.Change(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedSlice(u.Object, []any{share}, "spec", "clusters")
	})
}

// drain returns the report of the cluster.
func (s *fixture) drain() *v1alpha1.EndpointDrainReport {
	b := &v1alpha1.ResourceBinding{}
	s.control.Read(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web", b)
	state, _ := b.State("east")
	return state.Drain
}

// cost returns the pod-deletion-cost of a pod, with a ! if it has Atoll's mark.
func (s *fixture) cost(n int) string {
	u := s.member.Get(podResource, "shop", fmt.Sprintf("web-%d", n))
	if u == nil {
		return "gone"
	}
	out := u.GetAnnotations()[corev1.PodDeletionCost]
	if u.GetAnnotations()[v1alpha1.PodDrainedAnnotation] == "true" {
		out += "!"
	}
	return out
}

func (s *fixture) wantDrain(what string, addresses ...string) {
	s.t.Helper()
	s.eventually(what, func() bool {
		d := s.drain()
		return d != nil && d.Message == "" && slices.Equal(d.Addresses, addresses)
	})
}

// TestDrainEndpoints: the pods that a smaller share is about to stop get a lower cost, and are no ready endpoints of an exported
// Service, until they are gone. If the share stays, all of that is taken back.
func TestDrainEndpoints(t *testing.T) {
	s := draining(t, &fixture{}, nil)
	if d := s.drain(); d != nil || slices.ContainsFunc(s.writes(), func(w string) bool { return strings.Contains(w, "patch web-") }) {
		t.Errorf("without an announcement: %+v, %v", d, s.writes())
	}
	s.share(3, 2, 1)
	s.wantDrain("the first pod leaves", "10.0.0.1")
	s.wantReady("the others are ready", "10.0.0.2", "10.0.0.3", "10.0.0.9")
	if a, b := s.cost(1), s.cost(2); a != "-1!" || b != "" {
		t.Errorf("costs %s and %s", a, b)
	}
	s.share(3, -1, 0)
	s.wantReady("it is called off", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9")
	s.eventually("the cost is taken back", func() bool { return s.cost(1) == "" && s.drain() == nil })

	s.share(3, 1, 2)
	s.wantDrain("two pods leave", "10.0.0.1", "10.0.0.2")
	s.share(1, -1, 0)
	s.eventually("the share is applied", func() bool {
		n, _, _ := unstructured.NestedInt64(s.member.Get(deployments, "shop", "web").Object, "spec", "replicas")
		return n == 1
	})
	s.settle()
	s.wantReady("before the pods are gone", "10.0.0.3", "10.0.0.9")
	// The controller stops one that became unready in place of one that was announced.
	s.member.Delete(podResource, "shop", "web-1")
	s.member.Delete(podResource, "shop", "web-3")
	s.run3()
	s.wantReady("the one that stayed is ready", "10.0.0.2", "10.0.0.3", "10.0.0.9") // the slice still has 10.0.0.3
	s.eventually("its cost is taken back", func() bool { return s.cost(2) == "" && s.drain() == nil })
}

// TestDrainKeepsCosts: the cost of a user decides, and stays.
func TestDrainKeepsCosts(t *testing.T) {
	s := draining(t, &fixture{}, map[string]string{corev1.PodDeletionCost: "100"})
	s.share(3, 1, 1)
	s.wantDrain("the pods of no cost leave", "10.0.0.2", "10.0.0.3")
	if a, b := s.cost(1), s.cost(2); a != "100" || b != "-1!" {
		t.Errorf("costs %s and %s", a, b)
	}
}

// TestDrainOnRemoval: before an object leaves the cluster all of its pods leave the endpoints, without costs. They do not come
// back when the object is gone before its pods.
func TestDrainOnRemoval(t *testing.T) {
	s := draining(t, &fixture{}, nil)
	s.share(3, 0, 1)
	s.wantDrain("all leave", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	s.wantReady("the other Deployment's pod is ready", "10.0.0.9")
	if a := s.cost(1); a != "" {
		t.Errorf("cost %s", a)
	}
	s.control.Change(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web", func(u *unstructured.Unstructured) {
		unstructured.RemoveNestedField(u.Object, "spec", "clusters")
	})
	s.eventually("it is gone", func() bool { return s.member.Get(deployments, "shop", "web") == nil && s.drain() == nil })
	s.settle()
	s.wantReady("its pods are not gone yet", "10.0.0.9")
}

// TestDrainAfterRestart: a syncer that starts while pods are about to stop does not report them as ready.
func TestDrainAfterRestart(t *testing.T) {
	objects := slices.Concat(deploymentOf("web"), serviceIn("web", map[string]string{v1alpha1.ExportedAnnotation: "export"}, nil))
	state := v1alpha1.ClusterState{Name: "east", UID: "there", Health: v1alpha1.Healthy, LastUpdateTime: metav1.NewTime(time.Unix(1e9, 0)),
		Drain: &v1alpha1.EndpointDrainReport{Revision: 1, Replicas: 3, Addresses: []string{"10.0.0.1"}}}
	with := binding(true, &state)
	objects[1].Object["status"] = with.Object["status"]
	s := newFixture(t, objects, []*unstructured.Unstructured{podOf("web", 1, nil), sliceOf("web", "web-1", "10.0.0.1", "10.0.0.2")})
	s.wantReady("the pod that leaves is not ready", "10.0.0.2")
}

// TestDrainWithoutPermission: without permission to list pods, the report has the reason. Without permission to change them, the
// endpoints leave all the same.
func TestDrainWithoutPermission(t *testing.T) {
	for verb, message := range map[string]string{"list": "pods", "patch": ""} {
		t.Run(verb, func(t *testing.T) {
			s := draining(t, &fixture{refuse: func(r fakeapi.Request) *metav1.Status {
				if r.Resource == podResource && r.Verb == verb {
					return &apierrors.NewForbidden(podResource.GroupResource(), r.Name, fmt.Errorf("User \"syncer\" cannot %s resource \"pods\"", verb)).ErrStatus
				}
				return nil
			}}, nil)
			s.share(3, 2, 1)
			s.eventually("the report", func() bool {
				d := s.drain()
				return d != nil && strings.Contains(d.Message, message) && (message == "") == (len(d.Addresses) == 1)
			})
		})
	}
}
