package syncer

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// volumeCheck is the pause between two looks at the volumes of an object while they are transferred: pods and attachments are
// not watched.
const volumeCheck = time.Second

// transferVolumes does this cluster's part of the transfers of an object's volumes. The next report
// has the result.
func (s *Syncer) transferVolumes(ctx context.Context, b *v1alpha1.ResourceBinding, m *record) {
	m.volumes = nil
	if b.Spec.Suspend {
		return
	}
	for i := range b.Spec.Volumes {
		t := &b.Spec.Volumes[i]
		if t.From != s.cluster && t.To != s.cluster {
			continue
		}
		c := claimTransfer{volumeClient: s.member.volumes, transfer: t, namespace: b.Namespace, decided: t.ClaimUID != "" && s.hasClaim(b.Namespace, t.Claim)}
		r := v1alpha1.VolumeReport{Claim: t.Claim, Revision: t.Revision, State: v1alpha1.VolumePending}
		state, message, err := c.advance(ctx)
		if err != nil {
			message = explain(err)
		}
		if r.Message = bounded(message); state != "" && err == nil {
			r.State = state
		}
		if t.From == s.cluster && t.Phase == v1alpha1.VolumePreparing {
			r.Volume = c.description
		}
		m.volumes = append(m.volumes, r)
		s.queue.AddAfter(b.Key(), volumeCheck)
	}
}

// hasClaim reports whether a claim of the control plane is to be in this cluster.
func (s *Syncer) hasClaim(namespace, name string) bool {
	b, exists := s.Binding(types.NamespacedName{Namespace: namespace, Name: v1alpha1.BindingName(schema.GroupKind{Kind: "PersistentVolumeClaim"}, name)})
	if !exists {
		return false
	}
	_, has := b.Share(s.cluster)
	return has
}

// bounded returns a text without more than the bytes that a report may have.
func bounded(message string) string {
	const most = 1000
	if len(message) > most {
		return message[:most] + "…"
	}
	return message
}

// reportVolumes reports on volumes if nothing else was to be reported.
func (s *Syncer) reportVolumes(ctx context.Context, b *v1alpha1.ResourceBinding, m *record) error {
	if m.entry == nil || equality.Semantic.DeepEqual(m.entry.Volumes, m.volumes) {
		return nil
	}
	entry := *m.entry
	return s.report(ctx, b, m, &entry)
}

// claimTransfer does one cluster's part of one transfer.
type claimTransfer struct {
	volumeClient
	transfer  *v1alpha1.VolumeTransfer
	namespace string
	// decided: the control plane has the claim too, and it is to be in this cluster. If it were deleted, it would be made
	// again.
	decided bool
	// description of the volume, if it is here.
	description *v1alpha1.VolumeDescription
}

// advance does the work of the present phase. It returns the state of the claim, and the reason if it is not done.
func (c *claimTransfer) advance(ctx context.Context) (v1alpha1.VolumeState, string, error) {
	t := c.transfer
	if t.Replication != nil {
		return c.replicate(ctx)
	}
	if t.From == c.cluster {
		switch t.Phase {
		case v1alpha1.VolumeRemoving:
			return c.remove(ctx)
		case v1alpha1.VolumeReturning:
			return c.settle(ctx)
		case v1alpha1.VolumePreparing, v1alpha1.VolumeDetaching:
			return c.release(ctx)
		}
		return v1alpha1.VolumePending, "", nil
	}
	switch t.Phase {
	case v1alpha1.VolumePreparing:
		return c.check(ctx)
	case v1alpha1.VolumeAttaching, v1alpha1.VolumeAttached:
		return c.attach(ctx)
	case v1alpha1.VolumeSettling:
		return c.settle(ctx)
	case v1alpha1.VolumeCleaning:
		return c.remove(ctx)
	}
	return v1alpha1.VolumePending, "", nil
}

