package placement

import (
	"fmt"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// ReasonDegraded: the object has not been Healthy there for too long, while the cluster was Ready.
const ReasonDegraded = v1alpha1.AvoidedDegraded

// HealthReport is what a cluster reports about the health of an object.
type HealthReport struct {
	Cluster string
	Health  v1alpha1.Health
	// Current: the report is about the object and its share as they are.
	Current bool
	// Since is since when the object is not Healthy, as it is; WasHealthy: it was Healthy before that.
	Since      time.Time
	WasHealthy bool
	// Pending is how many of its pods have had no node there for too long, if these go to other clusters by themselves.
	Pending int32
}

// FailedCluster is a cluster that failed to run an object as it is.
type FailedCluster struct {
	Cluster string
	// Until is when it may be tried again; zero means not before something changes.
	Until time.Time
}

// DegradedRule is when an object leaves a cluster in which it is not Healthy.
type DegradedRule struct {
	After time.Duration
	// FirstHealth is how long an object that was not Healthy there before, as it is, has to become Healthy.
	FirstHealth time.Duration
}

// Degraded is what the reports about an object say.
type Degraded struct {
	// Leaves are the clusters that the object is to leave, with since when it is not Healthy there.
	Leaves map[string]time.Time
	// Held is why it leaves none, although it is not Healthy in one for too long; otherwise "".
	Held string
	// Notes say about other clusters in which the object is not Healthy when that counts, or why it does not.
	Notes []string
	// Recheck is when the result may change without another report; zero means never.
	Recheck time.Time
}

// isUnhealthy reports whether the report counts: one about an earlier version does not, nor does an unknown health.
func (r *HealthReport) isUnhealthy() bool {
	return r.Current && !r.Since.IsZero() && (r.Health == v1alpha1.Degraded || r.Health == v1alpha1.Progressing)
}

// due returns when an object that stays as unhealthy leaves a cluster. A cluster that was not Ready meanwhile may be the
// cause, so the time counts from when it is Ready.
func (rule *DegradedRule) due(r *HealthReport, c *Cluster) time.Time {
	since, wait := r.Since, rule.After
	if c.Since.After(since) {
		since = c.Since
	}
	if !r.WasHealthy && r.Health != v1alpha1.Degraded {
		wait = max(wait, rule.FirstHealth)
	}
	return since.Add(wait)
}

// FindDegraded finds the clusters that an object is to leave because it is not Healthy there. reports are those of the
// clusters that have replicas of it, and failed the clusters that failed to run it.
//
// An object that is Healthy nowhere stays: then the fault is probably its own, and no other cluster would run it. One in
// a single cluster gives no such evidence, so it may try another one, but not while the last attempt is recent, and not
// again if it never was Healthy in any of them.
func FindDegraded(f *Fleet, reports []HealthReport, failed []FailedCluster, rule DegradedRule, now time.Time) (out Degraded) {
	var unhealthy, due []string
	well, wasHealthy := false, false
	since := map[string]time.Time{}
	for i := range reports {
		r := &reports[i]
		c, joined := f.Cluster(r.Cluster)
		switch {
		case !joined || c.Leaving:
			continue
		case !c.Ready:
			if r.isUnhealthy() {
				out.Notes = append(out.Notes, fmt.Sprintf("in %s since %s, which does not count while the cluster is not Ready", r.Cluster, stamp(r.Since)))
			}
			continue
		case r.Pending > 0 && r.isUnhealthy():
			out.Notes = append(out.Notes, fmt.Sprintf("in %s since %s, which does not count while %d of its pods have no node there", r.Cluster, stamp(r.Since), r.Pending))
			continue
		case !r.isUnhealthy():
			well = well || r.Current && r.Health == v1alpha1.Healthy
			continue
		}
		unhealthy, since[r.Cluster], wasHealthy = append(unhealthy, r.Cluster), r.Since, wasHealthy || r.WasHealthy
		at := rule.due(r, &c)
		if !now.Before(at) {
			due = append(due, r.Cluster)
			continue
		}
		out.Notes = append(out.Notes, fmt.Sprintf("in %s since %s: unless that changes, it leaves the cluster at %s", r.Cluster, stamp(r.Since), stamp(at)))
		out.recheckAt(at)
	}
	if len(due) == 0 {
		return out
	}
	if !well {
		if out.Held = heldAfter(unhealthy, failed, wasHealthy, now); out.Held != "" {
			for _, x := range failed {
				if x.Until.After(now) {
					out.recheckAt(x.Until)
				}
			}
			return out
		}
	}
	out.Leaves = map[string]time.Time{}
	for _, name := range due {
		out.Leaves[name] = since[name]
	}
	return out
}

// heldAfter returns why an object that is Healthy nowhere stays where it is, or "".
func heldAfter(unhealthy []string, failed []FailedCluster, wasHealthy bool, now time.Time) string {
	if len(unhealthy) > 1 {
		return fmt.Sprintf("it is Healthy in none of its clusters (%s), so the fault is probably the object's own, and it stays: correct it", names.List(unhealthy))
	}
	var others []string
	var until time.Time
	lasting := !wasHealthy
	for _, x := range failed {
		if x.Cluster == unhealthy[0] || wasHealthy && !x.Until.IsZero() && !x.Until.After(now) {
			continue
		}
		others = append(others, x.Cluster)
		if lasting = lasting || x.Until.IsZero(); x.Until.After(until) {
			until = x.Until
		}
	}
	switch {
	case len(others) == 0:
		return ""
	case lasting:
		return fmt.Sprintf("it is not Healthy in %s, and failed in %s, so the fault is probably the object's own, and it stays: correct it, or run `atoll retry`", unhealthy[0], names.List(others))
	}
	return fmt.Sprintf("it is not Healthy in %s, and failed in %s lately, so it stays until %s: correct it, or run `atoll retry`", unhealthy[0], names.List(others), stamp(until))
}

func (d *Degraded) recheckAt(at time.Time) {
	if d.Recheck.IsZero() || at.Before(d.Recheck) {
		d.Recheck = at
	}
}

// ApplicationFailover returns how long objects of the policy are not Healthy in a cluster before they leave it; false if
// they do not leave it for that reason.
func (p *Policy) ApplicationFailover() (after time.Duration, leaves bool) {
	if p == nil || p.spec.ApplicationFailover == nil {
		return 0, false
	}
	return p.spec.ApplicationFailover.After.Duration, true
}

// checkApplicationFailover validates the setting, for policies that no API server has validated.
func checkApplicationFailover(spec *v1alpha1.PlacementSpec) error {
	if f := spec.ApplicationFailover; f != nil && f.After.Duration < v1alpha1.MinApplicationFailover {
		return fmt.Errorf("spec.applicationFailover.after is %s: set it to %s or longer", f.After.Duration, v1alpha1.MinApplicationFailover)
	}
	return nil
}

// isDegraded reports whether the object is to leave a cluster because it is not Healthy there.
func (d *decider) isDegraded(at int32) bool {
	_, is := d.r.Degraded[d.fleet.clusters[at].Name]
	return is
}

// losesCopies reports whether copies of an object that clusters run as a whole would leave without others for them.
func (d *decider) losesCopies(members []member) bool {
	if d.mode == divided || len(d.r.Degraded) == 0 {
		return false
	}
	lost := 0
	for i := range d.holders {
		h := &d.holders[i]
		if h.yields == markDegraded && !slices.ContainsFunc(members, func(m member) bool { return m.at == h.at }) {
			lost++
		}
	}
	return lost > len(members)-holding(members)
}

// degradedLeft returns the clusters that the object leaves because it is not Healthy there.
func (d *decider) degradedLeft(members []member) (out []string) {
	for i := range d.holders {
		h := &d.holders[i]
		if h.yields == markDegraded && !slices.ContainsFunc(members, func(m member) bool { return m.at == h.at }) {
			out = append(out, d.fleet.clusters[h.at].Name)
		}
	}
	return out
}

func (d *decider) degradedText(at int32) string {
	return "the object is not Healthy there since " + stamp(d.r.Degraded[d.fleet.clusters[at].Name])
}
