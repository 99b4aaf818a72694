package test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var members = []string{"east", "west", "north"}

// What a user does with a Deployment on one cluster, done to Atoll, on three.
func TestOneDeploymentOnThreeClusters(t *testing.T) {
	f := whole(t)
	f.kubectl(t, "atoll", "create", "deployment", "web", "--image=nginx", "--replicas=9")
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "deployment", "web", "--ignore-not-found")
	})

	out := f.kubectl(t, "atoll", "rollout", "status", "deployment/web", "--timeout=60s")
	if !strings.Contains(out, "successfully rolled out") {
		t.Errorf("rollout status prints %q", out)
	}
	if fields := strings.Fields(f.kubectl(t, "atoll", "get", "deploy", "web", "--no-headers")); len(fields) < 4 || fields[1] != "9/9" || fields[2] != "9" || fields[3] != "9" {
		t.Errorf("get deploy prints %q", fields)
	}
	f.wantShares(t, settle, "web", map[string]int32{"east": 3, "west": 3, "north": 3})

	f.kubectl(t, "atoll", "scale", "deployment", "web", "--replicas=10")
	f.wantShares(t, settle, "web", map[string]int32{"east": 4, "west": 3, "north": 3})

	f.kubectl(t, "atoll", "set", "image", "deployment/web", "nginx=nginx:1.29")
	f.kubectl(t, "atoll", "rollout", "status", "deployment/web", "--timeout=60s")
	for _, m := range members {
		if image := f.kubectl(t, m, "get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}"); image != "nginx:1.29" {
			t.Errorf("%s has image %s after rollout status said that the new one is rolled out", m, image)
		}
	}
	f.wantShares(t, settle, "web", map[string]int32{"east": 4, "west": 3, "north": 3})

	t.Run("the previous template returns", func(t *testing.T) {
		if out := f.kubectl(t, "atoll", "rollout", "history", "deployment/web"); !strings.Contains(out, "\n1 ") || !strings.Contains(out, "\n2 ") {
			t.Errorf("rollout history prints %q", out)
		}
		f.kubectl(t, "atoll", "rollout", "undo", "deployment/web")
		f.kubectl(t, "atoll", "rollout", "status", "deployment/web", "--timeout=60s")
		for _, m := range members {
			if image := f.kubectl(t, m, "get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}"); image != "nginx" {
				t.Errorf("%s has image %s after the rollback", m, image)
			}
		}
		// The newest ReplicaSet says how many replicas of its template are ready. No cluster got it.
		eventually(t, settle, "the ReplicaSet of the current template is ready", func(ctx context.Context) error {
			out, err := f.tryKubectl(ctx, "atoll", "", "get", "replicasets", "-o", "jsonpath={range .items[*]}{.metadata.annotations.deployment\\.kubernetes\\.io/revision}={.status.readyReplicas} {end}")
			if err == nil && !strings.Contains(out+" ", "3=10 ") {
				err = fmt.Errorf("revisions are %q", out)
			}
			return err
		})
		if out := f.kubectl(t, "atoll", "get", "resourcebindings", "-o", "name"); strings.Contains(out, "replicaset") {
			t.Errorf("ReplicaSets that only record templates are placed: %s", out)
		}
	})

	t.Run("a manual change in a member is reverted", func(t *testing.T) {
		f.kubectl(t, "west", "scale", "deployment", "web", "--replicas=7")
		f.wantShares(t, settle, "web", map[string]int32{"east": 4, "west": 3, "north": 3})
		f.kubectl(t, "north", "delete", "deployment", "web")
		f.wantShares(t, settle, "web", map[string]int32{"east": 4, "west": 3, "north": 3})
	})

	t.Run("the decision and its reasons can be read", func(t *testing.T) {
		out := f.kubectl(t, "atoll", "get", "resourcebindings", "-o", "jsonpath={range .items[*]}{.spec.resource.kind}/{.spec.resource.name} {range .spec.clusters[*]}{.name}={.replicas} {end}{end}")
		for _, want := range []string{"Deployment/web ", " east=4 ", " west=3 ", " north=3 "} {
			if !strings.Contains(out+" ", want) {
				t.Errorf("resourcebindings say %q, without %q", out, want)
			}
		}
	})

	f.kubectl(t, "atoll", "delete", "deployment", "web")
	f.wantGone(t, "deployment", "web", members...)
	eventually(t, settle, "members have no Pods left", func(ctx context.Context) error {
		for _, m := range members {
			out, err := f.tryKubectl(ctx, m, "", "get", "pods", "-o", "name")
			if err != nil {
				return err
			}
			if out != "" {
				return fmt.Errorf("%s has %s", m, strings.Join(strings.Fields(out), " "))
			}
		}
		return nil
	})
}

