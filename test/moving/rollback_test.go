package moving

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// A Deployment with a PodDisruptionBudget moves to a cluster in which no node takes Pods. It keeps all of its replicas,
// returns at the deadline, and says why.
func TestRollBack(t *testing.T) {
	s := whole(t)
	s.namespace(t, "rollback")
	d := deployment("rollback", "web", 10, nil)
	d.Labels[v1alpha1.ClusterLabel] = east
	d.Annotations[v1alpha1.TransitionAnnotation] = `{"deadline": "5s"}`
	a := s.create(t, d)
	s.budget(t, a, 8)
	s.cordonNodes(t, north)
	g := s.witness.guard(a, 10)
	s.label(t, a, north)
	eventually(t, "the Deployment returned", func(ctx context.Context) error {
		messages, err := s.events(ctx, t, a, "TransitionRolledBack")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(messages, func(m string) bool { return strings.Contains(m, "returns to east 10") && strings.Contains(m, north) }) {
			return fmt.Errorf("events say %q", messages)
		}
		b, err := s.binding(ctx, t, deploymentKind, a)
		if err != nil {
			return err
		}
		if err := restsIn(b, east); err != nil {
			return err
		}
		if len(b.Spec.Avoided) != 1 || b.Spec.Avoided[0].Name != north || b.Spec.Avoided[0].Reason != v1alpha1.AvoidedDeadline || b.Spec.Avoided[0].Message == "" {
			return fmt.Errorf("it avoids %+v", b.Spec.Avoided)
		}
		t.Logf("it avoids %s: %s (%s)", north, b.Spec.Avoided[0].Message, b.Spec.Avoided[0].Reason)
		return nil
	})
	eventually(t, "no Pods are left where none became ready", func(context.Context) error {
		if by := s.witness.existing(a); by[north] != 0 || by[east] != 10 {
			return fmt.Errorf("Pods exist:%s", textOf(by))
		}
		return nil
	})
	least, most := g.end(t)
	t.Logf("between %d and %d ready Pods", least, most)
}

// cordonNodes makes all nodes of a member unschedulable for the time of the test.
func (s *stage) cordonNodes(t *testing.T, member string) {
	t.Helper()
	nodes := s.members[member].CoreV1().Nodes()
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, unschedulable bool) error {
		var errs []error
		for _, n := range list.Items {
			_, err := nodes.Patch(ctx, n.Name, types.MergePatchType, patchOf(t, map[string]any{"spec": map[string]any{"unschedulable": unschedulable}}), metav1.PatchOptions{})
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	t.Cleanup(func() {
		if err := set(context.Background(), false); err != nil {
			t.Error(err)
		}
	})
	if err := set(t.Context(), true); err != nil {
		t.Fatal(err)
	}
}

// A StatefulSet with volumes does not leave them, and says what would let it.
func TestVolumesStay(t *testing.T) {
	s := whole(t)
	t.Parallel()
	s.namespace(t, "volumes")
	s.apply(t, volumesManifest)
	a := app{"volumes", "db"}
	kind := statefulSetKind
	s.awaitIn(t, kind, a, east)
	eventually(t, "the volumes exist", func(ctx context.Context) error {
		claims, err := s.members[east].CoreV1().PersistentVolumeClaims(a.namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(claims.Items) != 1 {
			err = fmt.Errorf("%d claims", len(claims.Items))
		}
		return err
	})
	uid := types.UID("")
	if claims, err := s.members[east].CoreV1().PersistentVolumeClaims(a.namespace).List(t.Context(), metav1.ListOptions{}); err == nil {
		uid = claims.Items[0].UID
	}
	s.apply(t, strings.Replace(volumesManifest, v1alpha1.ClusterLabel+": "+east, v1alpha1.ClusterLabel+": "+west, 1))
	eventually(t, "the StatefulSet says why it stays", func(ctx context.Context) error {
		b, err := s.binding(ctx, t, kind, a)
		if err != nil {
			return err
		}
		if err := restsIn(b, east); err != nil {
			return err
		}
		is := meta.FindStatusCondition(b.Status.Conditions, "Scheduled")
		if is == nil || is.Status != metav1.ConditionFalse || is.Reason != "VolumesStay" || !strings.Contains(is.Message, "create a VolumePolicy for local with mode Shared") {
			return fmt.Errorf("condition Scheduled is %+v", is)
		}
		t.Log(is.Message)
		return nil
	})
	claims, err := s.members[east].CoreV1().PersistentVolumeClaims(a.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) != 1 || claims.Items[0].UID != uid || claims.Items[0].DeletionTimestamp != nil {
		t.Errorf("claims in east are %+v, error %v", claims.Items, err)
	}
	if sets, err := s.members[west].AppsV1().StatefulSets(a.namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(sets.Items) > 0 {
		t.Errorf("west has %d StatefulSets, error %v", len(sets.Items), err)
	}
	var pods *corev1.PodList
	if pods, err = s.members[west].CoreV1().Pods(a.namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(pods.Items) > 0 {
		t.Errorf("west has Pods: %v, error %v", pods, err)
	}
}

const volumesManifest = `
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: db
  namespace: volumes
  labels: {fleet.atoll.dev/cluster: east}
spec:
  replicas: 1
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: main, image: postgres, volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: local
      resources: {requests: {storage: 1Gi}}
`
