package placement

// mark is a reason in one byte, because each decision has one for each cluster.
type mark uint8

const (
	unmarked mark = iota
	markLeaving
	markUnselected
	markTainted
	markEvicted
	markDrained
	markDegraded
	markObstacle
	markPending
	markGroup
	markAffinity
	markAntiAffinity
	markFull
	markPreempted
	// The following marks are results of a single attempt.
	markAvoided
	markOtherGroups
	markSkew
	markEnough
	markNoReplicas
	markNoMoreRoom
	markOtherGroup
	markCapacityUnknown
	markUnsatisfied
	markHome
)

func (d *decider) reason(at int32, m mark) string {
	switch m {
	case markLeaving:
		return ReasonLeaving
	case markUnselected:
		return ReasonUnselected
	case markTainted:
		return ReasonTainted
	case markEvicted:
		return ReasonEvicted
	case markDrained:
		return ReasonDrained
	case markDegraded:
		return ReasonDegraded
	case markObstacle:
		return d.r.Obstacles[d.fleet.clusters[at].Name].Reason
	case markPending:
		return ReasonPending
	case markGroup:
		return ReasonGroup
	case markAffinity:
		return ReasonAffinity
	case markAntiAffinity:
		return ReasonAntiAffinity
	case markFull, markNoMoreRoom:
		return ReasonFull
	case markPreempted:
		return ReasonPreempted
	case markAvoided:
		return ReasonAvoided
	case markOtherGroups:
		return ReasonOtherGroups
	case markSkew:
		return ReasonSkew
	case markEnough:
		return ReasonEnough
	case markNoReplicas:
		return ReasonNoReplicas
	case markOtherGroup:
		return ReasonOtherGroup
	case markCapacityUnknown:
		return ReasonCapacityUnknown
	case markUnsatisfied:
		return ReasonUnsatisfied
	case markHome:
		return ReasonHome
	}
	return ""
}

// resetMarks removes the marks of an attempt.
func (d *decider) resetMarks() {
	for at, m := range d.marks {
		if m >= markAvoided {
			d.marks[at] = unmarked
		}
	}
}

func (d *decider) markAll(members []member, m mark) {
	for _, x := range members {
		d.marks[x.at] = m
	}
}
