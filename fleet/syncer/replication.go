package syncer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// replicate does this cluster's part of a transfer whose volume has a copy in the other cluster: it asks the replication
// system to change the direction. Both clusters keep their claims.
func (c *claimTransfer) replicate(ctx context.Context) (v1alpha1.VolumeState, string, error) {
	t := c.transfer
	claim, err := c.claim(ctx, c.namespace, t.Claim)
	if err != nil {
		return "", "", err
	}
	if claim == nil || claim.Status.Phase != corev1.ClaimBound {
		return c.withoutClaim(claim)
	}
	release, acquire := &t.Replication.Release, &t.Replication.Acquire
	if t.From == c.cluster {
		switch t.Phase {
		case v1alpha1.VolumePreparing:
			return v1alpha1.VolumeInUse, "", nil
		case v1alpha1.VolumeDetaching:
			user, err := c.userOf(ctx, c.namespace, t.Claim, claim.Spec.VolumeName)
			if err != nil || user != "" {
				return v1alpha1.VolumeInUse, user, err
			}
			return c.ask(ctx, claim, release, v1alpha1.VolumeDetached)
		case v1alpha1.VolumeRemoving:
			return v1alpha1.VolumeAbsent, "", nil // its copy stays, for the way back
		case v1alpha1.VolumeReturning:
			return c.ask(ctx, claim, acquire, v1alpha1.VolumeSettled)
		}
		return v1alpha1.VolumePending, "", nil
	}
	switch t.Phase {
	case v1alpha1.VolumePreparing:
		return v1alpha1.VolumeReady, "", nil
	case v1alpha1.VolumeAttaching, v1alpha1.VolumeAttached:
		if marked, err := c.mark(ctx, claim); !marked {
			return v1alpha1.VolumePending, "", err
		}
		return c.ask(ctx, claim, acquire, v1alpha1.VolumeBound)
	case v1alpha1.VolumeSettling:
		return v1alpha1.VolumeSettled, "", nil
	case v1alpha1.VolumeCleaning:
		return c.ask(ctx, claim, release, v1alpha1.VolumeAbsent)
	}
	return v1alpha1.VolumePending, "", nil
}

// withoutClaim is the state of a cluster without a claim that is bound.
func (c *claimTransfer) withoutClaim(claim *corev1.PersistentVolumeClaim) (v1alpha1.VolumeState, string, error) {
	t := c.transfer
	switch {
	case t.From == c.cluster && t.Phase == v1alpha1.VolumeRemoving, t.To == c.cluster && t.Phase == v1alpha1.VolumeCleaning:
		return v1alpha1.VolumeAbsent, "", nil
	case claim == nil:
		return v1alpha1.VolumePending, "the cluster has no such claim: the replication has to make it, with a copy of the volume", nil
	}
	return v1alpha1.VolumePending, fmt.Sprintf("the claim is %s, and has to be Bound to a copy of the volume", claim.Status.Phase), nil
}

// ask sets the annotations of a request on a claim, and reports a state when the claim has the condition.
func (c *claimTransfer) ask(ctx context.Context, claim *corev1.PersistentVolumeClaim, hook *v1alpha1.VolumeHook, done v1alpha1.VolumeState) (v1alpha1.VolumeState, string, error) {
	missing := map[string]any{}
	for key, value := range hook.Annotations {
		if claim.Annotations[key] != value {
			missing[key] = value
		}
	}
	if len(missing) > 0 {
		return v1alpha1.VolumePending, "", c.patchClaim(ctx, claim, map[string]any{"annotations": missing}) // a condition from before is no answer to it
	}
	for _, condition := range claim.Status.Conditions {
		if string(condition.Type) != hook.Condition {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			return done, "", nil
		}
		return v1alpha1.VolumePending, fmt.Sprintf("its condition %s is %s: %s", hook.Condition, condition.Status, condition.Message), nil
	}
	return v1alpha1.VolumePending, "its condition " + hook.Condition + " is not set", nil
}
