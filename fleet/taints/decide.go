package taints

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Decision is the set of taints that a cluster should have from policies.
type Decision struct {
	// Taints for Cluster.status.policyTaints, in a fixed order.
	Taints []v1alpha1.PolicyTaint
	// Next is when the decision may change although the Cluster and the policies do not; zero if it
	// cannot.
	Next time.Time
	// Changes are the differences to the recorded taints.
	Changes []Change
	// Omitted are taints that exceed v1alpha1.MaxPolicyTaints.
	Omitted []v1alpha1.PolicyTaint
}

// Change is a taint that a policy adds or removes.
type Change struct {
	Taint v1alpha1.PolicyTaint
	Added bool
	Why   string
}

// Decide decides about one cluster. policies are all policies: a recorded taint of another one is
// removed. confirmed is whether the Cluster's condition Ready was observed since the caller started: a
// condition from before a restart neither adds nor removes taints.
//
// Each policy has its own record of a taint, so a taint stays until the last policy that wants it is
// gone, and no policy affects the taints of the spec.
func Decide(c *v1alpha1.Cluster, policies []*Policy, confirmed bool, now time.Time) Decision {
	r := round{cluster: c, confirmed: confirmed, now: now, sources: c.TaintsWithTime(), recorded: make([]record, len(c.Status.PolicyTaints))}
	for i := range c.Status.PolicyTaints {
		r.recorded[i] = record{PolicyTaint: *c.Status.PolicyTaints[i].DeepCopy(), why: "the policy does not exist"}
	}
	for _, p := range slices.SortedFunc(slices.Values(policies), byAge) {
		r.apply(p)
	}
	return r.decision()
}

// With returns a cluster's taints from policies if one policy was created or changed, and when that may change.
// The taints of other policies stay.
func With(c *v1alpha1.Cluster, p *Policy, now time.Time) ([]v1alpha1.PolicyTaint, Decision) {
	var others []v1alpha1.PolicyTaint
	own := c.DeepCopy()
	own.Status.PolicyTaints = nil
	for _, t := range c.Status.PolicyTaints {
		if t.Policy == p.Name {
			own.Status.PolicyTaints = append(own.Status.PolicyTaints, t)
		} else {
			others = append(others, t)
		}
	}
	d := Decide(own, []*Policy{p}, true, now)
	return append(others, d.Taints...), d
}

// record is a recorded taint, and why it is removed unless it is kept.
type record struct {
	v1alpha1.PolicyTaint
	kept bool
	why  string
}

// round is one decision in progress.
type round struct {
	cluster   *v1alpha1.Cluster
	confirmed bool
	now       time.Time
	// sources are all taints that the cluster has, with their times.
	sources  []v1alpha1.Taint
	recorded []record
	added    []Change
	next     time.Time
}

func (r *round) apply(p *Policy) {
	if p.Err != nil {
		for i := range r.recorded {
			r.recorded[i].kept = r.recorded[i].kept || r.recorded[i].Policy == p.Name
		}
		return
	}
	// A policy must not select by what policies do: it would undo its own decision.
	before := *r.cluster
	before.Status.PolicyTaints = nil
	if !p.selects.Selects(&before) {
		r.excuse(p, "the policy does not select the cluster")
		return
	}
	r.excuse(p, "the policy does not have the taint")
	s, due, why := p.evaluate(&before, r.confirmed, r.now)
	for _, t := range p.spec.Taints {
		i := slices.IndexFunc(r.recorded, func(o record) bool { return o.Policy == p.Name && o.Same(t.Key, t.Value, t.Effect) })
		switch {
		case i >= 0:
			r.keep(&r.recorded[i], p, s, why)
		case s == holds:
			r.added = append(r.added, Change{Added: true, Why: why, Taint: v1alpha1.PolicyTaint{Policy: p.Name, Key: t.Key, Value: t.Value, Effect: t.Effect, TimeAdded: r.age(t)}})
		case s == pending:
			r.lookAgain(due)
		}
	}
}

// excuse sets why taints of a policy are removed unless they are kept.
func (r *round) excuse(p *Policy, why string) {
	for i := range r.recorded {
		if r.recorded[i].Policy == p.Name {
			r.recorded[i].why = why
		}
	}
}

// keep decides whether a recorded taint stays. Conditions that hold again need not do so for long: the
// taint was never away.
func (r *round) keep(t *record, p *Policy, s state, why string) {
	t.kept = true
	if t.TimeAdded.After(r.now) { // by a clock that was ahead
		t.TimeAdded = r.seconds()
	}
	switch s {
	case unknown:
		return
	case holds, pending:
		t.CeasedAt = nil
		return
	case ceased:
	}
	if t.CeasedAt == nil || t.CeasedAt.After(r.now) {
		at := r.seconds()
		t.CeasedAt = &at
	}
	var keepFor time.Duration
	if p.spec.KeepFor != nil {
		keepFor = p.spec.KeepFor.Duration
	}
	if end := t.CeasedAt.Add(keepFor); end.After(r.now) {
		r.lookAgain(end)
		return
	}
	t.kept, t.why = false, why
}

// age returns since when the cluster has a new taint: if it has an equal one, since then, so that
// tolerations do not start again.
func (r *round) age(t v1alpha1.TaintTemplate) metav1.Time {
	at := r.seconds()
	for _, o := range r.sources {
		if o.Key == t.Key && o.Value == t.Value && o.Effect == t.Effect && o.TimeAdded != nil && o.TimeAdded.Before(&at) {
			return *o.TimeAdded
		}
	}
	return at
}

// seconds returns now as the API stores it.
func (r *round) seconds() metav1.Time { return metav1.NewTime(r.now.Truncate(time.Second)) }

func (r *round) lookAgain(at time.Time) {
	if r.next.IsZero() || at.Before(r.next) {
		r.next = at
	}
}

func (r *round) decision() Decision {
	d := Decision{Next: r.next}
	for i := range r.recorded {
		if t := &r.recorded[i]; t.kept {
			d.Taints = append(d.Taints, t.PolicyTaint)
		} else {
			d.Changes = append(d.Changes, Change{Taint: t.PolicyTaint, Why: t.why})
		}
	}
	for _, a := range r.added {
		if len(d.Taints) >= v1alpha1.MaxPolicyTaints {
			d.Omitted = append(d.Omitted, a.Taint)
			continue
		}
		d.Taints, d.Changes = append(d.Taints, a.Taint), append(d.Changes, a)
	}
	slices.SortFunc(d.Taints, func(a, b v1alpha1.PolicyTaint) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Effect, b.Effect), cmp.Compare(a.Value, b.Value))
	})
	return d
}
