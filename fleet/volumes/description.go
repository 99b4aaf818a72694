package volumes

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// The bounds of a description, which comes from a cluster.
const (
	mostEntries = 64
	mostBytes   = 8 << 10
)

// Problem says why a volume cannot go to another cluster as its cluster describes it; "" if nothing speaks against it.
func Problem(v *v1alpha1.VolumeDescription) string {
	size := len(v.Name) + len(v.Handle) + len(v.Driver) + len(v.FSType) + len(v.StorageClass)
	for _, entries := range []map[string]string{v.Attributes, v.ClaimLabels} {
		for key, value := range entries {
			size += len(key) + len(value)
		}
	}
	for _, option := range v.MountOptions {
		size += len(option)
	}
	switch {
	case v.Name == "" || v.Driver == "" || v.Handle == "":
		return "it has no name, no CSI driver or no handle"
	case len(v.Attributes) > mostEntries || len(v.ClaimLabels) > mostEntries || len(v.MountOptions) > mostEntries || len(v.Secrets) > len(secretFields) || len(v.AccessModes) > 4 || size > mostBytes:
		return fmt.Sprintf("its description has more than %d entries of one kind, or more than %d bytes", mostEntries, mostBytes)
	case v.Capacity.Sign() <= 0 || v.Request.Sign() <= 0:
		return "it has no capacity, or its claim requests none"
	case v.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete && v.ReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		return fmt.Sprintf("its reclaim policy is %q: only %s and %s are supported", v.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)
	case !acceptableTerms(v.NodeAffinity):
		return fmt.Sprintf("its node affinity has more than %d terms or values", mostEntries)
	}
	for field := range v.Secrets {
		if !slices.Contains(secretFields, field) {
			return fmt.Sprintf("spec.csi has no secret %q", field)
		}
	}
	return ""
}

func acceptableTerms(s *corev1.NodeSelector) bool {
	if s == nil {
		return true
	}
	n := len(s.NodeSelectorTerms)
	for _, term := range s.NodeSelectorTerms {
		for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			n += 1 + len(r.Values)
		}
	}
	return n <= mostEntries
}

// secretFields are the secrets of a PersistentVolume's spec.csi.
var secretFields = []string{"controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef", "controllerExpandSecretRef", "nodeExpandSecretRef"}

// secretsOf returns the fields of a volume's secrets, by name.
func secretsOf(csi *corev1.CSIPersistentVolumeSource) map[string]**corev1.SecretReference {
	return map[string]**corev1.SecretReference{
		"controllerPublishSecretRef": &csi.ControllerPublishSecretRef, "nodeStageSecretRef": &csi.NodeStageSecretRef,
		"nodePublishSecretRef": &csi.NodePublishSecretRef, "controllerExpandSecretRef": &csi.ControllerExpandSecretRef,
		"nodeExpandSecretRef": &csi.NodeExpandSecretRef,
	}
}

// Describe describes a volume and its claim for another cluster. reclaim is the policy that the volume has without a
// transfer. problem says why it cannot go there.
func Describe(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, reclaim corev1.PersistentVolumeReclaimPolicy) (v *v1alpha1.VolumeDescription, problem string) {
	csi := pv.Spec.CSI
	if csi == nil {
		return nil, fmt.Sprintf("its PersistentVolume %s is not one of a CSI driver", pv.Name)
	}
	v = &v1alpha1.VolumeDescription{Name: pv.Name, Driver: csi.Driver, Handle: csi.VolumeHandle, FSType: csi.FSType, ReadOnly: csi.ReadOnly, Attributes: csi.VolumeAttributes,
		Capacity: pv.Spec.Capacity[corev1.ResourceStorage], Request: claim.Spec.Resources.Requests[corev1.ResourceStorage], AccessModes: pv.Spec.AccessModes,
		VolumeMode: pv.Spec.VolumeMode, MountOptions: pv.Spec.MountOptions, StorageClass: pv.Spec.StorageClassName, ReclaimPolicy: reclaim, ClaimLabels: claim.Labels}
	if pv.Spec.NodeAffinity != nil {
		v.NodeAffinity = pv.Spec.NodeAffinity.Required
	}
	for field, ref := range secretsOf(csi) {
		if *ref != nil {
			if v.Secrets == nil {
				v.Secrets = map[string]corev1.SecretReference{}
			}
			v.Secrets[field] = **ref
		}
	}
	if problem = Problem(v); problem != "" {
		return nil, fmt.Sprintf("its PersistentVolume %s: %s", pv.Name, problem)
	}
	return v, ""
}

