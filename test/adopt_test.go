package test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// movingIn is an app that runs in east, without Atoll.
const movingIn = `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {app: web}}, spec: {replicas: 3, selector: {matchLabels: {app: web}},
  template: {metadata: {labels: {app: web}}, spec: {serviceAccountName: web, containers: [{name: web, image: nginx, envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: passwords}}]}]}}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: NodePort, selector: {app: web}, ports: [{port: 80}]}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, spec: {serviceName: db, replicas: 2, selector: {matchLabels: {app: db}},
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: db, image: nginx}]}}}}
---
{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: once}, spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: once, image: nginx}]}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly}, spec: {schedule: "0 3 1 1 *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: nightly, image: nginx}]}}}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web}, spec: {rules: [{http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}
---
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web}, spec: {minReplicas: 3, maxReplicas: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web},
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {a: b}}
---
{apiVersion: v1, kind: Secret, metadata: {name: passwords}, stringData: {password: secret}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: web}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: web}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: web}, subjects: [{kind: ServiceAccount, name: web, namespace: moving-in}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: moving-in}, rules: [{apiGroups: [""], resources: [nodes], verbs: [get]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: moving-in}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: moving-in}, subjects: [{kind: ServiceAccount, name: web, namespace: moving-in}]}
`

// movingInObjects are the names of these objects.
var movingInObjects = []string{"deployment/web", "service/web", "statefulset/db", "service/db", "job/once", "cronjob/nightly", "pvc/data", "ingress/web", "hpa/web",
	"serviceaccount/web", "configmap/settings", "secret/passwords", "role/web", "rolebinding/web", "clusterrole/moving-in", "clusterrolebinding/moving-in"}

// TestAnAppOfAClusterMovesIn: `atoll adopt --from` copies an app with all that it needs, and Atoll takes it over
// without any change that matters to it: the objects and the pods are the same, and no controller has to act.
// When the label is removed, the app spreads.
func TestAnAppOfAClusterMovesIn(t *testing.T) {
	f := whole(t)
	t.Parallel()
	const namespace = "moving-in"
	t.Cleanup(func() {
		for _, args := range [][]string{{"clusterrole,clusterrolebinding", namespace}, {"namespace", namespace}} {
			for _, c := range []string{"atoll", "east"} {
				if _, err := f.tryKubectl(context.Background(), c, "", append([]string{"delete", "--ignore-not-found", "--timeout=90s"}, args...)...); err != nil {
					t.Error(err)
				}
			}
		}
	})
	f.kubectl(t, "east", "create", "namespace", namespace)
	if _, err := f.tryKubectl(t.Context(), "east", movingIn, "apply", "-n", namespace, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	f.kubectl(t, "east", "rollout", "status", "-n", namespace, "deployment/web", "--timeout=90s")
	f.kubectl(t, "east", "rollout", "status", "-n", namespace, "statefulset/db", "--timeout=90s")
	before, pods := f.contents(t, "east", namespace, movingInObjects), f.podsIn(t, "east", namespace)
	addresses := f.kubectl(t, "east", "get", "services", "-n", namespace, "-o", "jsonpath={range .items[*]}{.spec.clusterIP} {.spec.ports[*].nodePort};{end}")

	out := f.atoll(t, "adopt", "deployment/web", "statefulset/db", "service/web", "job/once", "cronjob/nightly", "pvc/data", "ingress/web", "-n", namespace, "--from", "east")
	for _, want := range []string{"deployment.apps/web in namespace moving-in copied from east and taken over there", "clusterrolebinding.rbac.authorization.k8s.io/moving-in, for ",
		"service/db in namespace moving-in, for statefulset.apps/db", "horizontalpodautoscaler.autoscaling/web in namespace moving-in, for deployment.apps/web"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	eventually(t, settle, "all objects are Atoll's", func(ctx context.Context) error {
		for _, o := range movingInObjects {
			marked, err := f.tryKubectl(ctx, "east", "", "get", o, "-n", namespace, "-o", "jsonpath={.metadata.labels.fleet\\.atoll\\.dev/managed}")
			if err != nil || marked != "true" {
				return fmt.Errorf("%s: %q %w", o, marked, err)
			}
		}
		return nil
	})
	eventually(t, settle, "Atoll shows the status of the app", func(ctx context.Context) error {
		ready, err := f.tryKubectl(ctx, "atoll", "", "get", "deployment", "web", "-n", namespace, "-o", "jsonpath={.status.readyReplicas}")
		if err != nil || ready != "3" {
			return fmt.Errorf("%q are ready %w", ready, err)
		}
		return nil
	})
	if after := f.contents(t, "east", namespace, movingInObjects); !maps.Equal(before, after) {
		t.Errorf("the objects were\n%v\nand are\n%v", before, after)
	}
	if after := f.podsIn(t, "east", namespace); !slices.Equal(pods, after) {
		t.Errorf("the pods were %v, and are %v", pods, after)
	}
	if after := f.kubectl(t, "east", "get", "services", "-n", namespace, "-o", "jsonpath={range .items[*]}{.spec.clusterIP} {.spec.ports[*].nodePort};{end}"); after != addresses {
		t.Errorf("the addresses of Services were %s, and are %s", addresses, after)
	}
	if conflicts := f.kubectl(t, "atoll", "get", "resourcebindings", "-n", namespace, "-o", "jsonpath={.items[*].status.clusters[*].reason}"); strings.Contains(conflicts, v1alpha1.StateConflict) {
		t.Errorf("states are %s", conflicts)
	}

	f.kubectl(t, "atoll", "label", "deployment", "web", "-n", namespace, v1alpha1.ClusterLabel+"-")
	f.kubectl(t, "atoll", "label", "hpa", "web", "-n", namespace, v1alpha1.ClusterLabel+"-")
	eventually(t, settle, "the Deployment spreads", func(ctx context.Context) error {
		_, err := f.tryKubectl(ctx, "west", "", "get", "deployment/web", "configmap/settings", "-n", namespace)
		return err
	})
}

// contents returns the UIDs of objects and their fields apart from metadata and status. The generation
// of a Deployment grows with its annotations, too.
func (f *fixture) contents(t *testing.T, cluster, namespace string, objects []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, o := range objects {
		out[o] = f.kubectl(t, cluster, "get", o, "-n", namespace, "-o", "jsonpath={.metadata.uid} {.spec} {.data} {.rules} {.roleRef} {.subjects}")
	}
	return out
}

func (f *fixture) podsIn(t *testing.T, cluster, namespace string) (out []types.UID) {
	t.Helper()
	pods, err := f.client(t, cluster).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		out = append(out, p.UID)
	}
	slices.Sort(out)
	return out
}
