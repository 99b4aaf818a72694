package scheduler

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const autoscaled = `
---` + onePod + `---` + fromSix

const onePod = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d}
spec: {replicas: 1, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
`

const fromSix = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop, uid: h}
spec: {minReplicas: 6, maxReplicas: 10, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
`

// TestAutoscalerBoundsAreDivided: the shares add up to the replica count that the autoscalers
// would set, and follow changes of their bounds.
func TestAutoscalerBoundsAreDivided(t *testing.T) {
	client := begin(t, clusters+autoscaled)
	decided(t, client, `
deployment.apps-web: east 3, west 3
horizontalpodautoscaler.autoscaling-web: east 3, west 3 [{ Deployment web}]
`)
	client.Merge(autoscalers, "shop", "web", `{"spec":{"minReplicas":8}}`)
	decided(t, client, `
deployment.apps-web: east 4, west 4
horizontalpodautoscaler.autoscaling-web: east 4, west 4 [{ Deployment web}]
`)
	// With zero replicas it is inactive, in all clusters.
	client.Merge(deployments, "shop", "web", `{"spec":{"replicas":0}}`)
	decided(t, client, `
deployment.apps-web: east 0, west 0
horizontalpodautoscaler.autoscaling-web: east 0, west 0 [{ Deployment web}]
`)
	// Started again, the shares begin with the count that the user set.
	client.Merge(deployments, "shop", "web", `{"spec":{"replicas":20}}`)
	decided(t, client, `
deployment.apps-web: east 5, west 5
horizontalpodautoscaler.autoscaling-web: east 5, west 5 [{ Deployment web}]
`)
}

// TestAutoscalerCreatedAfterTarget: an autoscaler is not placed with bounds that are divided by
// a decision from before it existed, which could give all of them to one cluster.
func TestAutoscalerCreatedAfterTarget(t *testing.T) {
	client := begin(t, clusters+"---"+onePod)
	decided(t, client, `
deployment.apps-web: east 1
`)
	create(t, client, fromSix)
	decided(t, client, `
deployment.apps-web: east 3, west 3
horizontalpodautoscaler.autoscaling-web: east 3, west 3 [{ Deployment web}]
`)
	wantFirstPlacement(t, client, "horizontalpodautoscaler.autoscaling-web", "east 3, west 3")

	// Change its target, and then remove it.
	create(t, client, strings.ReplaceAll(onePod, "web", "api"))
	client.Merge(autoscalers, "shop", "web", `{"spec":{"scaleTargetRef":{"name":"api"}}}`)
	decided(t, client, `
deployment.apps-api: east 3, west 3
deployment.apps-web: east 1, west 0
horizontalpodautoscaler.autoscaling-web: east 3, west 3 [{ Deployment api}]
`)
	client.Delete(autoscalers, "shop", "web")
	decided(t, client, `
deployment.apps-api: east 1, west 0
deployment.apps-web: east 1, west 0
`)
}

// wantFirstPlacement checks the first placement of an object.
func wantFirstPlacement(t *testing.T, c *control, binding, want string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, made := range c.created {
		b := as[v1alpha1.ResourceBinding](t, &unstructured.Unstructured{Object: made})
		if got := describe(b.Spec.Clusters); b.Name == binding && got != want {
			t.Errorf("%s was first placed on %s, want %s", binding, got, want)
		}
	}
}

// TestPreviewKnowsAutoscalers: a preview considers autoscalers as the scheduler does.
func TestPreviewKnowsAutoscalers(t *testing.T) {
	client := begin(t, clusters+autoscaled)
	decided(t, client, `
deployment.apps-web: east 3, west 3
horizontalpodautoscaler.autoscaling-web: east 3, west 3 [{ Deployment web}]
`)
	s, err := Load(t.Context(), client.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if moves := s.Moves(s.Snapshot()); len(moves) != 0 {
		t.Errorf("unexpected moves: %+v", moves)
	}
}