// SameVolume reports whether a PersistentVolume leads to a described volume.
func SameVolume(pv *corev1.PersistentVolume, v *v1alpha1.VolumeDescription) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == v.Driver && pv.Spec.CSI.VolumeHandle == v.Handle
}

// Objects returns the PersistentVolume and the claim of a described volume for another cluster. They name each other, so
// that they are bound to nothing else. The volume is kept when they are deleted.
func Objects(v *v1alpha1.VolumeDescription, namespace, name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	pv := &corev1.PersistentVolume{}
	pv.Name = v.Name
	// With it, the driver's provisioner deletes the volume once its claim is deleted, if the reclaim policy is Delete.
	pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": v.Driver}
	csi := &corev1.CSIPersistentVolumeSource{Driver: v.Driver, VolumeHandle: v.Handle, FSType: v.FSType, ReadOnly: v.ReadOnly, VolumeAttributes: v.Attributes}
	for field, ref := range secretsOf(csi) {
		if secret, has := v.Secrets[field]; has {
			*ref = &secret
		}
	}
	pv.Spec = corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{corev1.ResourceStorage: v.Capacity}, AccessModes: v.AccessModes, VolumeMode: v.VolumeMode,
		MountOptions: v.MountOptions, StorageClassName: v.StorageClass, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: csi},
		ClaimRef:               &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name}}
	if v.NodeAffinity != nil {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: v.NodeAffinity}
	}
	claim := &corev1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name, claim.Labels = namespace, name, v.ClaimLabels
	class := v.StorageClass
	claim.Spec = corev1.PersistentVolumeClaimSpec{AccessModes: v.AccessModes, VolumeMode: v.VolumeMode, VolumeName: v.Name, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: v.Request}}}
	return pv, claim
}

// Unsuitable says why a cluster cannot use a described volume; "" if it can. class is the cluster's StorageClass of the
// same name, as its provisioner and parameters; found is false if the cluster has no such class. others are its PersistentVolumes
// that lead to the same volume, or have its name.
func Unsuitable(v *v1alpha1.VolumeDescription, provisioner string, parameters map[string]string, found bool, others []corev1.PersistentVolume, namespace, claim string) string {
	switch {
	case !found:
		return fmt.Sprintf("the cluster has no StorageClass %s: create one there with provisioner %s", v.StorageClass, v.Driver)
	case provisioner != v.Driver:
		return fmt.Sprintf("StorageClass %s has provisioner %s there, and the volume is of driver %s", v.StorageClass, provisioner, v.Driver)
	}
	named := map[string]bool{}
	for _, value := range parameters {
		named[value] = true
	}
	for _, secret := range v.Secrets {
		if !named[secret.Name] || !named[secret.Namespace] {
			return fmt.Sprintf("the volume needs the Secret %s/%s, which StorageClass %s does not name there", secret.Namespace, secret.Name, v.StorageClass)
		}
	}
	for i := range others {
		pv := &others[i]
		if ref := pv.Spec.ClaimRef; !SameVolume(pv, v) || pv.Name != v.Name || ref == nil || ref.Namespace != namespace || ref.Name != claim {
			return fmt.Sprintf("PersistentVolume %s of the cluster has the same name, or leads to the same volume, and belongs to another claim", pv.Name)
		}
	}
	return ""
}
