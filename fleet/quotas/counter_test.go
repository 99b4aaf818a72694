package quotas_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/quota"
	"github.com/atoll-dev/atoll/fleet/quotas"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

const shop = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: FleetQuota
metadata: {name: team, namespace: shop, generation: 1}
spec: {hard: {pods: 30, requests.cpu: 20}, selector: {matchLabels: {team: a}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d, labels: {team: a}}
spec:
  replicas: 3
  template: {spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: other, namespace: shop, uid: o}
spec: {replicas: 9, template: {spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: elsewhere, namespace: house, uid: h, labels: {team: a}}
spec: {replicas: 9, template: {spec: {containers: [{name: c, image: i}]}}}
`

// object decodes a manifest.
func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// begin starts the control plane of shop, with the counter.
func begin(t *testing.T) *fakeapi.Server {
	t.Helper()
	api := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "apps/v1 Deployment", "apps/v1 DaemonSet",
		"batch/v1 Job", "autoscaling/v2 HorizontalPodAutoscaler", "apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)
	for _, manifest := range strings.Split(shop, "---\n") {
		api.Put(object(t, manifest))
	}
	ctx, stop := context.WithCancel(t.Context())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: api.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- quotas.Run(ctx, session) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return api
}

// uses waits until the quota has counted so many pods and CPUs.
func uses(t *testing.T, api *fakeapi.Server, pods, cpu string) {
	t.Helper()
	fakeapi.Eventually(t, fmt.Sprintf("%s pods with %s CPUs are used", pods, cpu), func() error {
		q := &v1alpha1.FleetQuota{}
		api.Read(v1alpha1.FleetQuotaResource, "shop", "team", q)
		isPods, isCPU := q.Status.Used["pods"], q.Status.Used["requests.cpu"]
		if isPods.String() != pods || isCPU.String() != cpu {
			return fmt.Errorf("%s pods, %s CPUs: %+v", isPods.String(), isCPU.String(), q.Status)
		}
		return nil
	})
}

// TestCounter follows objects, autoscalers and bindings.
func TestCounter(t *testing.T) {
	api := begin(t)
	uses(t, api, "3", "1500m")
	api.Merge(deployments, "shop", "web", `{"spec":{"replicas":4}}`)
	uses(t, api, "4", "2")
	// Two clusters run the whole object.
	api.Put(object(t, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: ResourceBinding, metadata: {name: deployment.apps-web, namespace: shop},
  spec: {resource: {apiVersion: apps/v1, kind: Deployment, name: web, uid: d}, clusters: [{name: east, reason: Chosen}, {name: west, reason: Chosen}]}}`))
	uses(t, api, "8", "4")
	api.Put(object(t, `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web, namespace: shop, uid: h},
  spec: {maxReplicas: 6, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}`))
	uses(t, api, "12", "6")
	api.Put(object(t, `{apiVersion: batch/v1, kind: Job, metadata: {name: sum, namespace: shop, uid: j, labels: {team: a}},
  spec: {completions: 100, parallelism: 5, completionMode: Indexed, template: {spec: {containers: [{name: c, image: i}]}}}}`))
	uses(t, api, "17", "6")
	api.Merge(schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, "shop", "sum", `{"status":{"conditions":[{"type":"Complete","status":"True"}]}}`)
	api.Put(object(t, `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent, namespace: shop, uid: a, labels: {team: a}},
  spec: {template: {spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}}}}`))
	api.Delete(deployments, "shop", "web")
	uses(t, api, "0", "0")
}

// TestAdmittedWrites: a write that was admitted counts until it is seen, or is abandoned.
func TestAdmittedWrites(t *testing.T) {
	api := begin(t)
	uses(t, api, "3", "1500m")
	all := fleet.NewQuotas(api.Dynamic(), clock.RealClock{})
	q := &v1alpha1.FleetQuota{}
	api.Read(v1alpha1.FleetQuotaResource, "shop", "team", q)
	change := func(name string, pods int64) quota.Change {
		amounts, err := quota.UsesOf([]quota.Pods{{Count: pods, Requests: map[string]string{"cpu": "1"}}})
		if err != nil {
			t.Fatal(err)
		}
		return quota.Change{Object: v1alpha1.QuotaObject{Group: "apps", Kind: "Deployment", Name: name}, After: amounts}
	}
	if err := all.Admit(t.Context(), []fleet.QuotaChange{{Quota: q, Change: change("new", 10)}}, false); err != nil {
		t.Fatal(err)
	}
	if err := all.Admit(t.Context(), []fleet.QuotaChange{{Quota: q, Change: change("more", 10)}}, false); !errors.Is(err, quota.ErrExceeded) {
		t.Errorf("more than the limit: %v", err)
	}
	if err := all.Admit(t.Context(), []fleet.QuotaChange{{Quota: q, Change: change("more", 8)}}, true); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	uses(t, api, "13", "11500m")
	api.Put(object(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: new, namespace: shop, uid: n, labels: {team: a}},
  spec: {replicas: 2, template: {spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}}}}`))
	uses(t, api, "5", "3500m")
	// One that was admitted long ago and is not there was abandoned.
	api.Change(v1alpha1.FleetQuotaResource, "shop", "team", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"object": map[string]any{"group": "apps", "kind": "Deployment", "name": "never"},
			"uses": map[string]any{"pods": "7"}, "revision": int64(1 << 40), "time": time.Now().Add(-quota.Abandoned - time.Second).UTC().Format(time.RFC3339)}}, "status", "admitted")
	})
	fakeapi.Until(t, "the abandoned write is removed", func() bool {
		q := &v1alpha1.FleetQuota{}
		api.Read(v1alpha1.FleetQuotaResource, "shop", "team", q)
		return len(q.Status.Admitted) == 0
	})
	uses(t, api, "5", "3500m")
}

// TestInvalidSelector: an invalid selector is reported, and no write is admitted.
func TestInvalidSelector(t *testing.T) {
	api := begin(t)
	uses(t, api, "3", "1500m")
	api.Merge(v1alpha1.FleetQuotaResource, "shop", "team", `{"metadata":{"generation":2},"spec":{"selector":{"matchLabels":{"a":"!!"}}}}`)
	fakeapi.Until(t, "the quota is invalid", func() bool {
		q := &v1alpha1.FleetQuota{}
		api.Read(v1alpha1.FleetQuotaResource, "shop", "team", q)
		return len(q.Status.Conditions) == 1 && q.Status.Conditions[0].Status == "False" && strings.Contains(q.Status.Conditions[0].Message, "spec.selector")
	})
}
