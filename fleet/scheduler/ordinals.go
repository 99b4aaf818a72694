package scheduler

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// hasOrdinals reports whether the replicas of a kind have consecutive ordinals.
func hasOrdinals(k interpret.KindInfo) bool {
	return k.GroupKind() == schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
}

// ordinals returns the ranges of a binding, which may be nil.
func ordinals(b *v1alpha1.ResourceBinding) (ranges []placement.Range) {
	if b == nil {
		return nil
	}
	for _, c := range b.Decided() {
		if c.Replicas == nil {
			continue
		}
		r := placement.Range{Cluster: c.Name, Count: *c.Replicas}
		if c.OrdinalStart != nil {
			r.Start = *c.OrdinalStart
		}
		ranges = append(ranges, r)
	}
	return ranges
}

// setOrdinals assigns each share a range of ordinals.
func setOrdinals(shares []v1alpha1.ClusterShare, before []placement.Range) {
	now := make([]placement.Share, len(shares))
	for i, c := range shares {
		now[i] = placement.Share{Cluster: c.Name}
		if c.Replicas != nil {
			now[i].Replicas = *c.Replicas
		}
	}
	for i, r := range placement.Ordinals(now, before) {
		shares[i].OrdinalStart = &r.Start
	}
}
