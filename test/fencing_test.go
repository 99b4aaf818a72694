package test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/playground/member"
)

// fencing runs a test that takes minutes: leases last at least 45 s.
var fencing = flag.Bool("fencing", false, "run TestFencedReplicasNeverRunTwice")

const fencedDatabase = `
apiVersion: v1
kind: Namespace
metadata: {name: fenced}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: db, namespace: fenced}
spec:
  mode: Single
  fencing: {lease: 45s, grace: 1s}
  tolerations: [{key: fleet.atoll.dev/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 0}]
  clusterGroups:
  - {name: first, clusters: {names: [island]}}
  - {name: second, clusters: {names: [main]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: fenced}
spec:
  replicas: 3
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: db, image: postgres:17}]}
`

// TestFencedReplicasNeverRunTwice: a cluster that cannot reach Atoll stops its replicas by its own clock, before the other one
// starts them, and they stay stopped when it is back.
func TestFencedReplicasNeverRunTwice(t *testing.T) {
	if !*fencing {
		t.Skip("takes minutes: -fencing runs it")
	}
	i := pulled(t)
	i.start()
	other, err := i.StartMember(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	i.members["main"] = other
	if err := i.Join(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	i.kubectl(t, "atoll", "wait", "cluster", "--all", "--for=condition=Ready", "--timeout=120s")
	i.apply(t, fencedDatabase)
	i.runsIn(t, "island", 3)
	w := watchReplicas(t, clientsOf(t, i.members), "fenced")
	i.link.Cut()
	began := time.Now()
	i.runsIn(t, "island", 0)
	t.Logf("the island has stopped its replicas after %s", time.Since(began).Round(time.Second))
	i.runsIn(t, "main", 3)
	t.Logf("the other cluster runs them after %s", time.Since(began).Round(time.Second))
	i.link.Heal()
	eventually(t, 2*settle, "the island has no copy any more", func(ctx context.Context) error {
		out, err := i.tryKubectl(ctx, "island", "", "get", "statefulsets", "-n", "fenced", "--ignore-not-found", "-o", "name")
		if err != nil || out != "" {
			return fmt.Errorf("%q (%v)", out, err)
		}
		return nil
	})
	for _, fault := range w.twice() {
		t.Error(fault)
	}
}

// runsIn waits until a member has so many ready replicas of db.
func (i *island) runsIn(t *testing.T, cluster string, want int) {
	t.Helper()
	eventually(t, 2*settle, fmt.Sprintf("%d replicas in %s", want, cluster), func(ctx context.Context) error {
		out, err := i.tryKubectl(ctx, cluster, "", "get", "pods", "-n", "fenced", "--ignore-not-found", "-o", `jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}`)
		if n := len(strings.Fields(out)); err != nil || n != want {
			return fmt.Errorf("%d pods (%v)", n, err)
		}
		return nil
	})
}

// clientsOf returns clients of members.
func clientsOf(t *testing.T, members map[string]*member.Cluster) map[string]*kubernetes.Clientset {
	t.Helper()
	out := map[string]*kubernetes.Clientset{}
	for name, m := range members {
		config, err := m.REST()
		if err != nil {
			t.Fatal(err)
		}
		config.QPS = -1
		if out[name], err = kubernetes.NewForConfig(config); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
