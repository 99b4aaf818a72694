package syncer

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestRejectedPodsAreReported: the status of a Job does not say that the cluster rejects its pods, so that the report
// has the cause from the Job's events. It ends with the first pod.
func TestRejectedPodsAreReported(t *testing.T) {
	jobs := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	b := binding(true, nil)
	b.SetName("job.batch-conf")
	withSpec(b, "resource", map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "conf", "uid": "source"})
	s := newFixture(t, objects(object("batch/v1", "Job", "shop", "conf", "source", map[string]any{"spec": map[string]any{"parallelism": int64(1)}}), b), nil)
	state := func() v1alpha1.ClusterState {
		b := &v1alpha1.ResourceBinding{}
		s.control.Read(v1alpha1.ResourceBindingResource, "shop", "job.batch-conf", b)
		state, _ := b.State("east")
		return state
	}
	s.eventually("it progresses", func() bool { return state().Health == v1alpha1.Progressing })
	events := 0
	event := func(uid, reason, message string) {
		events++
		s.member.Put(object("v1", "Event", "shop", "conf."+string(rune('a'+events)), "", map[string]any{"reason": reason, "message": message,
			"involvedObject": map[string]any{"kind": "Job", "name": "conf", "uid": uid}}))
	}
	event("another", "FailedCreate", `Error creating: pods "other" is forbidden`)
	event(string(s.member.Get(jobs, "shop", "conf").GetUID()), "FailedCreate", `Error creating: pods "conf-abcde" is forbidden: exceeded quota: small`)
	s.eventually("it says why it has no pods", func() bool {
		state := state()
		return state.Health == v1alpha1.Degraded && state.Message == `pods "conf-abcde" is forbidden: exceeded quota: small`
	})
	s.member.Merge(jobs, "shop", "conf", `{"status":{"active":1}}`)
	s.eventually("it progresses again", func() bool {
		state := state()
		return state.Health == v1alpha1.Progressing && strings.HasPrefix(state.Message, "1 running")
	})
}

// TestEventsMayNotBeRead: without permission to read events in the cluster, an object is reported as before.
func TestEventsMayNotBeRead(t *testing.T) {
	b := binding(true, nil)
	b.SetName("job.batch-conf")
	withSpec(b, "resource", map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "conf", "uid": "source"})
	asked := make(chan struct{}, 10)
	s := &fixture{t: t, refuse: func(r fakeapi.Request) *metav1.Status {
		if r.Resource.Resource != "events" || r.Verb != "list" {
			return nil
		}
		asked <- struct{}{}
		return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: 403, Message: "no"}
	}}
	s.start(objects(object("batch/v1", "Job", "shop", "conf", "source", map[string]any{"spec": map[string]any{"parallelism": int64(1)}}), b), nil)
	<-asked
	<-asked
	bound := &v1alpha1.ResourceBinding{}
	s.control.Read(v1alpha1.ResourceBindingResource, "shop", "job.batch-conf", bound)
	if state, _ := bound.State("east"); state.Health != v1alpha1.Progressing || state.Reason != "" {
		t.Errorf("it is reported as %+v", state)
	}
}
