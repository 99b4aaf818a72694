package syncer

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// edited starts a syncer with a Deployment in the member, and adds fields to it there.
func edited(t *testing.T, drift v1alpha1.DriftPolicy) *fixture {
	t.Helper()
	b := binding(true, nil)
	b.SetName("deployment.apps-conf")
	withSpec(b, "resource", map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "conf", "uid": "source"})
	if drift != "" {
		withSpec(b, "drift", string(drift))
	}
	web := object("apps/v1", "Deployment", "shop", "conf", "source", map[string]any{"spec": map[string]any{"replicas": int64(1),
		"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "one"}}}}}})
	s := newFixture(t, objects(web, b), nil)
	s.eventually("it is reported", s.contains("control apply deployment.apps-conf <nil>"))
	s.settle()
	s.edit("cainjector", deployments, "conf", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, "kept", "spec", "template", "spec", "nodeName")
	})
	s.settle()
	s.edit("kubectl-edit", deployments, "conf", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, int64(3), "spec", "minReadySeconds")
		_ = unstructured.SetNestedField(u.Object, "b", "spec", "template", "spec", "nodeSelector", "a")
		_ = unstructured.SetNestedField(u.Object, "2026-01-02T15:04:05Z", "spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt")
	})
	return s
}

func field(u *unstructured.Unstructured, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return v
}

// TestAddedFieldsAreCorrected: fields that people add in the member are removed. What a controller adds
// stays, and so does a requested restart.
func TestAddedFieldsAreCorrected(t *testing.T) {
	s := edited(t, "")
	s.eventually("the added fields are gone", func() bool {
		u := s.member.Get(deployments, "shop", "conf")
		return field(u, "spec", "minReadySeconds") == nil && field(u, "spec", "template", "spec", "nodeSelector", "a") == nil
	})
	s.settle()
	u := s.member.Get(deployments, "shop", "conf")
	if field(u, "spec", "template", "spec", "nodeName") != "kept" {
		t.Error("the field of a controller was removed")
	}
	if field(u, "spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt") == nil {
		t.Error("a requested restart was reverted")
	}
	if field(u, "spec", "replicas") != int64(1) {
		t.Error("the desired fields are gone")
	}
}

// TestAddedFieldsAreReported: with drift Report they stay, and the entry names them and the tool.
func TestAddedFieldsAreReported(t *testing.T) {
	s := edited(t, v1alpha1.DriftReport)
	s.eventually("the entry names the fields", func() bool {
		states, _, _ := unstructured.NestedSlice(s.control.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-conf").Object, "status", "clusters")
		state, _ := states[0].(map[string]any)
		message, _ := state["message"].(string)
		return state["reason"] == v1alpha1.StateDrifted && strings.Contains(message, "spec.minReadySeconds") && strings.Contains(message, "kubectl-edit")
	})
	if field(s.member.Get(deployments, "shop", "conf"), "spec", "minReadySeconds") != int64(3) {
		t.Error("the fields were changed")
	}
	// From now on it is to be corrected.
	s.control.Merge(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-conf", `{"spec":{"drift":"Correct"}}`)
	s.eventually("the added fields are gone", func() bool {
		return field(s.member.Get(deployments, "shop", "conf"), "spec", "minReadySeconds") == nil
	})
}
