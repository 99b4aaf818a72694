package syncer

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// storage is a member with claims and volumes.
type storage struct {
	*testing.T
	claimTransfer
}

func newStorage(t *testing.T, cluster string, transfer *v1alpha1.VolumeTransfer, objects ...runtime.Object) *storage {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	dyn := dynamicfake.NewSimpleDynamicClient(scheme, objects...)
	return &storage{t, claimTransfer{volumeClient: volumeClient{cluster: cluster, dyn: dyn}, transfer: transfer, namespace: "shop"}}
}

// wants does the member's part of a phase, and compares the result.
func (s *storage) wants(phase v1alpha1.VolumePhase, state v1alpha1.VolumeState, message string) {
	s.Helper()
	s.transfer.Phase = phase
	got, said, err := s.advance(s.Context())
	if err != nil || got != state || !strings.Contains(said, message) || (said == "") != (message == "") {
		s.Fatalf("%s: %s %q (%v), want %s %q", phase, got, said, err, state, message)
	}
}

func (s *storage) has(of schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	s.Helper()
	u, err := s.dyn.Resource(of).Namespace(namespace).Get(s.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		s.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return u
}

func (s *storage) reclaims(want string) {
	s.Helper()
	pv := s.has(volumesResource, "", "pvc-1")
	if got, _, _ := unstructured.NestedString(pv.Object, "spec", "persistentVolumeReclaimPolicy"); got != want {
		s.Fatalf("the reclaim policy is %s, want %s", got, want)
	}
}

func boundClaim() (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: corev1.PersistentVolumeSpec{Capacity: size, StorageClassName: "fast",
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		ClaimRef:                      &corev1.ObjectReference{Namespace: "shop", Name: "data-db-0", UID: "u1"},
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disks.example.com", VolumeHandle: "disk-1"}}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data-db-0", UID: "u1"},
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-1", Resources: corev1.VolumeResourceRequirements{Requests: size}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	return pv, claim
}

func transferToWest() *v1alpha1.VolumeTransfer {
	return &v1alpha1.VolumeTransfer{Claim: "data-db-0", From: "east", To: "west"}
}

// TestVolumeLeaves: the cluster that has a volume keeps it from the first phase on, says what uses it, and removes its own
// objects only.
func TestVolumeLeaves(t *testing.T) {
	pv, claim := boundClaim()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}}}}}
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}}}
	s := newStorage(t, "east", transferToWest(), pv, claim, pod, attachment)
	s.wants(v1alpha1.VolumePreparing, v1alpha1.VolumeInUse, "")
	s.reclaims("Retain")
	if s.description == nil || s.description.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete || s.description.Handle != "disk-1" {
		t.Fatalf("%+v", s.description)
	}
	s.transfer.Volume = s.description
	s.wants(v1alpha1.VolumeDetaching, v1alpha1.VolumeInUse, "Pod db-0 uses it")
	if err := s.delete(t.Context(), podsResource, "shop", "db-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.wants(v1alpha1.VolumeDetaching, v1alpha1.VolumeInUse, "it is attached to node n1")
	if err := s.delete(t.Context(), attachmentsResource, "", "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.wants(v1alpha1.VolumeDetaching, v1alpha1.VolumeDetached, "")
	s.wants(v1alpha1.VolumeAttaching, v1alpha1.VolumePending, "")
	if s.has(claimsResource, "shop", "data-db-0") == nil {
		t.Fatal("the claim is gone before the replica runs in the other cluster")
	}
	s.wants(v1alpha1.VolumeRemoving, v1alpha1.VolumePending, "")
	s.wants(v1alpha1.VolumeRemoving, v1alpha1.VolumePending, "")
	s.wants(v1alpha1.VolumeRemoving, v1alpha1.VolumeAbsent, "")
	if s.has(volumesResource, "", "pvc-1") != nil {
		t.Error("the PersistentVolume is there")
	}
}

// TestVolumeReturns: a cluster that gets its replica back has everything as before.
func TestVolumeReturns(t *testing.T) {
	pv, claim := boundClaim()
	s := newStorage(t, "east", transferToWest(), pv, claim)
	s.wants(v1alpha1.VolumePreparing, v1alpha1.VolumeDetached, "")
	s.transfer.Volume = s.description
	s.wants(v1alpha1.VolumeReturning, v1alpha1.VolumeSettled, "")
	s.reclaims("Delete")
	if annotations := s.has(volumesResource, "", "pvc-1").GetAnnotations(); annotations[v1alpha1.ReclaimPolicyAnnotation] != "" {
		t.Error(annotations)
	}
}

// TestVolumeArrives: the other cluster makes a volume and a claim that name each other, and settles or removes them.
func TestVolumeArrives(t *testing.T) {
	pv, claim := boundClaim()
	from := newStorage(t, "east", transferToWest(), pv, claim)
	from.wants(v1alpha1.VolumePreparing, v1alpha1.VolumeDetached, "")
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "disks.example.com"}
	s := newStorage(t, "west", transferToWest(), class)
	s.wants(v1alpha1.VolumePreparing, v1alpha1.VolumePending, "")
	s.transfer.Volume = from.description
	s.wants(v1alpha1.VolumePreparing, v1alpha1.VolumeReady, "")
	s.wants(v1alpha1.VolumeAttaching, v1alpha1.VolumePending, "PersistentVolume pvc-1 is not bound to its claim yet")
	s.reclaims("Retain")
	// The cluster's controller binds them.
	made := s.has(claimsResource, "shop", "data-db-0")
	if err := unstructured.SetNestedField(made.Object, "Bound", "status", "phase"); err != nil {
		t.Fatal(err)
	}
	made.SetUID("u2")
	volume := s.has(volumesResource, "", "pvc-1")
	if err := unstructured.SetNestedField(volume.Object, "u2", "spec", "claimRef", "uid"); err != nil {
		t.Fatal(err)
	}
	for of, u := range map[schema.GroupVersionResource]*unstructured.Unstructured{claimsResource: made, volumesResource: volume} {
		if _, err := s.dyn.Resource(of).Namespace(u.GetNamespace()).Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.wants(v1alpha1.VolumeAttached, v1alpha1.VolumeBound, "")
	s.wants(v1alpha1.VolumeSettling, v1alpha1.VolumeSettled, "")
	s.reclaims("Delete")
	// Nothing is removed before the volume is kept.
	s.wants(v1alpha1.VolumeCleaning, v1alpha1.VolumePending, "")
	s.reclaims("Retain")
	s.wants(v1alpha1.VolumeCleaning, v1alpha1.VolumePending, "")
	s.wants(v1alpha1.VolumeCleaning, v1alpha1.VolumePending, "")
	s.wants(v1alpha1.VolumeCleaning, v1alpha1.VolumeAbsent, "")
}

// TestMountedClaimArrives: the claim that pods mount by its name has the marks by which the syncer applies it from then on.
// It is removed nowhere before the control plane has taken it away from there.
func TestMountedClaimArrives(t *testing.T) {
	pv, claim := boundClaim()
	transfer := transferToWest()
	transfer.ClaimUID = "in-the-control-plane"
	from := newStorage(t, "east", transfer, pv, claim)
	from.wants(v1alpha1.VolumePreparing, v1alpha1.VolumeDetached, "")
	transfer.Volume = from.description
	s := newStorage(t, "west", transfer)
	s.wants(v1alpha1.VolumeAttaching, v1alpha1.VolumePending, "is not bound to its claim yet")
	made := s.has(claimsResource, "shop", "data-db-0")
	if a := made.GetAnnotations(); made.GetLabels()[v1alpha1.ManagedLabel] != "true" || a[v1alpha1.ClusterAnnotation] != "west" || a[v1alpha1.SourceUIDAnnotation] != "in-the-control-plane" {
		t.Errorf("%v %v", made.GetLabels(), a)
	}
	for _, s := range []*storage{from, s} {
		phase := v1alpha1.VolumeRemoving
		if s.cluster == "west" {
			phase = v1alpha1.VolumeCleaning
		}
		s.decided = true
		s.wants(phase, v1alpha1.VolumePending, "the control plane still wants the claim here")
		if s.has(claimsResource, "shop", "data-db-0").GetDeletionTimestamp() != nil {
			t.Errorf("the claim in %s is removed", s.cluster)
		}
		s.decided = false
		s.wants(phase, v1alpha1.VolumePending, "")
		if s.has(claimsResource, "shop", "data-db-0") != nil {
			t.Errorf("the claim in %s is there", s.cluster)
		}
	}
}

// TestReplicationChangesDirection: each cluster asks the replication system by annotations, once nothing uses the volume, and
// believes no condition from before. Both keep their claims.
func TestReplicationChangesDirection(t *testing.T) {
	transfer := transferToWest()
	transfer.Replication = &v1alpha1.VolumeReplication{Release: v1alpha1.VolumeHook{Annotations: map[string]string{"role": "secondary"}, Condition: "Secondary"},
		Acquire: v1alpha1.VolumeHook{Annotations: map[string]string{"role": "primary"}, Condition: "Primary"}}
	for _, tt := range []struct {
		cluster, role, condition string
		before, ask, after       v1alpha1.VolumePhase
		ready, done, kept        v1alpha1.VolumeState
	}{
		{"east", "secondary", "Secondary", v1alpha1.VolumePreparing, v1alpha1.VolumeDetaching, v1alpha1.VolumeRemoving, v1alpha1.VolumeInUse, v1alpha1.VolumeDetached, v1alpha1.VolumeAbsent},
		{"west", "primary", "Primary", v1alpha1.VolumePreparing, v1alpha1.VolumeAttaching, v1alpha1.VolumeSettling, v1alpha1.VolumeReady, v1alpha1.VolumeBound, v1alpha1.VolumeSettled},
		{"east", "primary", "Primary", v1alpha1.VolumePreparing, v1alpha1.VolumeReturning, v1alpha1.VolumePreparing, v1alpha1.VolumeInUse, v1alpha1.VolumeSettled, v1alpha1.VolumeInUse},
		{"west", "secondary", "Secondary", v1alpha1.VolumePreparing, v1alpha1.VolumeCleaning, v1alpha1.VolumePreparing, v1alpha1.VolumeReady, v1alpha1.VolumeAbsent, v1alpha1.VolumeReady},
	} {
		pv, claim := boundClaim()
		claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimConditionType(tt.condition), Status: corev1.ConditionTrue}}
		s := newStorage(t, tt.cluster, transfer, pv, claim)
		s.wants(tt.before, tt.ready, "")
		s.wants(tt.ask, v1alpha1.VolumePending, "") // the condition is from before
		if got := s.has(claimsResource, "shop", "data-db-0").GetAnnotations()["role"]; got != tt.role {
			t.Fatalf("the claim in %s has the role %q", tt.cluster, got)
		}
		s.wants(tt.ask, tt.done, "")
		s.wants(tt.after, tt.kept, "")
		s.reclaims("Delete") // it is as it was
		if s.has(claimsResource, "shop", "data-db-0") == nil {
			t.Errorf("the claim in %s is gone", tt.cluster)
		}
	}
	s := newStorage(t, "west", transfer)
	s.wants(v1alpha1.VolumePreparing, v1alpha1.VolumePending, "the cluster has no such claim")
}

// TestVolumeIsRefused: the other cluster says why it cannot use a volume, before anything stops.
func TestVolumeIsRefused(t *testing.T) {
	pv, claim := boundClaim()
	from := newStorage(t, "east", transferToWest(), pv, claim)
	from.wants(v1alpha1.VolumePreparing, v1alpha1.VolumeDetached, "")
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "disks.example.com"}
	theirs := claim.DeepCopy()
	theirs.Spec.VolumeName = "another"
	stolen := pv.DeepCopy()
	stolen.Name, stolen.Spec.ClaimRef.Name = "victim", "theirs"
	for want, objects := range map[string][]runtime.Object{
		"no StorageClass fast":                           nil,
		"a claim of this name with another volume":       {class, theirs},
		"PersistentVolume victim of the cluster has the": {class, stolen},
	} {
		transfer := transferToWest()
		transfer.Volume = from.description
		newStorage(t, "west", transfer, objects...).wants(v1alpha1.VolumePreparing, v1alpha1.VolumePending, want)
	}
}
