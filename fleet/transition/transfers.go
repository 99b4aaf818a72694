package transition

import (
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Volumes are the claims that go along with replicas.
type Volumes struct {
	// Claims are their names, by the ordinal of the replica.
	Claims map[int32][]string
	// Together: all replicas mount the same claims, which are those of ordinal 0 here. The object runs as a whole in one
	// cluster.
	Together bool
	// Transfers that are under way.
	Transfers []Transfer
}

// Transfer is a claim that goes to another cluster together with its volume.
type Transfer struct {
	Claim string
	// Ordinal of the replica that mounts it; 0 if all do.
	Ordinal  int32
	From, To string
	Phase    v1alpha1.VolumePhase
	// Revision is another one with each phase: a report about an earlier phase is not mistaken for one about this.
	Revision int32
	// Made: To may have made a claim for the volume.
	Made bool
}

// VolumeReport is what a cluster says about a transfer.
type VolumeReport struct {
	State    v1alpha1.VolumeState
	Revision int32
	// Message explains what the cluster waits for.
	Message string
}

// advance makes the next step of each transfer that is under way.
func (m *move) advance() {
	m.transfers = nil
	defer m.addTargets()
	for _, t := range m.in.Volumes.Transfers {
		was := t
		over := m.advanceOne(&t)
		if t != was {
			t.Revision = m.newRevision()
		}
		if m.transferred = m.transferred || over || t != was; !over {
			m.transfers = append(m.transfers, t)
		}
	}
}

// addTargets gives a share without replicas to the clusters that volumes go to: it makes them report.
func (m *move) addTargets() {
	for _, t := range m.transfers {
		if p := m.part(t.To); p.wanted && !p.keep {
			p.keep, p.next, m.grows = true, Share{Cluster: p.cluster, Start: p.goal.Start}, true
		}
	}
}

// advanceOne makes the next step of a transfer, and reports whether it is over.
func (m *move) advanceOne(t *Transfer) (over bool) {
	from, fromWaits := m.said(t, t.From)
	to, toWaits := m.said(t, t.To)
	owner := m.ownerOf(t.Ordinal)
	switch t.Phase {
	case v1alpha1.VolumePreparing, v1alpha1.VolumeDetaching, v1alpha1.VolumeAttaching:
		if owner == nil || owner.cluster != t.To {
			m.turnBack(t, owner)
			return false
		}
	}
	switch t.Phase {
	case v1alpha1.VolumePreparing:
		// Otherwise it goes on when the replica is to stop.
		if !m.has(t.From, t.Ordinal) && m.isPrepared(t, m.part(t.From), owner) {
			t.Phase = v1alpha1.VolumeDetaching
		}
	case v1alpha1.VolumeDetaching:
		if from == v1alpha1.VolumeDetached || from == v1alpha1.VolumeAbsent {
			t.Phase, t.Made = v1alpha1.VolumeAttaching, true
			return false
		}
		m.waitForVolume(fromWaits, "to be detached")
	case v1alpha1.VolumeAttaching:
		if to == v1alpha1.VolumeBound {
			t.Phase = v1alpha1.VolumeAttached
			return false
		}
		m.waitForVolume(toWaits, "to be attached")
	case v1alpha1.VolumeAttached:
		m.leave(t, owner)
	case v1alpha1.VolumeRemoving:
		if from == v1alpha1.VolumeAbsent || m.part(t.From).report.Lost {
			t.Phase = v1alpha1.VolumeSettling
			return false
		}
		m.waitForVolume(fromWaits, "to be removed")
	case v1alpha1.VolumeSettling:
		if to == v1alpha1.VolumeSettled {
			return true
		}
		m.waitForVolume(toWaits, "to get its reclaim policy back")
	case v1alpha1.VolumeReturning:
		if from == v1alpha1.VolumeSettled {
			if t.Made {
				t.Phase = v1alpha1.VolumeCleaning
				return false
			}
			return m.end(t, owner)
		}
		m.waitForVolume(fromWaits, "to be as before")
	case v1alpha1.VolumeCleaning:
		if to == v1alpha1.VolumeAbsent || m.part(t.To).report.Lost {
			return m.end(t, owner)
		}
		m.waitForVolume(toWaits, "to be removed")
	}
	return false
}

// turnBack changes a transfer to a cluster where the replica is not to run any more, before it does.
func (m *move) turnBack(t *Transfer, owner *part) {
	switch {
	case owner == nil || owner.cluster == t.From:
		t.Phase = v1alpha1.VolumeReturning
	case t.Made:
		t.Phase = v1alpha1.VolumeCleaning
	default:
		t.To, t.Phase = owner.cluster, v1alpha1.VolumePreparing
	}
}

// end ends a transfer whose volume is in From alone, or sends it to the cluster that is to run the replica now: there
// is no other record of the volume of a replica that has stopped.
func (m *move) end(t *Transfer, owner *part) (over bool) {
	if owner == nil || owner.cluster == t.From || m.has(t.From, t.Ordinal) {
		return true
	}
	t.To, t.Phase, t.Made = owner.cluster, v1alpha1.VolumePreparing, false
	return false
}

// leave ends the part of the cluster that had the volume when the replica is available in the other one.
func (m *move) leave(t *Transfer, owner *part) {
	to := m.part(t.To)
	switch {
	case owner != nil && owner.cluster == t.From:
		t.From, t.To, t.Phase, t.Made = t.To, t.From, v1alpha1.VolumePreparing, true
	case !m.has(t.To, t.Ordinal):
		if owner == nil || owner.cluster != t.To {
			t.Phase = v1alpha1.VolumeCleaning // it has not run there
		}
	case owner == nil || owner.cluster != t.To:
		t.Phase = v1alpha1.VolumeRemoving // it goes on from there
	case m.runs(to) && m.soaked():
		t.Phase = v1alpha1.VolumeRemoving
	default:
		what := fmt.Sprintf("replica %d", t.Ordinal)
		if m.in.Volumes.Together {
			what = "the replicas"
		}
		m.waitForPart(to, what+" to be available in "+t.To)
	}
}

// has reports whether a cluster has a replica in effect. If all go together, it reports whether the cluster has any, or
// all of none that are wanted.
func (m *move) has(cluster string, ordinal int32) bool {
	p := m.part(cluster)
	if m.in.Volumes.Together {
		return p.has && (p.now.Replicas > 0 || p.wanted && p.goal.Replicas == 0)
	}
	return p.has && p.now.has(ordinal)
}

// part returns a cluster of the move; an empty one if the cluster has nothing to do with it.
func (m *move) part(cluster string) *part {
	for _, p := range m.parts {
		if p.cluster == cluster {
			return p
		}
	}
	return &part{cluster: cluster}
}

// said returns what a cluster says about the present phase of a transfer, and the beginning of a text about the
// condition that the transfer waits for.
func (m *move) said(t *Transfer, cluster string) (v1alpha1.VolumeState, string) {
	p := m.part(cluster)
	r, reported := p.report.Volumes[t.Claim]
	about := fmt.Sprintf("the volume of claim %s in %s", t.Claim, cluster)
	switch {
	case p.report.Unreachable:
		return "", about + ", which does not answer,"
	case !reported || r.Revision != t.Revision:
		return "", about
	case r.Message != "":
		return r.State, about + " (" + r.Message + ")"
	}
	return r.State, about
}

func (m *move) waitForVolume(about, what string) {
	m.wait(v1alpha1.PhaseWaiting, about+" "+what)
}

// newRevision returns a revision that no report is about.
func (m *move) newRevision() int32 {
	for _, t := range m.in.Volumes.Transfers {
		m.revision = max(m.revision, t.Revision)
	}
	for _, p := range m.parts {
		for _, r := range p.report.Volumes {
			m.revision = max(m.revision, r.Revision)
		}
	}
	m.revision++
	return m.revision
}

// prepared reports whether the volumes of a replica can go along to another cluster when it stops, and prepares them first.
func (m *move) prepared(from *part, ordinal int32) bool {
	to := m.ownerOf(ordinal)
	claims := m.in.Volumes.Claims[ordinal]
	if to == nil || to == from || len(claims) == 0 {
		return true
	}
	ready := true
	for _, claim := range claims {
		at := slices.IndexFunc(m.transfers, func(t Transfer) bool { return t.Claim == claim })
		if at < 0 {
			if len(m.transfers) < v1alpha1.MaxVolumeTransfers {
				m.transfers = append(m.transfers, Transfer{Claim: claim, Ordinal: ordinal, From: from.cluster, To: to.cluster,
					Phase: v1alpha1.VolumePreparing, Revision: m.newRevision()})
				m.transferred = true
			}
			ready = false
			continue
		}
		ready = m.isPrepared(&m.transfers[at], from, to) && ready
	}
	m.addTargets()
	if !ready {
		whose := fmt.Sprintf(" of replica %d", ordinal)
		if m.in.Volumes.Together {
			whose = ""
		}
		m.wait(v1alpha1.PhaseWaiting, fmt.Sprintf("the volumes%s to be prepared in %s and %s", whose, from.cluster, to.cluster))
	}
	return ready
}

// detach begins to detach the volumes of a replica that stops, if they are prepared.
func (m *move) detach(ordinal int32) {
	for i := range m.transfers {
		if t := &m.transfers[i]; t.Ordinal == ordinal && t.Phase == v1alpha1.VolumePreparing {
			t.Phase, t.Revision, m.transferred = v1alpha1.VolumeDetaching, m.newRevision(), true
		}
	}
}

// isPrepared reports whether both clusters of a transfer can do their part, so that the replica may stop.
func (m *move) isPrepared(t *Transfer, from, to *part) bool {
	if t.Phase != v1alpha1.VolumePreparing || t.From != from.cluster || t.To != to.cluster {
		return false // an earlier transfer of the claim is not over
	}
	here, waits := m.said(t, t.From)
	if here == v1alpha1.VolumeAbsent {
		return true // it begins with an empty volume in any cluster
	}
	if here != v1alpha1.VolumeInUse && here != v1alpha1.VolumeDetached {
		m.waitForVolume(waits, "to be prepared")
		return false
	}
	there, waits := m.said(t, t.To)
	if there != v1alpha1.VolumeReady && there != v1alpha1.VolumeBound {
		m.waitForVolume(waits, "to be prepared")
		return false
	}
	return true
}

// mayStart reports whether the volumes of a replica are in a cluster, as far as they go along.
func (m *move) mayStart(p *part, ordinal int32) bool {
	return !slices.ContainsFunc(m.transfers, func(t Transfer) bool {
		if t.Ordinal != ordinal {
			return false
		}
		switch t.Phase {
		case v1alpha1.VolumeAttached, v1alpha1.VolumeRemoving, v1alpha1.VolumeSettling:
			return t.To != p.cluster
		case v1alpha1.VolumeCleaning:
			return t.From != p.cluster
		}
		return true
	})
}

// transfers reports whether a cluster has a part in a transfer.
func (m *move) transfersIn(cluster string) bool {
	return slices.ContainsFunc(m.transfers, func(t Transfer) bool { return t.From == cluster || t.To == cluster })
}

// awaitedTransfers returns the clusters that volumes go to and that replicas wait for.
func (m *move) awaitedTransfers() (clusters []string) {
	for _, t := range m.transfers {
		switch t.Phase {
		case v1alpha1.VolumePreparing, v1alpha1.VolumeDetaching, v1alpha1.VolumeAttaching:
			if !slices.Contains(clusters, t.To) {
				clusters = append(clusters, t.To)
			}
		}
	}
	return clusters
}
