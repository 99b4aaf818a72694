package plans

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
)

// workloadCheckInterval is how often a plan with workloads is compared with their proposals.
const workloadCheckInterval = 10 * time.Second

// includesWorkloads reports whether a plan includes the waiting workloads of its namespace. A plan with
// targets, or one that a policy created, does not: a workload that waits for a user's approval would hold up
// the rest.
func includesWorkloads(p *v1alpha1.Plan, s *snapshot) bool {
	return len(s.workloads) > 0 && modeOf(&p.Spec) == change.Normal && !isSpeculative(p) && len(p.Spec.Targets) == 0 && p.Labels[policyLabel] == ""
}

// workloadChanges returns the changes of workloads for a plan, and problems for those that are undecided.
func (r *reconciler) workloadChanges(ctx context.Context, p *v1alpha1.Plan, s *snapshot, selector labels.Selector) ([]*change.Change, []v1alpha1.Problem, error) {
	if !includesWorkloads(p, s) {
		return nil, nil, nil
	}
	return r.workloads.Changes(ctx, p.Namespace, s.workloads, selector)
}
