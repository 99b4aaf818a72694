package syncer

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

var jobs = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}

func job(uid string) *unstructured.Unstructured {
	return object("batch/v1", "Job", "shop", "conf", uid, map[string]any{"spec": map[string]any{"template": map[string]any{}}})
}

// TestFinishedWorkIsNotRepeated: an object that finished and was removed in the cluster is not made
// again there. One that has not finished is.
func TestFinishedWorkIsNotRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		status string
		again  bool
	}{
		"complete": {`{"conditions":[{"type":"Complete","status":"True"}],"succeeded":1}`, false},
		"failed":   {`{"conditions":[{"type":"Failed","status":"True"}],"failed":1}`, false},
		"running":  {`{"active":1}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := binding(true, &v1alpha1.ClusterState{UID: "object-uid", Health: v1alpha1.Healthy, Status: &runtime.RawExtension{Raw: []byte(tt.status)}})
			withSpec(b, "resource", map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "conf", "uid": "source"})
			s := newFixture(t, objects(job("source"), b), nil)
			s.settle()
			if got := s.member.Get(jobs, "shop", "conf") != nil; got != tt.again {
				t.Errorf("the Job is made again: %t, want %t", got, tt.again)
			}
		})
	}
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
