package syncer

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestReportsSinceWhenUnhealthy: a report has since when the object is not Healthy in the cluster, and whether it was
// before.
func TestReportsSinceWhenUnhealthy(t *testing.T) {
	services := schema.GroupVersionResource{Version: "v1", Resource: "services"}
	b := binding(true, nil)
	b.SetName("service-conf")
	withSpec(b, "resource", map[string]any{"apiVersion": "v1", "kind": "Service", "name": "conf", "uid": "source"})
	s := newFixture(t, objects(object("v1", "Service", "shop", "conf", "source", map[string]any{"spec": map[string]any{"type": "LoadBalancer"}}), b), nil)
	state := func() v1alpha1.ClusterState {
		b := &v1alpha1.ResourceBinding{}
		s.control.Read(v1alpha1.ResourceBindingResource, "shop", "service-conf", b)
		state, _ := b.State("east")
		return state
	}
	var first v1alpha1.ClusterState
	s.eventually("it has no address yet", func() bool {
		first = state()
		return first.Health == v1alpha1.Progressing && first.UnhealthySince != nil
	})
	if first.WasHealthy {
		t.Errorf("it was Healthy: %+v", first)
	}
	s.member.Merge(services, "shop", "conf", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`)
	s.eventually("it is Healthy", func() bool {
		state := state()
		return state.Health == v1alpha1.Healthy && state.UnhealthySince == nil
	})
	s.member.Merge(services, "shop", "conf", `{"status":{"loadBalancer":{"ingress":[]}}}`)
	s.eventually("it is not Healthy any more", func() bool {
		state := state()
		return state.Health == v1alpha1.Progressing && state.UnhealthySince != nil && state.WasHealthy
	})
}
