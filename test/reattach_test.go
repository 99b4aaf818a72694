package test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const sharedDisks = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: VolumePolicy
metadata: {name: shared-disks}
spec: {storageClasses: [shared-disks], mode: Reattach}
`

const database = `
---
apiVersion: v1
kind: Namespace
metadata: {name: reattach}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: db
  namespace: reattach
  labels: {fleet.atoll.dev/cluster: east}
  annotations: {fleet.atoll.dev/transition: '{"deadline": "5s"}'}
spec:
  replicas: 3
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: db, image: postgres:17, volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: shared-disks, resources: {requests: {storage: 1Gi}}}
`

// TestVolumesGoAlong: the replicas of a StatefulSet take their volumes along, one after the other, in clusters with real
// controllers of volumes. No replica runs twice, none begins with another volume, and a cluster that cannot use the
// volumes stops nothing.
func TestVolumesGoAlong(t *testing.T) {
	f := whole(t)
	members := f.withSharedDisks(t, "reattach")
	f.apply(t, sharedDisks+database)
	f.kubectl(t, "atoll", "wait", "-n", "reattach", "statefulset/db", "--for=jsonpath={.status.availableReplicas}=3", "--timeout=60s")
	handles := volumeHandles(t, members["east"], "reattach")
	if len(handles) != 3 {
		t.Fatalf("handles: %v", handles)
	}
	w := watchReplicas(t, members, "reattach")

	// North has no such StorageClass: it reports that, and nothing stops.
	f.kubectl(t, "atoll", "label", "-n", "reattach", "statefulset/db", "fleet.atoll.dev/cluster=north", "--overwrite")
	eventually(t, settle, "it stays because north cannot use the volumes", func(ctx context.Context) error {
		out, err := f.tryKubectl(ctx, "atoll", "", "get", "events", "-n", "reattach", "--field-selector=reason=TransitionRolledBack", "-o", "jsonpath={.items[*].message}")
		if err != nil || !strings.Contains(out, "no StorageClass shared-disks") {
			return fmt.Errorf("%q (%v)", out, err)
		}
		return nil
	})
	eventually(t, settle, "the transition is over", f.settled("reattach", "statefulset.apps-db"))
	if least := w.least(); least < 3 {
		t.Errorf("%d replicas were ready while nothing was to stop", least)
	}

	f.kubectl(t, "atoll", "annotate", "-n", "reattach", "statefulset/db", "fleet.atoll.dev/transition-")
	f.movesWithVolumes(t, members, "reattach", "statefulset/db", handles)
	if least := w.least(); least < 2 {
		t.Errorf("%d replicas were ready, although one stops at a time", least)
	}
	for _, fault := range w.twice() {
		t.Error(fault)
	}
}

const files = `
---
apiVersion: v1
kind: Namespace
metadata: {name: mounted}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: files, namespace: mounted, labels: {team: web}}
spec: {accessModes: [ReadWriteOnce], storageClassName: shared-disks, resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: mounted, labels: {fleet.atoll.dev/cluster: east}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: nginx:1, volumeMounts: [{name: files, mountPath: /files}]}]
      volumes: [{name: files, persistentVolumeClaim: {claimName: files}}]
`

// TestMountedVolumesGoAlong: a Deployment takes the claim along that its pods mount by name. All pods are gone in one cluster
// before the first one runs in the other, and the claim there belongs to the fleet as before.
func TestMountedVolumesGoAlong(t *testing.T) {
	f := whole(t)
	members := f.withSharedDisks(t, "mounted")
	f.apply(t, sharedDisks+files)
	f.kubectl(t, "atoll", "wait", "-n", "mounted", "deployment/web", "--for=jsonpath={.status.availableReplicas}=2", "--timeout=60s")
	f.kubectl(t, "atoll", "wait", "-n", "mounted", "pvc/files", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s")
	handles := volumeHandles(t, members["east"], "mounted")
	if len(handles) != 1 {
		t.Fatalf("handles: %v", handles)
	}
	w := watchReplicas(t, members, "mounted")
	f.movesWithVolumes(t, members, "mounted", "deployment/web", handles)
	if w.wereTogether() {
		t.Error("two clusters had pods that mount the claim at the same time")
	}
	// Without replicas, only the volume goes.
	f.kubectl(t, "atoll", "scale", "-n", "mounted", "deployment/web", "--replicas=0")
	f.kubectl(t, "east", "wait", "-n", "mounted", "pods", "--all", "--for=delete", "--timeout=60s")
	f.movesWithVolumes(t, members, "mounted", "deployment/web", handles)
	f.kubectl(t, "atoll", "label", "-n", "mounted", "pvc/files", "team=files", "--overwrite")
	f.kubectl(t, "east", "wait", "-n", "mounted", "pvc/files", "--for=jsonpath={.metadata.labels.team}=files", "--timeout=60s")
	f.kubectl(t, "atoll", "delete", "-n", "mounted", "deployment/web", "pvc/files", "--timeout=60s")
	f.kubectl(t, "east", "wait", "-n", "mounted", "pvc/files", "--for=delete", "--timeout=60s")
}

// movesWithVolumes moves an object from east to west and back. Each time its volumes are there alone, as they were.
func (f *fixture) movesWithVolumes(t *testing.T, members map[string]*kubernetes.Clientset, namespace, object string, handles map[string]string) {
	t.Helper()
	for _, move := range []struct{ to, from string }{{"west", "east"}, {"east", "west"}} {
		f.atoll(t, "move", object, "-n", namespace, "--to", move.to, "--timeout=120s")
		if got := volumeHandles(t, members[move.to], namespace); !maps.Equal(got, handles) {
			t.Errorf("in %s: %v, before: %v", move.to, got, handles)
		}
		if left := volumeHandles(t, members[move.from], namespace); len(left) > 0 {
			t.Errorf("%s still has %v", move.from, left)
		}
		volumes, err := members[move.to].CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, pv := range volumes.Items {
			if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
				t.Errorf("the reclaim policy of %s in %s is %s", pv.Name, move.to, pv.Spec.PersistentVolumeReclaimPolicy)
			}
		}
	}
}

// settled reports when a binding has no transition.
func (f *fixture) settled(namespace, binding string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := f.tryKubectl(ctx, "atoll", "", "get", "resourcebinding", "-n", namespace, binding, "-o", "jsonpath={.spec.transition}{.spec.volumes}{.status.transition}")
		if err != nil || out != "" {
			return fmt.Errorf("%q (%v)", out, err)
		}
		return nil
	}
}
