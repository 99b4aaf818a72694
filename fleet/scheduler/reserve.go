package scheduler

import (
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// reserve enters a result in the allocations, so that the next decision takes it into account.
func (snap *Snapshot) reserve(a *Result) {
	if a.Choice.Err != nil {
		return
	}
	if snap.Allocations != nil {
		snap.Allocations.Set(a.Request.Object, a.Decision.Shares())
	}
	if snap.Rooms != nil {
		snap.Rooms.Grant(&a.Request.Object, a.Request.Previous, a.Decision.Shares(), snap.Now)
		promise(snap.Rooms, &a.Request.Object, a.Preemption, a.Decision.Shares())
	}
	snap.reserveGroup(a)
}

// reserveGroup reserves the room of the group's members that are not placed yet. Another group would take
// it otherwise, and both would stay incomplete.
func (snap *Snapshot) reserveGroup(a *Result) {
	limited, known := snap.Allocations != nil && snap.Fleet.Limited(), snap.Rooms != nil && snap.Fleet.KnowsRoom()
	if a.Together == nil || len(a.Decision.Chosen) != 1 || !limited && !known {
		return
	}
	for _, c := range a.Together.Members {
		if len(c.Clusters) > 0 || c.finished {
			continue
		}
		o, share := objectOf(c.placed.Kind, c.placed.Object), []placement.Share{{Cluster: a.Decision.Chosen[0].Cluster, Whole: true}}
		if limited {
			snap.Allocations.Set(o, share)
		}
		if known {
			snap.Rooms.Grant(&o, nil, share, snap.Now)
		}
	}
}

// isContended reports whether decisions must be serialized: each may use capacity that the next
// one then lacks, or depends on where other objects are.
func (snap *Snapshot) isContended(k interpret.KindInfo, c placement.PolicyChoice) bool {
	if c.Policy == nil {
		return false
	}
	return hasTerms(c.Policy) || c.Policy.ByCapacity() || snap.Fleet.Limited() || k.MakesPods() && snap.Fleet.KnowsRoom()
}
