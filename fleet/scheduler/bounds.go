package scheduler

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// withinBounds adds the clusters that bounds exclude for an object to its obstacles. They come before all others: an
// obstacle that lets a cluster keep its share must not hide them.
func (snap *Snapshot) withinBounds(out map[string]placement.Obstacle, k interpret.KindInfo, obj metav1.Object) map[string]placement.Obstacle {
	excluded := snap.outOfBounds(k, obj)
	if len(excluded) == 0 {
		return out
	}
	if out == nil {
		return excluded
	}
	out = maps.Clone(out)
	maps.Copy(out, excluded)
	return out
}

// outOfBounds returns the clusters that bounds exclude for an object.
func (snap *Snapshot) outOfBounds(k interpret.KindInfo, obj metav1.Object) map[string]placement.Obstacle {
	if snap.Policies == nil || snap.Fleet == nil {
		return nil
	}
	return snap.Policies.OutOfBounds(snap.target(k, obj), snap.Fleet)
}

// followWithinBounds removes the clusters that bounds exclude for a follower, and reports them in the condition. Its
// users may be of another namespace, whose bounds are wider: they run there without it.
func (s *scheduler) followWithinBounds(k interpret.KindInfo, obj metav1.Object, b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare, c *metav1.Condition) []v1alpha1.ClusterShare {
	excluded := s.snapshot().outOfBounds(k, obj)
	if len(excluded) == 0 {
		return shares
	}
	var out []v1alpha1.ClusterShare
	var without []string
	for _, share := range shares {
		obstacle, is := excluded[share.Name]
		if is && !(obstacle.Keeps && isRunning(b, share.Name)) {
			without = append(without, fmt.Sprintf("%s: the cluster %s", share.Name, obstacle.Message))
			continue
		}
		out = append(out, share)
	}
	if len(without) > 0 {
		slices.Sort(without)
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, placement.ReasonOutOfBounds, runWithout(without)
	}
	return out
}
