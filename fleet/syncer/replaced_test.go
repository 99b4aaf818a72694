package syncer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// readyCluster returns a Cluster that is Ready.
func readyCluster(name string) *unstructured.Unstructured {
	return object(v1alpha1.Group+"/"+v1alpha1.Version, "Cluster", "", name, name+"-uid", map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "True", "reason": "ClusterReady", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}})
}

// workloads returns n workloads of several kinds that were in east and are in west now, where they have the given
// health, and the copies that east still has. If they failed over, their removal is requested.
func workloads(n int, health v1alpha1.Health, failedOver bool) (control, member []*unstructured.Unstructured) {
	control = objects(readyCluster("west"))
	kinds := []schema.GroupVersionKind{{Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "batch", Version: "v1", Kind: "Job"}, {Version: "v1", Kind: "Pod"}, {Version: "v1", Kind: "ConfigMap"}}
	for i := range n {
		gvk, name := kinds[i%len(kinds)], fmt.Sprint("w-", i)
		apiVersion := gvk.GroupVersion().String()
		b := binding(false, &v1alpha1.ClusterState{UID: types.UID(name), Health: v1alpha1.Unknown})
		b.SetName(v1alpha1.BindingName(gvk.GroupKind(), name))
		b.SetUID(types.UID("binding-" + name))
		withSpec(b, "resource", map[string]any{"apiVersion": apiVersion, "kind": gvk.Kind, "name": name, "uid": "source"})
		withSpec(b, "clusters", []any{map[string]any{"name": "west", "reason": "Scheduled"}})
		if failedOver {
			withSpec(b, "requestedRemovals", []any{map[string]any{"name": "east", "reason": v1alpha1.RemovalReplaced}})
		}
		states, _, _ := unstructured.NestedSlice(b.Object, "status", "clusters")
		states = append(states, stateOf("west", health))
		if err := unstructured.SetNestedSlice(b.Object, states, "status", "clusters"); err != nil {
			panic(err)
		}
		there := managed(name, "source")
		there.SetAPIVersion(apiVersion)
		there.SetKind(gvk.Kind)
		there.SetName(name)
		control = append(control, b, object(apiVersion, gvk.Kind, "shop", name, "source", nil))
		member = append(member, there)
	}
	return control, member
}

func stateOf(cluster string, health v1alpha1.Health) map[string]any {
	return map[string]any{"name": cluster, "uid": "in-" + cluster, "generation": int64(1), "health": string(health), "lastUpdateTime": "2026-01-01T00:00:00Z"}
}

// report writes the entry of a cluster as its syncer.
func (s *fixture) report(binding string, state map[string]any) {
	s.t.Helper()
	entry := object(v1alpha1.Group+"/"+v1alpha1.Version, "ResourceBinding", "shop", binding, "", map[string]any{"status": map[string]any{"clusters": []any{state}}})
	api := s.control.Dynamic().Resource(v1alpha1.ResourceBindingResource).Namespace("shop")
	if err := fleet.ApplyStatus(s.t.Context(), api, entry, fmt.Sprint(FieldManager, "-", state["name"])); err != nil {
		s.t.Fatal(err)
	}
}

// halted reports whether the Cluster has the condition DeletionsHalted.
func (s *fixture) halted() bool {
	conditions, _, _ := unstructured.NestedSlice(s.control.Get(v1alpha1.ClusterResource, "", "east").Object, "status", "conditions")
	return strings.Contains(fmt.Sprint(conditions), string(v1alpha1.ReasonTooManyDeletions))
}

// TestFailedOverObjectsLeave: when a cluster is back after its objects failed over, all of them leave it, and removals
// are not halted. If a policy is edited so that as many leave, they are.
func TestFailedOverObjectsLeave(t *testing.T) {
	const n = 31
	t.Run("failed over", func(t *testing.T) {
		control, member := workloads(n, v1alpha1.Healthy, true)
		s := newFixture(t, control, member)
		s.eventually("all objects are deleted", func() bool { return s.deletions() == n })
		s.settle()
		if s.contains("RemovalHeld")() || s.contains("AwaitsReplacement")() || s.halted() {
			t.Error("removals were held")
		}
	})
	t.Run("moved by a policy", func(t *testing.T) {
		control, member := workloads(n, v1alpha1.Healthy, false)
		s := newFixture(t, control, member)
		s.eventually("removals are halted", s.halted)
		s.settle()
		if s.deletions() != 0 {
			t.Errorf("%d objects were deleted", s.deletions())
		}
	})
}

// TestReplacedObjectAwaitsItsReplacement: the copy stays until the other cluster is healthy.
func TestReplacedObjectAwaitsItsReplacement(t *testing.T) {
	control, member := workloads(1, v1alpha1.Progressing, true)
	s := newFixture(t, control, member)
	s.eventually("the removal waits", s.contains("AwaitsReplacement"))
	s.settle()
	if s.deletions() != 0 {
		t.Error("the object was deleted")
	}
	b := &v1alpha1.ResourceBinding{}
	s.control.Read(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-w-0", b)
	if state, _ := b.State("east"); !strings.Contains(state.Message, "in west, it is Progressing there") {
		t.Errorf("it says %q", state.Message)
	}
	s.report("deployment.apps-w-0", stateOf("west", v1alpha1.Healthy))
	s.eventually("it is deleted", func() bool { return s.deletions() == 1 })
}

// TestFollowersLeaveAfterTheirUsers: what a workload uses stays in the cluster as long as the workload waits there.
func TestFollowersLeaveAfterTheirUsers(t *testing.T) {
	control, member := workloads(1, v1alpha1.Progressing, true)
	more, there := workloads(4, v1alpha1.Healthy, true)
	conf := more[len(more)-2] // the binding of the ConfigMap w-3
	withSpec(conf, "requiredBy", []any{map[string]any{"kind": "Deployment", "name": "w-0"}})
	s := newFixture(t, append(control, more[len(more)-2:]...), append(member, there[3]))
	held := func(name string) func() bool {
		return func() bool {
			b := &v1alpha1.ResourceBinding{}
			s.control.Read(v1alpha1.ResourceBindingResource, "shop", name, b)
			state, _ := b.State("east")
			return state.Reason == v1alpha1.StateAwaitsReplacement
		}
	}
	fakeapi.Until(t, "the Deployment waits", held("deployment.apps-w-0"))
	fakeapi.Until(t, "the ConfigMap waits", held("configmap-w-3"))
	s.settle()
	if s.deletions() != 0 {
		t.Errorf("%d objects were deleted", s.deletions())
	}
	s.member.Delete(deployments, "shop", "w-0")
	s.eventually("the ConfigMap is deleted", s.contains("member delete w-3"))
}

// TestReturningClusterKeepsItsCopies: when the cluster is back and chosen again soon, its copy is not removed before.
func TestReturningClusterKeepsItsCopies(t *testing.T) {
	control, member := workloads(4, v1alpha1.Healthy, true)
	conf := control[len(control)-2]
	s := &fixture{t: t, window: time.Hour}
	s.start(control, member)
	s.eventually("the removal is due", s.contains("control apply "+conf.GetName()+" Removing"))
	s.control.Merge(v1alpha1.ResourceBindingResource, "shop", conf.GetName(), `{"spec":{"clusters":[{"name":"west","reason":"Scheduled"},{"name":"east","reason":"Scheduled"}],"requestedRemovals":[]}}`)
	s.eventually("it is applied again", s.contains("member apply w-3"))
	if s.settle(); s.deletions() != 0 {
		t.Errorf("%d objects were deleted", s.deletions())
	}
}
