package interpret

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// boundAnnotation marks a claim that was bound in the cluster where it was read: the volume that it
// names belongs to that cluster.
const boundAnnotation = "pv.kubernetes.io/bind-completed"

// storageClassOf returns the class of a claim, of a template of claims, or of a volume. The annotation is
// older than the field; Kubernetes still prefers it.
func storageClassOf(obj map[string]any) string {
	if class := text(obj, "metadata", "annotations", corev1.BetaStorageClassAnnotation); class != "" {
		return class
	}
	return text(obj, "spec", "storageClassName")
}

func claimNeeds(obj *unstructured.Unstructured, out *refs) error {
	out.global(storageGroup, "StorageClass", storageClassOf(obj.Object))
	if obj.GetAnnotations()[boundAnnotation] == "" {
		out.global("", "PersistentVolume", text(obj.Object, "spec", "volumeName"))
	}
	return nil
}

// prepareClaim sends the name of a volume only if a user chose it for this claim.
func prepareClaim(obj map[string]any) {
	annotations := object(obj, "metadata", "annotations")
	if spec := object(obj, "spec"); spec != nil && annotations[boundAnnotation] != nil {
		delete(spec, "volumeName")
	}
}

// storageClassNeeds: parameters name the Secrets of a driver.
func storageClassNeeds(obj *unstructured.Unstructured, out *refs) error {
	parameters, _, err := unstructured.NestedStringMap(obj.Object, "parameters")
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		prefix, isName := strings.CutSuffix(key, "-secret-name")
		name, namespace := parameters[key], parameters[prefix+"-secret-namespace"]
		// The name may be a template that the driver expands for each claim.
		if isName && namespace != "" && !strings.Contains(name+namespace, "$") {
			out.add(refer("", "Secret", namespace, name))
		}
	}
	return err
}

func volumeObjectNeeds(obj *unstructured.Unstructured, out *refs) error {
	out.global(storageGroup, "StorageClass", storageClassOf(obj.Object))
	for _, field := range []string{"controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef", "controllerExpandSecretRef", "nodeExpandSecretRef"} {
		secret := object(obj.Object, "spec", "csi", field)
		out.add(refer("", "Secret", text(secret, "namespace"), text(secret, "name")))
	}
	return nil
}

// volumeFollows: a volume follows the claim that it is reserved for. A volume for any claim of a
// class follows the class.
func volumeFollows(obj *unstructured.Unstructured, out *attachments) error {
	claim := object(obj.Object, "spec", "claimRef")
	if name := text(claim, "name"); name != "" {
		out.add(refer("", "PersistentVolumeClaim", text(claim, "namespace"), name))
		return nil
	}
	out.global(storageGroup, "StorageClass", storageClassOf(obj.Object))
	return nil
}

// shareVolume: a volume is reserved for a claim by name. The claim has another identity in each
// member, and the volume controller there sets it.
func shareVolume(obj map[string]any, _ Share) {
	if claim := object(obj, "spec", "claimRef"); claim != nil {
		delete(claim, "uid")
		delete(claim, "resourceVersion")
	}
}

func volumeHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	switch phase := corev1.PersistentVolumePhase(text(obj.Object, "status", "phase")); phase {
	case corev1.VolumeBound, corev1.VolumeAvailable:
		return v1alpha1.Healthy, ""
	case corev1.VolumeFailed:
		return v1alpha1.Degraded, "the volume failed: " + text(obj.Object, "status", "message")
	case corev1.VolumeReleased:
		return v1alpha1.Degraded, "the claim of the volume was deleted, and no other claim can use it"
	}
	return v1alpha1.Progressing, "not available yet"
}

func aggregateVolume(_ KindInfo, _ *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[corev1.PersistentVolumeStatus](members)
	if err != nil {
		return nil, err
	}
	// From good to bad.
	order := []corev1.PersistentVolumePhase{corev1.VolumeBound, corev1.VolumeAvailable, "", corev1.VolumePending, corev1.VolumeReleased, corev1.VolumeFailed}
	worst := worstOf(reports, order, func(r corev1.PersistentVolumeStatus) corev1.PersistentVolumePhase { return r.Phase })
	out := corev1.PersistentVolumeStatus{Phase: reports[worst].Phase, Reason: reports[worst].Reason}
	if out.Phase == "" {
		out.Phase = corev1.VolumePending
	}
	if reports[worst].Message != "" {
		out.Message = members[worst].Cluster + ": " + reports[worst].Message
	}
	return encode(&out)
}

func claimHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	switch corev1.PersistentVolumeClaimPhase(text(obj.Object, "status", "phase")) {
	case corev1.ClaimBound:
		return v1alpha1.Healthy, ""
	case corev1.ClaimLost:
		return v1alpha1.Degraded, "the volume behind the claim is lost"
	}
	// The storage class may wait for the first pod.
	return v1alpha1.Progressing, "not bound to a volume yet"
}

// SharedClaim reports whether the access modes of a claim let pods of several clusters use its volume, if
// the storage does.
func SharedClaim(claim *unstructured.Unstructured) bool {
	modes, _, _ := unstructured.NestedStringSlice(claim.Object, "spec", "accessModes")
	return !slices.ContainsFunc(modes, func(m string) bool { return strings.HasPrefix(m, "ReadWriteOnce") })
}

// claimInSeveralClusters is the condition of a claim of one volume that several clusters have.
const claimInSeveralClusters = "InSeveralClusters"

func aggregateClaim(_ KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[corev1.PersistentVolumeClaimStatus](members)
	if err != nil {
		return nil, err
	}
	order := []corev1.PersistentVolumeClaimPhase{corev1.ClaimBound, corev1.ClaimPending, "", corev1.ClaimLost}
	worst := worstOf(reports, order, func(r corev1.PersistentVolumeClaimStatus) corev1.PersistentVolumeClaimPhase { return r.Phase })
	out := corev1.PersistentVolumeClaimStatus{Phase: reports[worst].Phase}
	if out.Phase == "" {
		out.Phase = corev1.ClaimPending
	}
	// The same class has the same values in every cluster.
	out.Capacity, out.AccessModes = reports[0].Capacity, reports[0].AccessModes
	if len(members) > 1 && !SharedClaim(obj) {
		severalVolumes(&out, members)
	}
	return encode(&out)
}

// severalVolumes reports in the status of a claim that it is several volumes. The claim is not Bound: which
// of the volumes a pod gets depends on the pod's cluster.
func severalVolumes(out *corev1.PersistentVolumeClaimStatus, members []MemberStatus) {
	clusters := make([]string, len(members))
	for i, m := range members {
		clusters[i] = m.Cluster
	}
	c := corev1.PersistentVolumeClaimCondition{Type: claimInSeveralClusters, Status: corev1.ConditionTrue, Reason: "SeveralVolumes",
		Message: fmt.Sprintf("%s each have a volume of this claim, although its access mode is for one: place what mounts it in one of them, and delete the claim in the others",
			strings.Join(clusters, ", "))}
	out.Phase, out.Conditions = corev1.ClaimPending, []corev1.PersistentVolumeClaimCondition{c}
}

// worstOf returns the index of the worst report, by an order from good to bad. A value that is not
// in the order is worst.
func worstOf[R any, W comparable](reports []R, order []W, word func(R) W) int {
	rank := func(r R) int {
		for i, w := range order {
			if w == word(r) {
				return i
			}
		}
		return len(order)
	}
	worst := 0
	for i := range reports {
		if rank(reports[i]) > rank(reports[worst]) {
			worst = i
		}
	}
	return worst
}
