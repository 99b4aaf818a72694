package transition

import (
	"slices"
	"testing"
)

// importer is how far the other clusters have the endpoints of a cluster.
type importer struct {
	revision int32          // of the Drain that the cluster has carried out
	pending  map[string]int // the clusters that have not applied that, and for how many more ticks
}

// withdraw has a member take replicas out of endpoints that are about to leave, and the others apply that. Some never do.
func (w *world) withdraw(name string) {
	m, d := w.members[name], w.imports[name]
	if !w.exported || m.silent >= 0 {
		return
	}
	if rev := m.share.Drain.Revision; m.has && rev > 0 && (d == nil || d.revision != rev) {
		d = &importer{revision: rev, pending: map[string]int{}}
		for _, other := range w.names {
			if d.pending[other] = w.r.IntN(5); w.r.IntN(20) == 0 {
				d.pending[other] = 1 << 30
			}
		}
		w.imports[name] = d
	}
	if d == nil {
		return
	}
	for other := range d.pending {
		if d.pending[other]--; d.pending[other] < 0 && w.members[other].silent < 0 {
			delete(d.pending, other)
		}
	}
}

// endpoints adds to a report how far replicas are out of the endpoints that other clusters have.
func (w *world) endpoints(name string, r *Report) {
	r.Exported = w.exported
	if d := w.imports[name]; d != nil {
		r.Drain.Revision = d.revision
		for _, other := range w.names {
			if _, waits := d.pending[other]; waits && w.members[other].silent < 0 {
				r.Drain.Importers = append(r.Drain.Importers, other)
			}
		}
	}
}

// checkEndpoints: no share gets smaller before the clusters that answer have taken the leaving replicas out of their
// endpoints, or have had the time to.
func (w *world) checkEndpoints(t *testing.T, out Output) {
	t.Helper()
	for _, now := range w.in.Now {
		r := w.in.Reports[now.Cluster]
		if w.in.Limits.MaxUnavailable >= w.in.Wanted && w.in.Floor.Available <= 0 || out.Done && !w.in.Underway {
			return // at once
		}
		next := Share{}
		if at := slices.IndexFunc(out.Next, func(s Share) bool { return s.Cluster == now.Cluster }); at >= 0 {
			next = out.Next[at]
		}
		leave := w.size(now) > w.size(next) || next.Cluster == ""
		if !w.exported && next.Drain.Revision > 0 {
			t.Errorf("%s announces that replicas leave, without an exported Service", now.Cluster)
		}
		if !leave || !w.exported || r.Lost || r.Unreachable || !r.Present || w.size(now) == 0 || next.Cluster != "" && w.in.Rule == Autoscaled {
			continue
		}
		d := now.Drain
		switch confirmed := d.Revision > 0 && r.Drain.Revision == d.Revision && len(r.Drain.Importers) == 0; {
		case !confirmed && (d.Revision == 0 || w.at.Before(d.Since.Add(DrainTimeout))):
			t.Errorf("replicas leave %s, and clusters may send requests to them: %+v, reported %+v", now.Cluster, d, r.Drain)
		case w.size(next) < d.Replicas:
			t.Errorf("%d replicas stay in %s, and %d were announced", w.size(next), now.Cluster, d.Replicas)
		}
	}
}
