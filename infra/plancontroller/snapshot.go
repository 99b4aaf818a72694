package plancontroller

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/placing"
)

// snapshot is the state of a namespace that one reconciliation decides by.
type snapshot struct {
	namespace string
	now       time.Time
	// labels are those of the namespace; terminating reports whether it is being deleted.
	labels      labels.Set
	terminating bool
	// plans and applies are sorted by age, oldest first.
	plans     []*v1alpha1.Plan
	applies   []*v1alpha1.Apply
	approvals []*v1alpha1.Approval
	// policies apply to infrastructure and workloads to workloads. Both are sorted by precedence.
	policies, workloads []*approval.Policy
	// proposals are those of the fleet's scheduler for the workloads of the namespace.
	proposals *placing.Proposals
}

func (s *session) snapshot(namespace string) *snapshot {
	out := &snapshot{
		namespace: namespace, now: s.clock.Now(),
		plans:     s.caches.plans.In(namespace),
		applies:   s.caches.applies.In(namespace),
		approvals: s.caches.approvals.In(namespace),
		proposals: s.workloads.Proposals(namespace),
	}
	slices.SortFunc(out.plans, func(a, b *v1alpha1.Plan) int { return byAge(&a.ObjectMeta, &b.ObjectMeta) })
	slices.SortFunc(out.applies, func(a, b *v1alpha1.Apply) int { return byAge(&a.ObjectMeta, &b.ObjectMeta) })
	out.labels, out.terminating = s.caches.namespace(namespace)
	all := approval.Rank(s.policies.of(namespace), out.labels)
	out.policies, out.workloads = approval.WithSubject(all, v1alpha1.SyncInfrastructure), approval.WithSubject(all, v1alpha1.SyncWorkloads)
	return out
}

func byAge(a, b *metav1.ObjectMeta) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func (s *snapshot) plan(name string) *v1alpha1.Plan {
	for _, p := range s.plans {
		if p.Name == name {
			return p
		}
	}
	return nil
}
