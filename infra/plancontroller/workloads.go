package plancontroller

import (
	"time"

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
