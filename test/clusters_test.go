package test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// deploy makes a Deployment in Atoll for the time of the test.
func (f *fixture) deploy(t *testing.T, name, replicas string) {
	t.Helper()
	f.kubectl(t, "atoll", "create", "deployment", name, "--image=nginx", "--replicas="+replicas)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "deployment", name, "--ignore-not-found")
		f.wantGoneCleanup(t, name)
	})
}

// wantGoneCleanup leaves the members empty for the next test.
func (f *fixture) wantGoneCleanup(t *testing.T, name string) {
	for _, m := range members {
		for deadline := time.Now().Add(settle); ; {
			out, err := f.tryKubectl(context.Background(), m, "", "get", "deployment", name, "--ignore-not-found", "-o", "name")
			if err == nil && out == "" {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s is not emptied: %s %v", m, out, err)
				break
			}
		}
	}
}

// A cluster that joins later gets its share; when it leaves, it is emptied and
// its share goes to the others.
func TestAClusterJoinsLaterAndLeaves(t *testing.T) {
	f := whole(t)
	f.deploy(t, "web", "7")
	f.wantShares(t, settle, "web", map[string]int32{"east": 3, "west": 2, "north": 2})

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c4, err := f.StartMember(ctx, "c4")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c4.Stop() })
	if out := f.atoll(t, "join", "c4", "--kubeconfig", c4.Kubeconfig); out != "cluster/c4 joined" {
		t.Errorf("join prints %q", out)
	}
	f.wantShares(t, settle, "web", map[string]int32{"east": 2, "west": 2, "north": 2, "c4": 1})

	if out := f.atoll(t, "leave", "c4"); !strings.Contains(out, "the cluster is drained\n") || !strings.HasSuffix(out, "\ncluster/c4 left") {
		t.Errorf("leave prints %q, not what moves and that the cluster has left", out)
	}
	f.wantShares(t, settle, "web", map[string]int32{"east": 3, "west": 2, "north": 2, "c4": 0})
	f.wantGone(t, "deployment", "web", "c4")
	if out := f.kubectl(t, "atoll", "get", "clusters", "-o", "name"); len(strings.Fields(out)) != len(members) {
		t.Errorf("clusters after c4 has left: %q", out)
	}

	// It may come back, and leave so that what runs there goes on running.
	f.atoll(t, "join", "c4", "--kubeconfig", c4.Kubeconfig)
	f.wantShares(t, settle, "web", map[string]int32{"east": 2, "west": 2, "north": 2, "c4": 1})
	f.atoll(t, "leave", "c4", "--cascade=orphan")
	f.wantShares(t, settle, "web", map[string]int32{"east": 3, "west": 2, "north": 2})
	f.kubectl(t, "atoll", "delete", "deployment", "web")
	f.wantGone(t, "deployment", "web", members...)
	if out := f.kubectl(t, "c4", "get", "deployment", "web", "-o", "jsonpath={.status.availableReplicas}"); out != "1" {
		t.Errorf("c4 has %q replicas of the Deployment that it was to keep, not 1", out)
	}
}

// A cluster that stops answering turns not Ready and keeps its share for the
// toleration time; then the others take it over. When the cluster is back, it
// takes its share again.
func TestASilentClusterLosesItsShareAndGetsItBack(t *testing.T) {
	f := whole(t)
	toleration := 20 * time.Second
	clusters := f.dynamic(t).Resource(clustersResource)
	if _, err := clusters.Patch(t.Context(), "north", types.MergePatchType, []byte(`{"spec":{"evictAfter":"`+toleration.String()+`"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = clusters.Patch(context.Background(), "north", types.MergePatchType, []byte(`{"spec":{"evictAfter":null}}`), metav1.PatchOptions{})
	})
	f.deploy(t, "web", "9")
	f.wantShares(t, settle, "web", map[string]int32{"east": 3, "west": 3, "north": 3})
	before := f.uids(t, "web")

	f.members["north"].Kill()
	silent := time.Now()
	f.wantReady(t, settle, "north", false)
	// While it is tolerated, nothing moves.
	d, err := f.client(t, "east").AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if since := time.Since(silent); since < toleration && *d.Spec.Replicas != 3 {
		t.Errorf("east was given %d replicas after %s, before the toleration time of %s was over", *d.Spec.Replicas, since, toleration)
	}
	eventually(t, settle+toleration, "the others have taken the share over", func(ctx context.Context) error {
		for m, want := range map[string]int32{"east": 5, "west": 4} {
			d, err := f.client(t, m).AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if err := rolledOut(d, want); err != nil {
				return err
			}
		}
		return nil
	})
	if since := time.Since(silent); since < toleration {
		t.Errorf("the share moved after %s, before the toleration time of %s was over", since, toleration)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if f.members["north"], err = f.StartMember(ctx, "north"); err != nil {
		t.Fatal(err)
	}
	f.wantReady(t, settle, "north", true)
	f.wantShares(t, settle, "web", map[string]int32{"east": 3, "west": 3, "north": 3})
	after := f.uids(t, "web")
	delete(before, "north") // its copy may have been recreated
	delete(after, "north")
	if !maps.Equal(before, after) {
		t.Errorf("Deployments were recreated: %v before, %v after", before, after)
	}
}

// Neither the end of Atoll nor a lost connection deletes anything.
func TestRestartsAndLostConnectionsDeleteNothing(t *testing.T) {
	f := whole(t)
	f.deploy(t, "web", "9")
	f.wantShares(t, settle, "web", map[string]int32{"east": 3, "west": 3, "north": 3})
	before := f.uids(t, "web")
	pods := f.podUIDs(t)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	f.KillAtoll()
	if err := f.StartAtoll(ctx); err != nil {
		t.Fatal(err)
	}
	// That Atoll works again is seen by a change that arrives.
	f.kubectl(t, "atoll", "annotate", "deployment", "web", "seen=first")
	f.kubectl(t, "atoll", "scale", "deployment", "web", "--replicas=12")
	f.wantShares(t, settle, "web", map[string]int32{"east": 4, "west": 4, "north": 4})

	if err := f.StopAtoll(); err != nil {
		t.Error(err)
	}
	f.members["west"].Kill()
	if err := f.StartAtoll(ctx); err != nil {
		t.Fatal(err)
	}
	f.wantReady(t, settle, "west", false)
	var err error
	if f.members["west"], err = f.StartMember(ctx, "west"); err != nil {
		t.Fatal(err)
	}
	f.wantReady(t, settle, "west", true)
	f.kubectl(t, "atoll", "scale", "deployment", "web", "--replicas=15")
	f.wantShares(t, settle, "web", map[string]int32{"east": 5, "west": 5, "north": 5})

	if after := f.uids(t, "web"); !maps.Equal(before, after) {
		t.Errorf("Deployments were recreated: %v before, %v after", before, after)
	}
	after := f.podUIDs(t)
	for uid, pod := range pods {
		if _, ok := after[uid]; !ok {
			t.Errorf("Pod %s was deleted", pod)
		}
	}
}

// podUIDs are the Pods of all members.
func (f *fixture) podUIDs(t *testing.T) map[types.UID]string {
	t.Helper()
	out := map[types.UID]string{}
	for _, m := range members {
		pods, err := f.client(t, m).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%s: %v", m, err)
		}
		for _, p := range pods.Items {
			out[p.UID] = m + "/" + p.Name
		}
	}
	return out
}
