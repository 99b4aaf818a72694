// Package taints decides which taints ClusterTaintPolicies add to a Cluster, and when the decision
// may change without a change of the Cluster. It takes the time as an argument.
package taints

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// Policy is a compiled ClusterTaintPolicy. A policy with Err is invalid or unreadable. It adds and
// removes nothing, so the clusters keep the taints that they have from it.
type Policy struct {
	Name string
	Err  error

	created time.Time
	spec    v1alpha1.ClusterTaintPolicySpec
	selects placement.ClusterSelection
}

// Compile compiles a policy.
func Compile(p *v1alpha1.ClusterTaintPolicy) *Policy {
	out := &Policy{Name: p.Name, created: p.CreationTimestamp.Time, spec: p.Spec}
	if out.selects, out.Err = placement.CompileClusterSelector(p.Spec.Clusters); out.Err != nil {
		out.Err = fmt.Errorf("spec.clusters: %w", out.Err)
	}
	return out
}

// Unreadable returns a policy that exists and cannot be read.
func Unreadable(name string, why error) *Policy { return &Policy{Name: name, Err: why} }

// byAge orders policies: the older one comes first.
func byAge(a, b *Policy) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.Name, b.Name))
}

// state is whether the conditions of a policy hold for a cluster.
type state int

const (
	// holds: they hold, and have held as long as required.
	holds state = iota
	// pending: they hold, but not long enough yet.
	pending
	// ceased: at least one does not hold.
	ceased
	// unknown: none is known not to hold, and at least one is unconfirmed.
	unknown
)

// evaluate compares the policy's conditions with those of a cluster. due is when pending conditions
// have held long enough. why describes the conditions that decide.
func (p *Policy) evaluate(c *v1alpha1.Cluster, confirmed bool, now time.Time) (s state, due time.Time, why string) {
	var whys, broken []string
	for _, want := range p.spec.When {
		i := slices.IndexFunc(c.Status.Conditions, func(is metav1.Condition) bool { return is.Type == want.Type })
		switch {
		case want.Type == v1alpha1.ClusterReady && !confirmed:
			s = max(s, unknown)
			continue
		case i < 0:
			broken = append(broken, "condition "+want.Type+" is missing")
			continue
		}
		is := c.Status.Conditions[i]
		text := fmt.Sprintf("condition %s is %s", is.Type, is.Status)
		if is.Reason != "" {
			text += " (" + is.Reason + ")"
		}
		if is.Status != want.Status {
			broken = append(broken, text)
			continue
		}
		if want.For != nil && want.For.Duration > 0 {
			text += " for " + want.For.Duration.String()
			if at := is.LastTransitionTime.Add(want.For.Duration); at.After(now) {
				if s = max(s, pending); at.After(due) {
					due = at
				}
			}
		}
		whys = append(whys, text)
	}
	if len(broken) > 0 {
		return ceased, time.Time{}, strings.Join(broken, ", ")
	}
	return s, due, strings.Join(whys, ", ")
}
