package test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// TestPodsOfMembers: a user of Atoll sees the pods of a Deployment in all clusters, and deletes one of them, as in one
// cluster. Pods that are not Atoll's are neither seen nor touched, and a user without rights sees none.
func TestPodsOfMembers(t *testing.T) {
	f := whole(t)
	const namespace = "reach"
	f.kubectl(t, "atoll", "create", "namespace", namespace)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "namespace", namespace, "--ignore-not-found")
		_, _ = f.tryKubectl(context.Background(), "east", "", "delete", "namespace", namespace, "--ignore-not-found")
	})
	f.kubectl(t, "atoll", "create", "deployment", "web", "--image=nginx", "--replicas=6", "-n", namespace)
	watched := f.watchPods(t, namespace)
	f.kubectl(t, "atoll", "rollout", "status", "deployment/web", "-n", namespace, "--timeout=60s")
	f.kubectl(t, "atoll", "wait", "pod", "-l", "app=web", "-n", namespace, "--for=condition=Ready", "--timeout=60s")
	f.put(t, "east", `{apiVersion: v1, kind: Pod, metadata: {name: foreign, namespace: `+namespace+`}, spec: {containers: [{name: c, image: nginx}]}}`)

	wide := f.kubectl(t, "atoll", "get", "pods", "-n", namespace, "-o", "wide")
	for _, member := range members {
		if n := strings.Count(wide, " "+member+"."+member+"-"); n != 2 {
			t.Errorf("%d pods on nodes of %s:\n%s", n, member, wide)
		}
	}
	if !strings.Contains(wide, "CLUSTER") || strings.Contains(wide, "foreign") {
		t.Errorf("get pods -o wide prints\n%s", wide)
	}
	names := strings.Fields(f.kubectl(t, "atoll", "get", "pods", "-n", namespace, "-l", "fleet.atoll.dev/cluster=west", "-o", "name"))
	if len(names) != 2 {
		t.Fatalf("pods of west: %v", names)
	}
	if out := f.kubectl(t, "atoll", "describe", names[0], "-n", namespace); !strings.Contains(out, "west.west-") {
		t.Errorf("describe prints\n%s", out)
	}
	if _, err := f.tryKubectl(t.Context(), "atoll", "", "get", "pod", "foreign", "-n", namespace); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a foreign pod: %v", err)
	}
	for _, args := range [][]string{{"get", "pods"}, {"get", names[0]}, {"delete", names[0]}, {"logs", names[0]}} {
		if _, err := f.tryKubectl(t.Context(), "atoll", "", append(args, "-n", namespace, "--as=stranger")...); err == nil || !strings.Contains(err.Error(), "stranger") {
			t.Errorf("%v as a stranger: %v", args, err)
		}
	}

	nodes := f.kubectl(t, "atoll", "get", "nodes", "-o", "name")
	for _, member := range members {
		if !strings.Contains(nodes, "node/"+member+"."+member+"-1") {
			t.Errorf("nodes without those of %s: %s", member, nodes)
		}
	}
	if _, err := f.tryKubectl(t.Context(), "atoll", "", "label", "node", "east.east-1", "a=b"); err == nil || !strings.Contains(err.Error(), "atoll cordon east") {
		t.Errorf("a change of a node: %v", err)
	}
	if out := f.kubectl(t, "atoll", "get", "events", "-n", namespace, "--field-selector", "reason=ScalingReplicaSet"); !strings.Contains(out, "deployment/web") {
		t.Errorf("events of the clusters: %s", out)
	}
	if out := f.kubectl(t, "atoll", "describe", "deployment/web", "-n", namespace); !strings.Contains(out, "ScalingReplicaSet") {
		t.Errorf("describe prints no events of the clusters:\n%s", out)
	}

	f.kubectl(t, "atoll", "label", names[0], "seen=yes", "-n", namespace)
	if out := f.kubectl(t, "west", "get", "pods", "-n", namespace, "-l", "seen=yes", "-o", "name"); strings.TrimSpace(out) != names[0] {
		t.Errorf("labelled in west: %s", out)
	}
	f.kubectl(t, "atoll", "delete", names[0], "-n", namespace)
	f.kubectl(t, "atoll", "scale", "deployment/web", "--replicas=9", "-n", namespace)
	f.kubectl(t, "atoll", "rollout", "status", "deployment/web", "-n", namespace, "--timeout=60s")
	eventually(t, settle, "the informer has the pods of all clusters", func(ctx context.Context) error {
		var want []types.UID
		for _, member := range members {
			list, err := f.client(t, member).CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				return err
			}
			for _, pod := range list.Items {
				want = append(want, pod.UID)
			}
		}
		var got []types.UID
		for _, obj := range watched.List() {
			got = append(got, obj.(*corev1.Pod).UID)
		}
		slices.Sort(want)
		slices.Sort(got)
		if len(want) != 9 || !slices.Equal(got, want) {
			return fmt.Errorf("the informer has %d pods, the clusters %d", len(got), len(want))
		}
		return nil
	})

	foreign := f.kubectl(t, "east", "get", "pod", "foreign", "-n", namespace, "-o", "jsonpath={.metadata.uid}")
	f.kubectl(t, "atoll", "delete", "namespace", namespace, "--timeout=60s")
	f.wantGone(t, "deployment", "web", members...)
	if now := f.kubectl(t, "east", "get", "pod", "foreign", "-n", namespace, "-o", "jsonpath={.metadata.uid}{.metadata.deletionTimestamp}"); now != foreign {
		t.Errorf("the foreign pod changed from %s to %s", foreign, now)
	}
}

// watchPods runs an informer of client-go on the pods of a namespace of Atoll.
func (f *fixture) watchPods(t *testing.T, namespace string) cache.Store {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(f.client(t, "atoll"), 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	return informer.GetStore()
}
