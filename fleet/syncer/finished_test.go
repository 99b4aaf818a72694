package syncer

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

var jobs = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}

func job(uid string) *unstructured.Unstructured {
	return object("batch/v1", "Job", "shop", "conf", uid, map[string]any{"spec": map[string]any{"template": map[string]any{}}})
}

// TestWorkIsNotRepeated: a Job that was removed in the cluster does not begin again there. If it had not
// finished, it has failed.
func TestWorkIsNotRepeated(t *testing.T) {
	for name, tt := range map[string]struct{ status, want string }{
		"complete": {`{"conditions":[{"type":"Complete","status":"True"}],"succeeded":1}`, `"Complete"`},
		"failed":   {`{"conditions":[{"type":"Failed","status":"True","reason":"BackoffLimitExceeded"}],"failed":1}`, "BackoffLimitExceeded"},
		"running":  {`{"active":1,"startTime":"2026-01-02T15:04:05Z"}`, "DeletedInCluster"},
	} {
		t.Run(name, func(t *testing.T) {
			b := binding(true, &v1alpha1.ClusterState{UID: "object-uid", Health: v1alpha1.Healthy, Status: &runtime.RawExtension{Raw: []byte(tt.status)}})
			withSpec(b, "resource", map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "conf", "uid": "source"})
			s := newFixture(t, objects(job("source"), b), nil)
			s.eventually("the cluster reports how the Job ended", func() bool {
				state := s.state()
				return state.Status != nil && strings.Contains(string(state.Status.Raw), tt.want)
			})
			s.settle()
			if s.member.Get(jobs, "shop", "conf") != nil {
				t.Error("the Job begins again")
			}
		})
	}
}

// TestLostPod: a pod that is gone before it finished has failed, and does not run again.
func TestLostPod(t *testing.T) {
	b := binding(true, &v1alpha1.ClusterState{UID: "object-uid", Health: v1alpha1.Healthy,
		Status: &runtime.RawExtension{Raw: []byte(`{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"c","ready":true}]}`)}})
	withSpec(b, "resource", map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "conf", "uid": "source"})
	pod := object("v1", "Pod", "shop", "conf", "source", map[string]any{"spec": map[string]any{"containers": []any{}}})
	s := newFixture(t, objects(pod, b), nil)
	s.eventually("the cluster reports that the pod failed", func() bool {
		state := s.state()
		return state.Status != nil && state.Health == v1alpha1.Degraded && strings.Contains(string(state.Status.Raw), `"phase":"Failed"`)
	})
	if raw := string(s.state().Status.Raw); strings.Contains(raw, `"status":"True"`) || strings.Contains(raw, `"ready":true`) {
		t.Errorf("a failed pod is ready: %s", raw)
	}
	s.settle()
	if s.member.Get(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "shop", "conf") != nil {
		t.Error("the pod runs again")
	}
}

// TestBeingDeleted: while an object is being deleted in the cluster, the report says what holds it. When it is
// gone, it is created again.
func TestBeingDeleted(t *testing.T) {
	b := binding(true, &v1alpha1.ClusterState{UID: "object-uid", Health: v1alpha1.Healthy})
	there := managed("object-uid", "source")
	there.SetFinalizers([]string{"example.org/keep"})
	there.Object["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-02T15:04:05Z"
	s := newFixture(t, objects(configMap("source"), b), objects(there))
	s.eventually("the report names the finalizer", func() bool {
		state := s.state()
		return state.Reason == v1alpha1.StateRemoving && strings.Contains(state.Message, "example.org/keep")
	})
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	if _, err := s.member.Dynamic().Resource(configMaps).Namespace("shop").Patch(t.Context(), "conf", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is created again", func() bool {
		live := s.member.Get(configMaps, "shop", "conf")
		return live != nil && live.GetUID() != "object-uid" && s.state().Reason == ""
	})
}

// TestTheEndIsReported: a finished object that is being deleted in the cluster is reported before it
// is gone.
func TestTheEndIsReported(t *testing.T) {
	b := binding(true, &v1alpha1.ClusterState{UID: "object-uid", Health: v1alpha1.Progressing})
	withSpec(b, "resource", map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "conf", "uid": "source"})
	there := managed("object-uid", "source")
	there.SetAPIVersion("batch/v1")
	there.SetKind("Job")
	delete(there.Object, "data")
	there.SetFinalizers([]string{"foregroundDeletion"})
	there.Object["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-02T15:04:05Z"
	there.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Complete", "status": "True"}}}
	s := newFixture(t, objects(job("source"), b), objects(there))
	s.eventually("the cluster reports that the Job is complete", func() bool {
		state := s.state()
		return state.Status != nil && state.Health == v1alpha1.Healthy
	})
}
