package transition

import (
	"fmt"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// DrainTimeout is how long a share waits until no cluster sends requests to the pods that leave. A cluster that cannot apply
// an EndpointSlice must not block the move for ever.
const DrainTimeout = 30 * time.Second

// drainCheck is how often a step that waits for endpoints is computed again. Most reports ask for it earlier.
const drainCheck = time.Second

// Drain announces what stays of a share that is about to be smaller. The zero value announces nothing.
type Drain struct {
	// Replicas that stay, and the first ordinal of them if they are numbered.
	Replicas, Start int32
	// Revision is another one whenever other replicas are to stay.
	Revision int32
	Since    time.Time
}

// DrainReport is how far the pods that do not stay have left the endpoints of exported Services.
type DrainReport struct {
	// Revision of the Drain that the cluster has carried out, as Atoll's EndpointSlices show.
	Revision int32
	// Importers are the clusters that answer and have not applied those EndpointSlices.
	Importers []string
	// Message is why the cluster does not carry it out.
	Message string
}

// drain has shares wait that this step makes smaller, until no cluster sends requests to the pods that leave. Rules with
// ordinals or volumes ask for each replica instead.
func (m *move) drain() {
	for _, p := range m.parts {
		stay := p.next.Replicas
		switch {
		case !p.has || p.keep && (p.next.Whole || stay >= p.now.Replicas || m.in.Rule == Autoscaled):
			continue
		case !p.keep:
			stay = 0
		}
		if !p.now.Whole && p.now.Replicas == 0 && m.in.Rule != Autoscaled {
			continue // it has no pods
		}
		d := p.now.Drain
		if d.Revision == 0 || d.Replicas < stay {
			d = m.newDrain(p, Share{Replicas: stay})
		}
		switch {
		case !m.withdrawn(p, d):
			p.keep, p.next = true, p.now
			p.next.Drain = d
		case d.Replicas > stay:
			// More may leave now than was announced: that takes another step.
			p.keep, p.next.Replicas = true, d.Replicas
		}
	}
}

// mayRelease reports whether no cluster sends requests to the replicas that do not stay, and otherwise announces them.
func (m *move) mayRelease(p *part, stay Share) bool {
	d := p.now.Drain
	if d.Revision == 0 || d.Replicas != stay.Replicas || d.Start != stay.Start {
		d = m.newDrain(p, stay)
	}
	if !m.withdrawn(p, d) {
		p.next.Drain = d
		return false
	}
	return true
}

func (m *move) newDrain(p *part, stay Share) Drain {
	return Drain{Replicas: stay.Replicas, Start: stay.Start, Revision: max(p.now.Drain.Revision, p.report.Drain.Revision) + 1, Since: m.in.At.Truncate(time.Second)}
}

// withdrawn reports whether no cluster sends requests to the pods that do not stay, as far as that can be waited for.
func (m *move) withdrawn(p *part, d Drain) bool {
	r := &p.report
	if !r.Exported || !r.Present || r.Unreachable || r.Lost {
		return true
	}
	due, at := d.Since.Add(DrainTimeout), m.in.At
	announced, done := d.Revision == p.now.Drain.Revision, d.Revision == r.Drain.Revision
	if announced && (done && len(r.Drain.Importers) == 0 || !at.Before(due)) {
		return true
	}
	m.shrinks = true
	m.phase, m.waiting = v1alpha1.PhaseWaiting, waitsForEndpoints(p.cluster, r.Drain, done)
	if next := minTime(due, at.Add(drainCheck)); m.recheck.IsZero() || next.Before(m.recheck) {
		m.recheck = next
	}
	return false
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// waitsForEndpoints returns the reason why clusters may still send requests to the pods that leave one.
func waitsForEndpoints(cluster string, r DrainReport, done bool) string {
	if !done {
		reason := fmt.Sprintf("cluster %s to take the replicas that leave it out of the endpoints of exported Services", cluster)
		if r.Message != "" {
			reason += ": " + r.Message
		}
		return reason
	}
	const most = 5
	names, clusters := r.Importers, "cluster "
	if len(names) > 1 {
		clusters = "clusters "
	}
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return fmt.Sprintf("%s%s%s to apply the endpoints of exported Services without the replicas that leave %s", clusters, strings.Join(names, ", "), more, cluster)
}

// isAnnounced reports whether a share that is about to be smaller has been announced.
func (p *part) isAnnounced() bool { return p.now.Drain.Revision > 0 }

// withoutDrains returns shares that announce nothing.
func withoutDrains(shares []Share) []Share {
	out := make([]Share, len(shares))
	for i, s := range shares {
		s.Drain = Drain{}
		out[i] = s
	}
	return out
}
