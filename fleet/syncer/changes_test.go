package syncer

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestResumedChangesArrive: a change that is made while a policy suspends an object reaches the member when the policy
// resumes.
func TestResumedChangesArrive(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	s.waitForConf()
	s.control.Merge(v1alpha1.ResourceBindingResource, "shop", "configmap-conf", `{"spec":{"suspend":true}}`)
	s.eventually("the suspension is reported", s.contains("control apply configmap-conf Suspended"))
	s.control.Merge(configMaps, "shop", "conf", `{"data":{"a":"later"}}`)
	s.settle()
	if s.data() != "b" {
		t.Errorf("a suspended object has the data %q", s.data())
	}
	s.control.Merge(v1alpha1.ResourceBindingResource, "shop", "configmap-conf", `{"spec":{"suspend":false}}`)
	s.eventually("the change is there", func() bool { return s.data() == "later" })
}

// TestChangesArrive: changes of Jobs and Services reach the member.
func TestChangesArrive(t *testing.T) {
	for _, tt := range []struct {
		apiVersion, kind, binding string
		resource                  schema.GroupVersionResource
		spec                      map[string]any
		patch                     string
		field                     []string
	}{
		{"batch/v1", "Job", "job.batch-conf", schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"},
			map[string]any{"parallelism": int64(1), "template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "one"}}}}},
			`{"spec":{"parallelism":2}}`, []string{"spec", "parallelism"}},
		{"v1", "Service", "service-conf", schema.GroupVersionResource{Version: "v1", Resource: "services"},
			map[string]any{"type": "ExternalName", "externalName": "1"}, `{"spec":{"externalName":"2"}}`, []string{"spec", "externalName"}},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			b := binding(true, nil)
			b.SetName(tt.binding)
			withSpec(b, "resource", map[string]any{"apiVersion": tt.apiVersion, "kind": tt.kind, "name": "conf", "uid": "source"})
			s := newFixture(t, objects(object(tt.apiVersion, tt.kind, "shop", "conf", "source", map[string]any{"spec": tt.spec}), b), nil)
			is := func(want string) func() bool {
				return func() bool {
					u := s.member.Get(tt.resource, "shop", "conf")
					return u != nil && fmt.Sprint(field(u, tt.field...)) == want
				}
			}
			s.eventually("it is in the member", is("1"))
			s.settle()
			s.control.Merge(tt.resource, "shop", "conf", tt.patch)
			s.eventually("the change is there", is("2"))
		})
	}
}
