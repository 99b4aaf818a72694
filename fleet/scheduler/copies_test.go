package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const duplicated = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p, generation: 1, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {selector: {kinds: [Deployment]}, mode: Duplicated}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: FleetQuota
metadata: {name: team, namespace: shop, uid: q, generation: 1}
spec: {hard: {pods: 5}}
status: {observedGeneration: 1, used: {pods: 3}, free: {pods: 2}}
`

// waitForScheduled waits until the condition Scheduled of a binding has a reason and a message with a text.
func waitForScheduled(t *testing.T, c *control, binding, reason, text string) {
	t.Helper()
	fakeapi.Eventually(t, binding+" is "+reason, func() error {
		for _, b := range c.bindings(t) {
			if b.Name != binding {
				continue
			}
			is := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled)
			if is == nil || is.Reason != reason || !strings.Contains(is.Message, text) {
				return fmt.Errorf("%+v", is)
			}
			return nil
		}
		return errors.New("there is no binding")
	})
}

// TestQuotaLimitsCopies: an object that runs whole in each cluster gets no cluster that its quota has
// no room for, stays where it is, and gets the cluster once there is room.
func TestQuotaLimitsCopies(t *testing.T) {
	c := begin(t, clusters+app+duplicated)
	waitForScheduled(t, c, "deployment.apps-web", ReasonQuotaExceeded, "no further cluster may run it: exceeded FleetQuota: team, requested: pods=3, used: pods=3, limited: pods=5")
	c.Merge(v1alpha1.FleetQuotaResource, "shop", "team", `{"metadata":{"generation":2},"spec":{"hard":{"pods":"6"}},"status":{"observedGeneration":2}}`)
	waitForScheduled(t, c, "deployment.apps-web", "Placed", "on east, west")
	q := &v1alpha1.FleetQuota{}
	if !c.Read(v1alpha1.FleetQuotaResource, "shop", "team", q) || len(q.Status.Admitted) == 0 || q.Status.Admitted[0].By == nil || q.Status.Admitted[0].By.Name != "deployment.apps-web" {
		t.Errorf("the quota's status is %+v", q.Status)
	}
	// A third cluster would exceed it, and nothing is removed.
	create(t, c, strings.ReplaceAll(strings.Split(clusters, "---")[0], "east", "north"))
	waitForScheduled(t, c, "deployment.apps-web", ReasonQuotaExceeded, "no further cluster may run it, and it stays in east, west: exceeded FleetQuota")
	state, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a := state.Snapshot().Schedule(state.Placed[0].Kind, state.Placed[0].Object, state.Binding(state.Placed[0].Kind, "shop", "web"))
	if a.Decision.Reason != ReasonQuotaExceeded {
		t.Errorf("a preview decides %s: %s", a.Decision.Reason, a.Decision.Message)
	}
}
