package plancontroller

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// A plan includes waiting workloads under their policies, and becomes stale when a proposal changes.
func TestPlanOfWorkloads(t *testing.T) {
	s := newTestEnv(t)
	s.make("SyncPolicy", "careful", fields{"mode": "Manual", "appliesTo": []any{"Workloads"}, "approval": fields{"required": 2}})
	o := s.server.Put(fields{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": fields{"name": "web", "namespace": "shop"}, "spec": fields{"replicas": 2}})
	propose := func(digest string) {
		b := &fleetv1.ResourceBinding{}
		name := fleetv1.BindingName(o.GroupVersionKind().GroupKind(), o.GetName())
		if !s.server.Read(fleetv1.ResourceBindingResource, "shop", name, b) {
			b = &fleetv1.ResourceBinding{
				TypeMeta:   metav1.TypeMeta{APIVersion: fleetv1.Group + "/" + fleetv1.Version, Kind: "ResourceBinding"},
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
				Spec: fleetv1.ResourceBindingSpec{
					Resource: fleetv1.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID(), Resource: "deployments"},
					Manual:   &fleetv1.ManualBinding{},
				},
			}
		}
		b.Status.Proposal = &fleetv1.BindingProposal{Digest: digest, Object: interpret.ContentDigest(o), Content: true, Clusters: []fleetv1.ClusterShare{{Name: "east", Reason: "Proposed"}}}
		s.server.Put(b)
	}
	propose("sha256:one")
	s.begin()
	s.make("Plan", "one", fields{})
	s.awaitPlan("one", v1alpha1.PlanPlanned)
	if asked := s.engine.asked()[0].Workloads; len(asked) != 1 || asked[0].Action != change.Place {
		t.Fatalf("the engine got %+v", asked)
	}
	p := s.plan("one")
	if p.Status.Summary.Place != 1 {
		t.Fatalf("summary %+v", p.Status.Summary)
	}
	s.approve("ada", "one", p.Status.Digest, "ada")
	fakeapi.Until(t, "one of two approvals is counted", func() bool {
		for _, c := range s.plan("one").Status.Conditions {
			if c.Type == v1alpha1.PlanApproved && strings.Contains(c.Message, "1 of 2") && strings.Contains(c.Message, "SyncPolicy careful") {
				return true
			}
		}
		return false
	})
	propose("sha256:two")
	s.reconciler.requeueAfter("shop", 0)
	fakeapi.Until(t, "the plan is stale", func() bool {
		return is(s.plan("one").Status.Conditions, v1alpha1.PlanCurrent, v1alpha1.ReasonMoved)
	})
	// Plans of policies and of mode Destroy have no workloads.
	s.make("Plan", "end", fields{"mode": "Destroy"})
	s.awaitPlan("end", v1alpha1.PlanPlanned)
	if asked := s.engine.asked(); len(asked[len(asked)-1].Workloads) > 0 {
		t.Errorf("a Destroy plan includes %+v", asked[len(asked)-1].Workloads)
	}
}
