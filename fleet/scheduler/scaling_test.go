package scheduler

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const autoscaled = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d}
spec: {replicas: 1, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop, uid: h}
spec: {minReplicas: 6, maxReplicas: 10, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
`

// TestAnAutoscalersBoundsAreDivided: the shares add up to what the autoscalers will
// come to, and follow when their bounds change.
func TestAnAutoscalersBoundsAreDivided(t *testing.T) {
	client := begin(t, clusters+autoscaled)
	decided(t, client, `
deployment.apps-web: east 3, west 3
horizontalpodautoscaler.autoscaling-web: east 3, west 3 [{ Deployment web}]
`)
	hpas := schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
	merge(t, client, hpas, "shop", "web", `{"spec":{"minReplicas":8}}`)
	decided(t, client, `
deployment.apps-web: east 4, west 4
horizontalpodautoscaler.autoscaling-web: east 4, west 4 [{ Deployment web}]
`)
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	merge(t, client, deployments, "shop", "web", `{"spec":{"replicas":20}}`)
	decided(t, client, `
deployment.apps-web: east 5, west 5
horizontalpodautoscaler.autoscaling-web: east 5, west 5 [{ Deployment web}]
`)
	// Without replicas it rests, in all clusters.
	merge(t, client, deployments, "shop", "web", `{"spec":{"replicas":0}}`)
	decided(t, client, `
deployment.apps-web: east 0, west 0
horizontalpodautoscaler.autoscaling-web: east 0, west 0 [{ Deployment web}]
`)
}

// TestAPreviewKnowsAutoscalers as the scheduler does.
func TestAPreviewKnowsAutoscalers(t *testing.T) {
	client := begin(t, clusters+autoscaled)
	decided(t, client, `
deployment.apps-web: east 3, west 3
horizontalpodautoscaler.autoscaling-web: east 3, west 3 [{ Deployment web}]
`)
	s, err := Load(t.Context(), client, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if moves := s.Moves(s.World()); len(moves) != 0 {
		t.Errorf("something would move: %+v", moves)
	}
}