// release keeps the volume if its claim is deleted, describes it, and reports whether something still uses it.
func (c *claimTransfer) release(ctx context.Context) (v1alpha1.VolumeState, string, error) {
	claim, err := c.claim(ctx, c.namespace, c.transfer.Claim)
	if err != nil {
		return "", "", err
	}
	known := c.transfer.Volume
	if (claim == nil || claim.Spec.VolumeName == "") && known == nil {
		return v1alpha1.VolumeAbsent, "", nil // there is no volume yet
	}
	name := ""
	if known != nil {
		name = known.Name // the claim may be gone: StatefulSets can delete the claims of replicas that stop
	} else {
		name = claim.Spec.VolumeName
	}
	pv, err := c.volume(ctx, name)
	switch {
	case err != nil:
		return "", "", err
	case pv == nil:
		return v1alpha1.VolumePending, fmt.Sprintf("its PersistentVolume %s is gone", name), nil
	case known != nil && !volumes.SameVolume(pv, known):
		return v1alpha1.VolumePending, fmt.Sprintf("PersistentVolume %s leads to another volume by now", name), nil
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != c.namespace || pv.Spec.ClaimRef.Name != c.transfer.Claim:
		return v1alpha1.VolumePending, fmt.Sprintf("its PersistentVolume %s belongs to another claim", name), nil
	}
	if claim != nil && c.transfer.Phase == v1alpha1.VolumePreparing {
		if c.description, name = volumes.Describe(pv, claim, reclaimPolicy(pv)); name != "" {
			return v1alpha1.VolumePending, name, nil
		}
	}
	if err := c.keep(ctx, pv); err != nil {
		return "", "", err
	}
	user, err := c.userOf(ctx, c.namespace, c.transfer.Claim, pv.Name)
	switch {
	case err != nil:
		return "", "", err
	case user != "":
		if c.transfer.Phase == v1alpha1.VolumePreparing {
			user = "" // as it should be
		}
		return v1alpha1.VolumeInUse, user, nil
	}
	return v1alpha1.VolumeDetached, "", nil
}

// check reports whether this cluster can use the volume.
func (c *claimTransfer) check(ctx context.Context) (v1alpha1.VolumeState, string, error) {
	v := c.transfer.Volume
	if v == nil {
		return v1alpha1.VolumePending, "", nil // the other cluster has not described it
	}
	class, err := c.class(ctx, v.StorageClass)
	if err != nil {
		return "", "", err
	}
	others, err := c.volumesLike(ctx, v)
	if err != nil {
		return "", "", err
	}
	found := class != nil
	if !found {
		class = &storagev1.StorageClass{}
	}
	if why := volumes.Unsuitable(v, class.Provisioner, class.Parameters, found, others, c.namespace, c.transfer.Claim); why != "" {
		return v1alpha1.VolumePending, why, nil
	}
	claim, err := c.claim(ctx, c.namespace, c.transfer.Claim)
	if err != nil {
		return "", "", err
	}
	if claim != nil && claim.Spec.VolumeName != v.Name {
		return v1alpha1.VolumePending, "the cluster has a claim of this name with another volume: delete it there, if its data is not needed", nil
	}
	return v1alpha1.VolumeReady, "", nil
}

// attach makes the PersistentVolume and the claim, and reports when they are bound to each other.
func (c *claimTransfer) attach(ctx context.Context) (v1alpha1.VolumeState, string, error) {
	v := c.transfer.Volume
	if v == nil {
		return v1alpha1.VolumeBound, "", nil // the replica begins with an empty volume
	}
	newVolume, newClaim := volumes.Objects(v, c.namespace, c.transfer.Claim)
	claim, err := c.claim(ctx, c.namespace, c.transfer.Claim)
	if err != nil {
		return "", "", err
	}
	if claim != nil && claim.Spec.VolumeName != v.Name {
		return v1alpha1.VolumePending, "the cluster has a claim of this name with another volume: delete it there, if its data is not needed", nil
	}
	if claim != nil && claim.DeletionTimestamp != nil {
		return v1alpha1.VolumePending, "its claim is being deleted, and is made again after that", nil
	}
	pv, err := c.volume(ctx, v.Name)
	if err != nil {
		return "", "", err
	}
	if pv == nil {
		if pv, err = c.createVolume(ctx, newVolume); err != nil {
			return "", "", err
		}
	}
	ref := pv.Spec.ClaimRef
	if !volumes.SameVolume(pv, v) || ref == nil || ref.Namespace != c.namespace || ref.Name != c.transfer.Claim {
		return v1alpha1.VolumePending, fmt.Sprintf("PersistentVolume %s of the cluster belongs to another claim", pv.Name), nil
	}
	if claim == nil && ref.UID != "" {
		// It was bound to an earlier claim of this name, which is gone.
		if err := c.unbind(ctx, pv); err != nil {
			return "", "", err
		}
	}
	if claim == nil {
		if c.transfer.ClaimUID != "" {
			newClaim.Labels, newClaim.Annotations = c.marks()
		}
		if claim, err = c.createClaim(ctx, newClaim); err != nil {
			return "", "", err
		}
	}
	if marked, err := c.mark(ctx, claim); !marked {
		return v1alpha1.VolumePending, "", err
	}
	if claim.Status.Phase == corev1.ClaimBound && ref.UID == claim.UID {
		return v1alpha1.VolumeBound, "", nil
	}
	return v1alpha1.VolumePending, fmt.Sprintf("PersistentVolume %s is not bound to its claim yet", v.Name), nil
}

