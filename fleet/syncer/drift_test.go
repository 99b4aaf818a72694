package syncer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// TestDriftCorrectionsBackOff: if a controller reverts every correction, the number of
// corrections is bounded; a single manual change is corrected at once.
func TestDriftCorrectionsBackOff(t *testing.T) {
	var d drift
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	corrections := 0
	for end := now.Add(10 * time.Minute); now.Before(end); now = now.Add(100 * time.Millisecond) {
		if d.delay(now) == 0 {
			d.corrected(now)
			corrections++
		}
	}
	if corrections < freeCorrections || corrections > 20 {
		t.Errorf("%d corrections in ten minutes of contest, want a few", corrections)
	}
	now = now.Add(driftReset + time.Minute)
	if p := d.delay(now); p != 0 {
		t.Errorf("after the reset, the next correction waits %s", p)
	}
}

func TestCorrectsDrift(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	s.eventually("it is reported", s.contains("control apply configmap-conf <nil>"))
	s.eventually("it is watched", func() bool {
		k, _ := interpret.Find(schema.GroupKind{Kind: "ConfigMap"})
		_, seen := s.syncer.member.cached(k, types.NamespacedName{Namespace: "shop", Name: "conf"})
		return seen
	})
	s.waitIdle()
	changed := s.memberObject("ConfigMap", "conf").DeepCopy()
	changed.SetResourceVersion("7")
	changed.Object["data"] = map[string]any{"a": "by hand"}
	if err := s.member.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "shop"); err != nil {
		t.Fatal(err)
	}
	s.eventually("the drift is corrected", func() bool {
		data, _, _ := unstructured.NestedString(s.memberObject("ConfigMap", "conf").Object, "data", "a")
		return data == "b"
	})
	applies := 0
	for _, entry := range s.waitIdle() {
		if entry == "member apply conf" {
			applies++
		}
	}
	if applies != 2 {
		t.Errorf("%d applies, want 2: the syncer spins or does nothing", applies)
	}
}

// changeManually changes the object in the member once the syncer watches it.
func (s *fixture) changeManually() {
	s.t.Helper()
	s.eventually("it is reported", s.contains("control apply configmap-conf <nil>"))
	s.eventually("it is watched", func() bool {
		k, _ := interpret.Find(schema.GroupKind{Kind: "ConfigMap"})
		_, seen := s.syncer.member.cached(k, types.NamespacedName{Namespace: "shop", Name: "conf"})
		return seen
	})
	s.waitIdle()
	changed := s.memberObject("ConfigMap", "conf").DeepCopy()
	changed.SetResourceVersion("7")
	changed.Object["data"] = map[string]any{"a": "by hand"}
	if err := s.member.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "shop"); err != nil {
		s.t.Fatal(err)
	}
}

// TestReportsDrift: with drift policy Report, a change in the member stays, and the binding
// names the field.
func TestReportsDrift(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), withSpec(binding(true, nil), "drift", "Report")), nil)
	s.changeManually()
	s.eventually("it is reported", s.contains("control apply configmap-conf Drifted"))
	if got := s.state().Message; !strings.HasSuffix(got, ": data.a") {
		t.Errorf("message %q does not name the field", got)
	}
	s.waitIdle()
	if data, _, _ := unstructured.NestedString(s.memberObject("ConfigMap", "conf").Object, "data", "a"); data != "by hand" {
		t.Errorf("the drift was corrected: %s", data)
	}
	before := s.state()
	if before.Applied == "" || before.UID == "" {
		t.Errorf("the known state is lost: %+v", before)
	}
	// With policy Correct the drift is corrected.
	corrected := withSpec(binding(true, &before), "drift", "Correct")
	if err := s.control.Tracker().Update(v1alpha1.ResourceBindingResource, corrected, "shop"); err != nil {
		t.Fatal(err)
	}
	s.eventually("the drift is corrected", func() bool {
		data, _, _ := unstructured.NestedString(s.memberObject("ConfigMap", "conf").Object, "data", "a")
		return data == "b"
	})
}

// TestAutoscaledReplicasAreNotDrift: the cached managed fields show that the autoscaler owns
// the field.
func TestAutoscaledReplicasAreNotDrift(t *testing.T) {
	source := object("apps/v1", "Deployment", "shop", "web", "source", map[string]any{"spec": map[string]any{"replicas": int64(3), "paused": false}})
	b := withSpec(withSpec(binding(true, nil), "drift", "Report"), "scaledBy", map[string]any{"kind": "HorizontalPodAutoscaler", "name": "web"})
	b.SetName("deployment.apps-web")
	withSpec(b, "resource", map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "source"})
	withSpec(b, "clusters", []any{map[string]any{"name": "east", "replicas": int64(3), "reason": "Scheduled", "message": ""}})
	s := newFixture(t, objects(source, b), nil)
	s.eventually("it is reported", s.contains("control apply deployment.apps-web <nil>"))
	k, _ := interpret.Find(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	key := types.NamespacedName{Namespace: "shop", Name: "web"}
	s.eventually("it is watched", func() bool { _, seen := s.syncer.member.cached(k, key); return seen })
	s.waitIdle()

	changed := s.memberObjectOf(k, "web").DeepCopy()
	changed.SetResourceVersion("7")
	changed.Object["spec"] = map[string]any{"replicas": int64(7), "paused": true}
	owner := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
	}
	changed.SetManagedFields([]metav1.ManagedFieldsEntry{owner("kube-controller-manager", `{"f:spec":{"f:replicas":{}}}`), owner("user", `{"f:spec":{"f:paused":{}}}`)})
	if err := s.member.Tracker().Update(k.GVR(), changed, "shop"); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is reported", s.contains("control apply deployment.apps-web Drifted"))
	u, err := s.control.Tracker().Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web")
	if err != nil {
		t.Fatal(err)
	}
	states, _, _ := unstructured.NestedSlice(u.(*unstructured.Unstructured).Object, "status", "clusters")
	if message := fmt.Sprint(states[0].(map[string]any)["message"]); !strings.HasSuffix(message, ": spec.paused") {
		t.Errorf("message %q", message)
	}
	seen, _ := s.syncer.member.cached(k, key)
	if owners := seen.GetManagedFields(); len(owners) != 1 || owners[0].Manager != "kube-controller-manager" {
		t.Errorf("the cached object has the field managers %v", owners)
	}
}

// TestSuspended: nothing is written and nothing is removed.
func TestSuspended(t *testing.T) {
	there := &v1alpha1.ClusterState{UID: "there", Generation: 1, Health: v1alpha1.Healthy}
	for name, tt := range map[string]struct {
		binding *unstructured.Unstructured
		member  []*unstructured.Unstructured
	}{
		"existing object":              {binding(true, there), objects(managed("there", "source"))},
		"new object":                   {binding(true, nil), nil},
		"object that is to be removed": {binding(false, there), objects(managed("there", "source"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, objects(configMap("source"), withSpec(tt.binding, "suspend", true)), tt.member)
			s.eventually("the suspension is reported", s.contains("control apply configmap-conf Suspended"))
			for _, entry := range s.waitIdle() {
				if strings.HasPrefix(entry, "member") {
					t.Errorf("wrote to the member: %s", entry)
				}
			}
		})
	}
}
