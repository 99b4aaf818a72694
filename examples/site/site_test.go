package main

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// The objects of a Site are created, the Site becomes Ready with them, and it is archived
// before it is deleted.
func TestSiteLifecycle(t *testing.T) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(siteVersion, &Site{}, &SiteList{})
	metav1.AddToGroupVersion(scheme, siteVersion)
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	site := &Site{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lagoon", Generation: 1}}
	site.Spec = SiteSpec{Image: "nginx", Replicas: 2, Pages: map[string]string{"index.html": "hello"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(site).
		WithStatusSubresource(&Site{}, &appsv1.Deployment{}, &appsv1.StatefulSet{}, &corev1.Pod{}, &batchv1.Job{}).Build()
	key := client.ObjectKeyFromObject(site)
	get := func(into client.Object, suffix string) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: key.Name + suffix}, into); err != nil {
			t.Fatal(err)
		}
	}
	reconcile := func() {
		t.Helper()
		if _, err := (&Reconciler{c}).Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
	}
	wantReady := func(want metav1.ConditionStatus, message string) {
		t.Helper()
		got := &Site{}
		get(got, "")
		if c := meta.FindStatusCondition(got.Status.Conditions, "Ready"); c == nil || c.Status != want || !strings.Contains(c.Message, message) {
			t.Errorf("condition %+v, want %s: %s", c, want, message)
		}
	}

	reconcile()
	wantReady(metav1.ConditionFalse, "0 of 2 replicas")
	web, cache, probe := &appsv1.Deployment{}, &appsv1.StatefulSet{}, &corev1.Pod{}
	get(web, "")
	get(cache, "-cache")
	get(probe, "-probe")
	get(&corev1.ConfigMap{}, "-pages")
	get(&corev1.Service{}, "")
	if owner := metav1.GetControllerOf(web); owner == nil || owner.Kind != "Site" {
		t.Errorf("the Deployment's owner is %v", owner)
	}
	web.Status = appsv1.DeploymentStatus{ObservedGeneration: web.Generation, UpdatedReplicas: 2, AvailableReplicas: 2, ReadyReplicas: 2}
	cache.Status.ReadyReplicas = 1
	if err := errors.Join(c.Status().Update(t.Context(), web), c.Status().Update(t.Context(), cache)); err != nil {
		t.Fatal(err)
	}
	reconcile()
	wantReady(metav1.ConditionFalse, "the probe is not ready")
	probe.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(t.Context(), probe); err != nil {
		t.Fatal(err)
	}
	reconcile()
	wantReady(metav1.ConditionTrue, "")

	if err := c.Delete(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	reconcile()
	job := &batchv1.Job{}
	get(job, "-archive")
	reconcile()
	get(&Site{}, "") // exists until the Job is complete
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	reconcile()
	if err := c.Get(t.Context(), key, &Site{}); !apierrors.IsNotFound(err) {
		t.Errorf("an archived Site: %v", err)
	}
	reconcile() // a Site that no longer exists
}
