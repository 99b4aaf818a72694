package syncer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
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
	s.changeManually()
	s.eventually("the drift is corrected", func() bool { return s.data() == "b" })
	applies := 0
	for _, entry := range s.settle() {
		if entry == "member apply conf" {
			applies++
		}
	}
	if applies != 2 {
		t.Errorf("%d applies, want 2: the syncer spins or does nothing", applies)
	}
}

// waitForConf waits until the syncer has reported the object and watches it.
func (s *fixture) waitForConf() {
	s.t.Helper()
	s.eventually("it is reported", s.contains("control apply configmap-conf <nil>"))
	s.eventually("it is watched", s.watches(kindInfo("", "ConfigMap"), types.NamespacedName{Namespace: "shop", Name: "conf"}))
}

// changeManually changes the object in the member once the syncer watches it.
func (s *fixture) changeManually() {
	s.t.Helper()
	s.waitForConf()
	s.settle()
	s.edit("kubectl", configMaps, "conf", func(u *unstructured.Unstructured) { u.Object["data"] = map[string]any{"a": "by hand"} })
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
	s.settle()
	if data := s.data(); data != "by hand" {
		t.Errorf("the drift was corrected: %s", data)
	}
	before := s.state()
	if before.Applied == "" || before.UID == "" {
		t.Errorf("the known state is lost: %+v", before)
	}
	// With policy Correct the drift is corrected.
	s.control.Change(v1alpha1.ResourceBindingResource, "shop", "configmap-conf", func(u *unstructured.Unstructured) { withSpec(u, "drift", "Correct") })
	s.eventually("the drift is corrected", func() bool { return s.data() == "b" })
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
	k, key := kindInfo("apps", "Deployment"), types.NamespacedName{Namespace: "shop", Name: "web"}
	s.eventually("it is watched", s.watches(k, key))
	set := func(field string, value any) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) { withSpec(u, field, value) }
	}
	s.edit("kube-controller-manager", deployments, "web", set("replicas", int64(7)))
	s.edit("user", deployments, "web", set("paused", true))
	s.eventually("it is reported", s.contains("control apply deployment.apps-web Drifted"))
	states, _, _ := unstructured.NestedSlice(s.control.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web").Object, "status", "clusters")
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
			if wrote := wroteToMember(s.settle()); len(wrote) > 0 {
				t.Errorf("wrote to the member: %q", wrote)
			}
		})
	}
}