// settle gives the volume the reclaim policy that it had before the transfer.
func (c *claimTransfer) settle(ctx context.Context) (v1alpha1.VolumeState, string, error) {
	v := c.transfer.Volume
	if v == nil {
		return v1alpha1.VolumeSettled, "", nil
	}
	if state, why, err := c.attach(ctx); state != v1alpha1.VolumeBound || err != nil {
		return v1alpha1.VolumePending, why, err
	}
	pv, err := c.volume(ctx, v.Name)
	if err != nil || pv == nil {
		return "", "", err
	}
	if err := c.setReclaim(ctx, pv, v.ReclaimPolicy, false); err != nil {
		return "", "", err
	}
	return v1alpha1.VolumeSettled, "", nil
}

// remove removes the claim and the PersistentVolume, and never the volume.
func (c *claimTransfer) remove(ctx context.Context) (v1alpha1.VolumeState, string, error) {
	v := c.transfer.Volume
	if c.decided {
		return v1alpha1.VolumePending, "the control plane still wants the claim here", nil
	}
	claim, err := c.claim(ctx, c.namespace, c.transfer.Claim)
	if err != nil {
		return "", "", err
	}
	if v == nil {
		if claim != nil && claim.Spec.VolumeName == "" { // it never got a volume
			return v1alpha1.VolumePending, "", c.deleteClaim(ctx, claim)
		}
		return v1alpha1.VolumeAbsent, "", nil
	}
	pv, err := c.volume(ctx, v.Name)
	if err != nil {
		return "", "", err
	}
	if pv != nil && !volumes.SameVolume(pv, v) {
		return v1alpha1.VolumePending, fmt.Sprintf("PersistentVolume %s leads to another volume by now, and stays", v.Name), nil
	}
	if pv != nil && pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		return v1alpha1.VolumePending, "", c.keep(ctx, pv) // its volume would go with it
	}
	if claim != nil && claim.Spec.VolumeName == v.Name {
		if claim.DeletionTimestamp == nil {
			if err := c.deleteClaim(ctx, claim); err != nil {
				return "", "", err
			}
		}
		user, err := c.userOf(ctx, c.namespace, c.transfer.Claim, v.Name)
		return v1alpha1.VolumePending, user, err
	}
	if pv != nil {
		return v1alpha1.VolumePending, "", c.deleteVolume(ctx, pv)
	}
	return v1alpha1.VolumeAbsent, "", nil
}

// marks returns the label and the annotations with which a syncer knows the claim as the one of the control plane.
func (c *claimTransfer) marks() (labels, annotations map[string]string) {
	return map[string]string{v1alpha1.ManagedLabel: "true"},
		map[string]string{v1alpha1.ClusterAnnotation: c.cluster, v1alpha1.SourceUIDAnnotation: string(c.transfer.ClaimUID)}
}

// mark sets the marks of a claim that the control plane has too, and reports whether it had them. The syncer applies it from
// then on.
func (c *claimTransfer) mark(ctx context.Context, claim *corev1.PersistentVolumeClaim) (marked bool, err error) {
	labels, annotations := c.marks()
	if c.transfer.ClaimUID == "" || contains(claim.Labels, labels) && contains(claim.Annotations, annotations) {
		return true, nil
	}
	return false, c.patchClaim(ctx, claim, map[string]any{"labels": labels, "annotations": annotations})
}

func contains(all, some map[string]string) bool {
	for key, value := range some {
		if all[key] != value {
			return false
		}
	}
	return true
}

// keep sets the reclaim policy Retain, and remembers the earlier one.
func (c *claimTransfer) keep(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && pv.Annotations[v1alpha1.ReclaimPolicyAnnotation] != "" {
		return nil
	}
	return c.setReclaim(ctx, pv, corev1.PersistentVolumeReclaimRetain, true)
}

// reclaimPolicy returns the policy that a volume has without a transfer.
func reclaimPolicy(pv *corev1.PersistentVolume) corev1.PersistentVolumeReclaimPolicy {
	if was := pv.Annotations[v1alpha1.ReclaimPolicyAnnotation]; was != "" {
		return corev1.PersistentVolumeReclaimPolicy(was)
	}
	return pv.Spec.PersistentVolumeReclaimPolicy
}

// isGone reports whether an error says that there is no object of the name.
func isGone(err error) bool { return apierrors.IsNotFound(err) && !typeUnknown(err) }

// exactly deletes the object that was read, and no later one of the same name.
func exactly(uid types.UID, version string) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
}
