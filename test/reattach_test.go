package test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolswatch "k8s.io/client-go/tools/watch"
)

const (
	sharedClass  = "shared-disks"
	sharedDriver = "disks.example.com"
)

const database = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: VolumePolicy
metadata: {name: shared-disks}
spec: {storageClasses: [shared-disks], mode: Reattach}
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
	members := map[string]*kubernetes.Clientset{}
	for name, m := range f.members {
		config, err := m.REST()
		if err != nil {
			t.Fatal(err)
		}
		config.QPS = -1
		if members[name], err = kubernetes.NewForConfig(config); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"east", "west"} {
		keep := corev1.PersistentVolumeReclaimDelete
		_, err := members[name].StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: sharedClass},
			Provisioner: sharedDriver, ReclaimPolicy: &keep}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		runDriver(t, members[name], name)
	}
	f.apply(t, database)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "namespace/reattach", "volumepolicy/shared-disks", "--ignore-not-found", "--timeout=60s")
		for name, m := range members {
			_, _ = f.tryKubectl(context.Background(), name, "", "delete", "namespace/reattach", "--ignore-not-found", "--timeout=60s")
			_ = m.CoreV1().PersistentVolumes().DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
			_ = m.StorageV1().StorageClasses().Delete(context.Background(), sharedClass, metav1.DeleteOptions{})
		}
	})
	f.kubectl(t, "atoll", "wait", "-n", "reattach", "statefulset/db", "--for=jsonpath={.status.availableReplicas}=3", "--timeout=60s")
	handles := volumeHandles(t, members["east"])
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

	for _, move := range []struct{ to, from string }{{"west", "east"}, {"east", "west"}} {
		f.kubectl(t, "atoll", "annotate", "-n", "reattach", "statefulset/db", "fleet.atoll.dev/transition-")
		f.atoll(t, "move", "statefulset/db", "-n", "reattach", "--to", move.to, "--timeout=120s")
		if got := volumeHandles(t, members[move.to]); !maps.Equal(got, handles) {
			t.Errorf("in %s: %v, before: %v", move.to, got, handles)
		}
		if left := volumeHandles(t, members[move.from]); len(left) > 0 {
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
	if least := w.least(); least < 2 {
		t.Errorf("%d replicas were ready, although one stops at a time", least)
	}
	for _, fault := range w.twice() {
		t.Error(fault)
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

// volumeHandles returns the handles of the volumes of a member's claims, by claim. Each is bound on both sides.
func volumeHandles(t *testing.T, m *kubernetes.Clientset) map[string]string {
	t.Helper()
	claims, err := m.CoreV1().PersistentVolumeClaims("reattach").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := m.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, pv := range volumes.Items {
		ref := pv.Spec.ClaimRef
		at := slices.IndexFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return ref != nil && c.UID == ref.UID })
		if at < 0 || claims.Items[at].Status.Phase != corev1.ClaimBound || claims.Items[at].Spec.VolumeName != pv.Name {
			t.Errorf("PersistentVolume %s is not bound to its claim", pv.Name)
			continue
		}
		out[claims.Items[at].Name] = pv.Spec.CSI.VolumeHandle
	}
	if len(claims.Items) != len(out) {
		t.Errorf("%d claims, and %d of them are bound", len(claims.Items), len(out))
	}
	return out
}

// runDriver plays the CSI driver of a member: it makes volumes for claims of the class, attaches those of pods, and
// detaches them some time after the pods are gone.
func runDriver(t *testing.T, m *kubernetes.Clientset, cluster string) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	running.Go(func() {
		for ctx.Err() == nil {
			if err := drive(ctx, m, cluster); err != nil && ctx.Err() == nil {
				t.Errorf("driver in %s: %v", cluster, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
}

func drive(ctx context.Context, m *kubernetes.Clientset, cluster string) error {
	claims, err := m.CoreV1().PersistentVolumeClaims("reattach").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, c := range claims.Items {
		if c.Spec.VolumeName != "" || c.Status.Phase != corev1.ClaimPending {
			continue
		}
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(c.UID), Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": sharedDriver}},
			Spec: corev1.PersistentVolumeSpec{Capacity: c.Spec.Resources.Requests, AccessModes: c.Spec.AccessModes, StorageClassName: sharedClass,
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
				ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: sharedDriver,
					VolumeHandle: "disk-of-" + cluster + "-" + string(c.UID), FSType: "ext4", VolumeAttributes: map[string]string{"pool": "a"}}}}}
		if _, err := m.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	pods, err := m.CoreV1().Pods("reattach").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	attachments, err := m.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, pod := range pods.Items {
		for _, v := range pod.Spec.Volumes {
			at := slices.IndexFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool {
				return v.PersistentVolumeClaim != nil && c.Name == v.PersistentVolumeClaim.ClaimName
			})
			if at < 0 || claims.Items[at].Spec.VolumeName == "" || pod.Spec.NodeName == "" {
				continue
			}
			volume := claims.Items[at].Spec.VolumeName
			used[volume] = true
			a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: volume},
				Spec: storagev1.VolumeAttachmentSpec{Attacher: sharedDriver, NodeName: pod.Spec.NodeName, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}}}
			if _, err := m.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
		}
	}
	for _, a := range attachments.Items {
		if !used[*a.Spec.Source.PersistentVolumeName] {
			if err := m.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	return nil
}

// replicas are the pods of a namespace in all members, as their watches show them.
type replicas struct {
	mu     sync.Mutex
	ready  map[string]map[string]bool // by member and pod, of the existing pods
	lowest int
	faults []string
}

func watchReplicas(t *testing.T, members map[string]*kubernetes.Clientset, namespace string) *replicas {
	t.Helper()
	r := &replicas{ready: map[string]map[string]bool{}}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	for name, m := range members {
		r.ready[name] = map[string]bool{}
		list, err := m.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			r.ready[name][list.Items[i].Name] = isReady(&list.Items[i])
		}
		events, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion, podWatch{m, namespace})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			for event := range events.ResultChan() {
				if pod, ok := event.Object.(*corev1.Pod); ok {
					r.see(name, event.Type, pod)
				}
			}
		})
	}
	r.lowest = r.sum()
	return r
}

type podWatch struct {
	m         *kubernetes.Clientset
	namespace string
}

func (w podWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return w.m.CoreV1().Pods(w.namespace).Watch(ctx, o)
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (r *replicas) see(member string, event watch.EventType, pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if event == watch.Deleted {
		delete(r.ready[member], pod.Name)
	} else {
		r.ready[member][pod.Name] = isReady(pod)
	}
	r.lowest = min(r.lowest, r.sum())
	for other, pods := range r.ready {
		if _, runs := pods[pod.Name]; runs && other != member && event != watch.Deleted {
			r.faults = append(r.faults, fmt.Sprintf("%s is in %s and %s", pod.Name, member, other))
		}
	}
}

func (r *replicas) sum() (n int) {
	for _, pods := range r.ready {
		for _, ready := range pods {
			if ready {
				n++
			}
		}
	}
	return n
}

// least returns the lowest number of ready pods since the beginning.
func (r *replicas) least() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lowest
}

// twice returns the pods that were in two members.
func (r *replicas) twice() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.faults)
}
