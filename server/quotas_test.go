package server_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// limited is a Deployment whose pods request a CPU each.
func limited(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "nginx", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}}},
	}}
}

// TestFleetQuota: concurrent writes never exceed a quota, and each write that fits is admitted. What a
// deletion frees can be used again.
func TestFleetQuota(t *testing.T) {
	s := theServer(t)
	ns, client := s.namespace(t), s.client(t)
	s.mustKubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: FleetQuota, metadata: {name: team, namespace: "+ns+"}, spec: {hard: {requests.cpu: 10, pods: 100}}}", "apply", "-f", "-")
	s.mustKubectl(t, "", "wait", "fleetquota/team", "-n", ns, "--for=condition=Valid", "--timeout=60s")
	deployments := client.AppsV1().Deployments(ns)

	var admitted atomic.Int32
	var callers sync.WaitGroup
	for i := range 24 {
		callers.Go(func() {
			_, err := deployments.Create(t.Context(), limited(fmt.Sprintf("web-%d", i), 1), metav1.CreateOptions{})
			if err == nil {
				admitted.Add(1)
			} else if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded FleetQuota: team, requested: requests.cpu=1, used: requests.cpu=10, limited: requests.cpu=10") {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if admitted.Load() != 10 {
		t.Errorf("%d were admitted, want 10", admitted.Load())
	}
	used := func(want string) {
		t.Helper()
		s.mustKubectl(t, "", "wait", "fleetquota/team", "-n", ns, `--for=jsonpath={.status.used.requests\.cpu}=`+want, "--timeout=60s")
	}
	used("10")
	list, err := deployments.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 10 {
		t.Fatalf("%d, %v", len(list.Items), err)
	}
	name := list.Items[0].Name
	for _, args := range [][]string{
		{"scale", "deployment/" + name, "--replicas=2"},
		{"set", "resources", "deployment/" + name, "--requests=cpu=1500m"},
		{"patch", "deployment/" + name, "-p", `{"spec":{"replicas":2}}`},
		{"create", "job", "sum", "--image=busybox"},
		{"scale", "deployment/" + name, "--replicas=2", "--dry-run=server"},
	} {
		if out, err := s.kubectl(t, "", append(args, "-n", ns)...); err == nil || !strings.Contains(out, "FleetQuota") {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
	autoscaler := "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web, namespace: " + ns + "}, spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: " + name + "}}}"
	if out, err := s.kubectl(t, autoscaler, "apply", "-f", "-"); err == nil || !strings.Contains(out, "requested: requests.cpu=2") {
		t.Errorf("%v %s", err, out)
	}
	s.mustKubectl(t, "", "delete", "deployment", list.Items[1].Name, list.Items[2].Name, "-n", ns)
	used("8")
	s.mustKubectl(t, autoscaler, "apply", "-f", "-")
	used("10")
	s.mustKubectl(t, "", "scale", "deployment/"+name, "--replicas=3", "-n", ns) // its autoscaler may do that too
	if out, err := s.kubectl(t, "", "scale", "deployment/"+name, "--replicas=4", "-n", ns); err == nil {
		t.Error(out)
	}
	if out := s.mustKubectl(t, "", "get", "fleetquota", "team", "-n", ns, "-o", "jsonpath={.status.free}"); !strings.Contains(out, `"requests.cpu":"0"`) {
		t.Error(out)
	}
	for text, want := range map[string]string{
		"{hard: {count/deployments.apps: 3}}": "use a ResourceQuota to limit numbers of objects",
		"{hard: {}}":                          "spec.hard",
		"{hard: {pods: 1}, selector: {matchLabels: {app: '!!'}}}": "",
	} {
		out, err := s.kubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: FleetQuota, metadata: {name: other, namespace: "+ns+"}, spec: "+text+"}", "apply", "-f", "-")
		if want != "" && (err == nil || !strings.Contains(out, want)) {
			t.Errorf("%s: %v %s", text, err, out)
		}
	}
	s.mustKubectl(t, "", "wait", "fleetquota/other", "-n", ns, "--for=condition=Valid=false", "--timeout=60s")
	if _, err := deployments.Create(t.Context(), limited("more", 0), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "FleetQuota other is invalid: spec.selector") {
		t.Error(err)
	}
}
