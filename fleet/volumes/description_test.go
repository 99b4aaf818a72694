package volumes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const disk = `
metadata: {name: pvc-1}
spec:
  capacity: {storage: 2Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: fast
  persistentVolumeReclaimPolicy: Delete
  mountOptions: [noatime]
  claimRef: {namespace: shop, name: data-db-0, uid: u1}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}
  csi: {driver: disks.example.com, volumeHandle: disk-1, fsType: ext4, volumeAttributes: {pool: a}, nodeStageSecretRef: {namespace: storage, name: key}}
`

const claimOfDisk = `
metadata: {namespace: shop, name: data-db-0, labels: {app: db}}
spec: {accessModes: [ReadWriteOnce], storageClassName: fast, volumeName: pvc-1, resources: {requests: {storage: 1Gi}}}
`

func diskAndClaim(t *testing.T) (pv corev1.PersistentVolume, claim corev1.PersistentVolumeClaim) {
	t.Helper()
	parseInto(t, disk, &pv)
	parseInto(t, claimOfDisk, &claim)
	return pv, claim
}

// TestDescriptionsLeadToTheSameVolume: what another cluster makes of a description is the same volume for the same claim,
// and is kept.
func TestDescriptionsLeadToTheSameVolume(t *testing.T) {
	pv, claim := diskAndClaim(t)
	v, problem := Describe(&pv, &claim, pv.Spec.PersistentVolumeReclaimPolicy)
	if problem != "" {
		t.Fatal(problem)
	}
	got, gotClaim := Objects(v, "shop", "data-db-0")
	if !SameVolume(got, v) || got.Name != "pvc-1" || got.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("%+v", got)
	}
	want := pv.DeepCopy()
	want.Spec.PersistentVolumeReclaimPolicy, want.Spec.ClaimRef = corev1.PersistentVolumeReclaimRetain, got.Spec.ClaimRef
	if !equality.Semantic.DeepEqual(got.Spec, want.Spec) {
		t.Errorf("got %+v, want %+v", got.Spec, want.Spec)
	}
	if ref := got.Spec.ClaimRef; ref.Namespace != "shop" || ref.Name != "data-db-0" || ref.UID != "" {
		t.Errorf("claimRef: %+v", ref)
	}
	if gotClaim.Labels["app"] != "db" || gotClaim.Spec.VolumeName != "pvc-1" || !equality.Semantic.DeepEqual(gotClaim.Spec.Resources, claim.Spec.Resources) {
		t.Errorf("%+v", gotClaim)
	}
}

// TestProblem: a cluster cannot describe anything but a volume of a CSI driver, nor more than is sensible.
func TestProblem(t *testing.T) {
	for want, change := range map[string]func(*corev1.PersistentVolume){
		"is not one of a CSI driver": func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		},
		"no name, no CSI driver or no handle": func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "" },
		"more than 64 entries": func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.VolumeAttributes = map[string]string{"a": strings.Repeat("x", 9000)}
		},
		"it has no capacity":  func(pv *corev1.PersistentVolume) { pv.Spec.Capacity = nil },
		`policy is "Recycle"`: func(pv *corev1.PersistentVolume) { pv.Spec.PersistentVolumeReclaimPolicy = "Recycle" },
		"terms or values":     func(pv *corev1.PersistentVolume) { manyTerms(pv) },
	} {
		pv, claim := diskAndClaim(t)
		change(&pv)
		if _, problem := Describe(&pv, &claim, pv.Spec.PersistentVolumeReclaimPolicy); !strings.Contains(problem, want) {
			t.Errorf("%q, want %q", problem, want)
		}
	}
	v := &v1alpha1.VolumeDescription{Name: "a", Driver: "b", Handle: "c", Capacity: resource.MustParse("1"), Request: resource.MustParse("1"), ReclaimPolicy: "Retain",
		Secrets: map[string]corev1.SecretReference{"somethingElse": {}}}
	if got := Problem(v); !strings.Contains(got, `no secret "somethingElse"`) {
		t.Error(got)
	}
}

func manyTerms(pv *corev1.PersistentVolume) {
	terms := &pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	for range 64 {
		*terms = append(*terms, (*terms)[0])
	}
}

// TestUnsuitable: a cluster uses a volume of another one only with what its own StorageClass says, and only if the volume
// has no other claim there.
func TestUnsuitable(t *testing.T) {
	pv, claim := diskAndClaim(t)
	v, problem := Describe(&pv, &claim, pv.Spec.PersistentVolumeReclaimPolicy)
	if problem != "" {
		t.Fatal(problem)
	}
	other := *pv.DeepCopy()
	other.Name, other.Spec.ClaimRef.Name = "static", "theirs"
	names := map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "key", "csi.storage.k8s.io/node-stage-secret-namespace": "storage"}
	for _, tt := range []struct {
		provisioner string
		parameters  map[string]string
		found       bool
		others      []corev1.PersistentVolume
		want        string
	}{
		{"disks.example.com", names, true, nil, ""},
		{"disks.example.com", names, true, []corev1.PersistentVolume{pv}, ""}, // it returns
		{"", nil, false, nil, "no StorageClass fast: create one there with provisioner disks.example.com"},
		{"other.example.com", names, true, nil, "StorageClass fast has provisioner other.example.com"},
		{"disks.example.com", nil, true, nil, "the volume needs the Secret storage/key"},
		{"disks.example.com", names, true, []corev1.PersistentVolume{other}, "PersistentVolume static of the cluster"},
	} {
		if got := Unsuitable(v, tt.provisioner, tt.parameters, tt.found, tt.others, "shop", "data-db-0"); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
