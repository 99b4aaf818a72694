package test

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

const rejectedApps = `
apiVersion: v1
kind: Namespace
metadata: {name: rejected, annotations: {fleet.atoll.dev/adopt: east}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: rejected, labels: {fleet.atoll.dev/cluster: west}}
spec:
  replicas: 1
  serviceName: db
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: db, image: nginx}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: rejected, labels: {fleet.atoll.dev/cluster: east}}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: agent, image: nginx}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: report, namespace: rejected, labels: {fleet.atoll.dev/cluster: east}}
spec:
  template: {spec: {restartPolicy: Never, containers: [{name: report, image: nginx}]}}
`

// podLimits reject pods without a memory limit. The scheduler knows the quotas of a cluster, but not its LimitRanges.
const podLimits = `{apiVersion: v1, kind: LimitRange, metadata: {name: small, namespace: rejected}, spec: {limits: [{type: Pod, max: {memory: 1Gi}}]}}`

// TestRejectedPodsAreNamed: a cluster rejects the pods of kinds whose status does not say so. Their bindings and a move
// that waits for them name the cause.
func TestRejectedPodsAreNamed(t *testing.T) {
	f := whole(t)
	t.Cleanup(func() {
		for _, cluster := range []string{"atoll", "east"} {
			_, _ = f.tryKubectl(context.Background(), cluster, "", "delete", "namespace", "rejected", "--ignore-not-found")
		}
	})
	f.kubectl(t, "east", "create", "namespace", "rejected")
	if _, err := f.tryKubectl(t.Context(), "east", podLimits, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	f.apply(t, rejectedApps)
	state := func(binding, want string) {
		t.Helper()
		eventually(t, settle, binding+" is "+want, func(ctx context.Context) error {
			out, err := f.tryKubectl(ctx, "atoll", "", "get", "resourcebinding", binding, "-n", "rejected", "-o", "jsonpath={.status.clusters[0].health} {.status.clusters[0].message}")
			if err == nil && !(strings.HasPrefix(out, want) && strings.Contains(out, "maximum memory usage per Pod is 1Gi") == (want == "Degraded")) {
				return fmt.Errorf("it is %q", out)
			}
			return err
		})
	}
	state("daemonset.apps-agent", "Degraded")
	state("job.batch-report", "Degraded")
	state("statefulset.apps-db", "Healthy")
	out, err := f.run(t.Context(), "atoll", f.Kubeconfig(), "", "move", "statefulset/db", "-n", "rejected", "--to", "east", "--timeout=30s")
	if err == nil || !strings.Contains(err.Error(), `pods "db-0" is forbidden: maximum memory usage per Pod is 1Gi`) {
		t.Errorf("the move prints %q and %v", out, err)
	}
}
