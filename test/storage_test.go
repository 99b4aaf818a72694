package test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	sharedClass  = "shared-disks"
	sharedDriver = "disks.example.com"
)

// withSharedDisks gives east and west a StorageClass whose volumes both reach, and returns the clients of all members. The
// namespace is removed at the end, with all volumes.
func (f *fixture) withSharedDisks(t *testing.T, namespace string) map[string]*kubernetes.Clientset {
	t.Helper()
	members := clientsOf(t, f.members)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "namespace/"+namespace, "volumepolicy/shared-disks", "--ignore-not-found", "--timeout=60s")
		for name, m := range members {
			_, _ = f.tryKubectl(context.Background(), name, "", "delete", "namespace/"+namespace, "--ignore-not-found", "--timeout=60s")
			_ = m.CoreV1().PersistentVolumes().DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
			_ = m.StorageV1().StorageClasses().Delete(context.Background(), sharedClass, metav1.DeleteOptions{})
		}
	})
	for _, name := range []string{"east", "west"} {
		policy := corev1.PersistentVolumeReclaimDelete
		_, err := members[name].StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: sharedClass},
			Provisioner: sharedDriver, ReclaimPolicy: &policy}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		runDriver(t, members[name], name)
	}
	return members
}

// volumeHandles returns the handles of the volumes of the claims in a namespace of a member, by claim. Each is bound on both sides.
func volumeHandles(t *testing.T, m *kubernetes.Clientset, namespace string) map[string]string {
	t.Helper()
	claims, err := m.CoreV1().PersistentVolumeClaims(namespace).List(t.Context(), metav1.ListOptions{})
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
	claims, err := m.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, c := range claims.Items {
		if c.Spec.VolumeName != "" || c.Status.Phase != corev1.ClaimPending || c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != sharedClass {
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
	pods, err := m.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
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
				return v.PersistentVolumeClaim != nil && c.Namespace == pod.Namespace && c.Name == v.PersistentVolumeClaim.ClaimName
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
