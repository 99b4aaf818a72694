package test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestFaultMatrix causes each fault that can occur between Atoll and its members. A user finds each fault,
// with its remedy, where users look; nothing is deleted or recreated because of it; and after the remedy
// everything is as desired.
//
// The faults here need a real member but do not stop it. Killed members and servers are tested in
// TestRestartsAndLostConnectionsDeleteNothing, TestASilentClusterLosesItsShareAndGetsItBack and
// TestAClusterThatPulls, and cut networks in test/partition. fleet/clusters and fleet/syncer test faults that a
// real member cannot be made to have.
func TestFaultMatrix(t *testing.T) {
	f := whole(t)
	f.deploy(t, "web", "3")
	f.wantShares(t, settle, "web", map[string]int32{"east": 1, "west": 1, "north": 1})
	before, pods := f.kept(t), f.podUIDs(t)

	// East suffers from its kubeconfigs while west suffers from everything else.
	f.limit(t, "west")
	var all sync.WaitGroup
	all.Go(func() { t.Run("kubeconfigs", f.sufferKubeconfigs) })
	f.sufferObjects(t, &all)
	all.Go(func() { t.Run("a type that is deleted", f.sufferDeletedType) })
	all.Wait()

	if after := f.kept(t); !maps.Equal(before, after) {
		t.Errorf("the members had %v, and have %v", before, after)
	}
	after := f.podUIDs(t)
	for uid, pod := range pods {
		if _, ok := after[uid]; !ok {
			t.Errorf("Pod %s was deleted", pod)
		}
	}
}

// sufferKubeconfigs gives Atoll one bad kubeconfig of east after the other.
func (f *fixture) sufferKubeconfigs(t *testing.T) {
	t.Cleanup(func() { f.reachBy(t, "east", func(*clientcmdapi.Config) {}) })
	for i, fault := range f.kubeconfigFaults(t) {
		t.Run(fault.name, func(t *testing.T) {
			f.reachBy(t, "east", fault.change)
			f.wantFault(t, "east", fault.reason, fault.says)
			seen := fmt.Sprint("fault-", i)
			f.kubectl(t, "atoll", "annotate", "deployment", "web", "--overwrite", "example.org/seen="+seen)
			f.reachBy(t, "east", func(*clientcmdapi.Config) {})
			f.wantReady(t, settle, "east", true)
			eventually(t, settle, "changes made during the fault have arrived", func(ctx context.Context) error {
				d, err := f.client(t, "east").AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
				if err == nil && d.Annotations["example.org/seen"] != seen {
					err = fmt.Errorf("its annotations are %v", d.Annotations)
				}
				return err
			})
		})
	}
}

// sufferObjects starts all rows of the matrix at once, because they mostly wait.
func (f *fixture) sufferObjects(t *testing.T, all *sync.WaitGroup) {
	t.Helper()
	hooks := newHookServer(t)
	for _, c := range []string{"atoll", "west"} {
		f.put(t, c, faultCRD("Thing"))
	}
	rows := objectFaults()
	t.Cleanup(func() {
		for _, c := range []string{"atoll", "west"} {
			for _, row := range rows {
				_, _ = f.tryKubectl(context.Background(), c, "", "delete", "namespace", "fault-"+row.name, "--ignore-not-found", "--wait=false")
			}
		}
		for _, c := range []string{"atoll", "west"} {
			_, _ = f.tryKubectl(context.Background(), c, "", "delete", "crd", "things.faults.example.com", "--ignore-not-found")
		}
	})
	for i := range rows {
		all.Go(func() {
			t.Run(rows[i].name, func(t *testing.T) {
				row := &faulty{fixture: f, T: t, objectFault: &rows[i], atoll: f.dynamic(t), west: f.dynamicOf(t, "west"), hooks: hooks, space: "fault-" + rows[i].name}
				row.suffer()
			})
		})
	}
}

// sufferDeletedType deletes a type here that was placed in west by a label. West has an object of that type
// that the fleet does not manage, and deleting the type there would delete it too.
func (f *fixture) sufferDeletedType(t *testing.T) {
	const name, binding = "leftovers.faults.example.com", "customresourcedefinition.apiextensions.k8s.io-leftovers.faults.example.com"
	atoll, west := f.dynamic(t), f.dynamicOf(t, "west")
	f.put(t, "atoll", faultCRD("Leftover"))
	f.kubectl(t, "atoll", "label", "crd", name, v1alpha1.ClusterLabel+"=west")
	leftovers := west.Resource(faultResource("leftovers")).Namespace("default")
	eventually(t, settle, "west has an object of the type", func(ctx context.Context) error {
		_, err := leftovers.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "faults.example.com/v1", "kind": "Leftover", "metadata": map[string]any{"name": "theirs"}}}, metav1.CreateOptions{})
		return err
	})
	crd, err := west.Resource(crdsResource).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.kubectl(t, "atoll", "delete", "crd", name)
	eventually(t, settle, "the binding says what to do", func(ctx context.Context) error {
		u, err := atoll.Resource(v1alpha1.ClusterResourceBindingResource).Get(ctx, binding, metav1.GetOptions{})
		if err != nil {
			return err
		}
		b := &v1alpha1.ResourceBinding{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
			return err
		}
		state, _ := b.State("west")
		return held(state)
	})
	if now, err := west.Resource(crdsResource).Get(t.Context(), name, metav1.GetOptions{}); err != nil || now.GetUID() != crd.GetUID() || now.GetDeletionTimestamp() != nil {
		t.Errorf("the type in west: %v, %v", now, err)
	}
	if err := leftovers.Delete(t.Context(), "theirs", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	f.wantGone(t, "crd", name, "west")
}

func held(state v1alpha1.ClusterState) error {
	if state.Reason != v1alpha1.StateHeld {
		return fmt.Errorf("west says %q: %s", state.Reason, state.Message)
	}
	if !strings.Contains(state.Message, "default/theirs") || !strings.Contains(state.Message, "delete them there") {
		return errors.New(state.Message)
	}
	return nil
}

func faultResource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "faults.example.com", Version: "v1", Resource: plural}
}