const shop = `
apiVersion: v1
kind: ConfigMap
metadata: {name: shop-settings}
data: {colour: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: shop-password}
stringData: {password: open sesame}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec:
  selector: {app: shop}
  ports: [{port: 80}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: nobody-uses-this, labels: {fleet.atoll.dev/configuration: WhereNeeded}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      serviceAccountName: shop
      containers:
      - name: shop
        image: nginx
        envFrom: [{configMapRef: {name: shop-settings}}]
        volumeMounts: [{name: password, mountPath: /password}]
      volumes:
      - name: password
        secret: {secretName: shop-password}
`

// A workload takes the objects that it uses to its clusters, and the configuration of its namespace unless that
// is labelled to be only where it is needed.
func TestWhatAWorkloadUsesFollowsIt(t *testing.T) {
	f := whole(t)
	f.apply(t, shop)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", shop, "delete", "--ignore-not-found", "-f", "-")
	})
	f.wantShares(t, settle, "shop", map[string]int32{"east": 1, "west": 1, "north": 1})
	for _, m := range members {
		f.kubectl(t, m, "get", "serviceaccount", "shop")
		eventually(t, settle, "Service shop is in "+m, func(ctx context.Context) error {
			_, err := f.tryKubectl(ctx, m, "", "get", "service", "shop")
			return err
		})
		if ip := f.kubectl(t, m, "get", "service", "shop", "-o", "jsonpath={.spec.clusterIP}"); !strings.HasPrefix(ip, "10.96.") {
			t.Errorf("%s: Service has address %q, which is not the member's own", m, ip)
		}
		if out := f.kubectl(t, m, "get", "configmap", "nobody-uses-this", "--ignore-not-found"); out != "" {
			t.Errorf("%s has a ConfigMap that nothing there uses", m)
		}
	}

	f.kubectl(t, "atoll", "patch", "configmap", "shop-settings", "-p", `{"data":{"colour":"green"}}`)
	eventually(t, settle, "the change of the ConfigMap is everywhere", func(ctx context.Context) error {
		for _, m := range members {
			c, err := f.client(t, m).CoreV1().ConfigMaps("default").Get(ctx, "shop-settings", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c.Data["colour"] != "green" {
				return fmt.Errorf("%s has %v", m, c.Data)
			}
		}
		return nil
	})
	if s, err := f.client(t, "west").CoreV1().Secrets("default").Get(t.Context(), "shop-password", metav1.GetOptions{}); err != nil || string(s.Data["password"]) != "open sesame" {
		t.Errorf("west: Secret: %v", err)
	}

	f.kubectl(t, "atoll", "delete", "deployment", "shop")
	for _, resource := range []string{"configmap/shop-settings", "secret/shop-password", "serviceaccount/shop", "service/shop"} {
		kind, name, _ := strings.Cut(resource, "/")
		f.wantGone(t, kind, name, members...)
	}
	f.kubectl(t, "atoll", "get", "configmap", "shop-settings") // Atoll keeps the object itself
}

// uids are the UIDs of a Deployment in the members: the same later means that
// it has not been deleted in between.
func (f *fixture) uids(t *testing.T, name string) map[string]types.UID {
	t.Helper()
	out := map[string]types.UID{}
	for _, m := range members {
		d, err := f.client(t, m).AppsV1().Deployments("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: %v", m, err)
		}
		out[m] = d.UID
	}
	return out
}
