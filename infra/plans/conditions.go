package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
)

// checkInterval is the least time between two checks of a plan for staleness, or for the policies that apply
// to it.
const checkInterval = 3 * time.Second

// namespaceState is what the reconciler keeps in memory about a namespace.
type namespaceState struct {
	// changes counts writes of objects and states.
	changes int64
	// firstWrite and lastWrite bound the writes that no policy has planned yet; zero if there are none.
	firstWrite, lastWrite time.Time
	plans                 map[string]*planState // by UID
	// drift is when a policy last started a drift check, by the policy's label.
	drift map[string]time.Time
}

// planState is what the reconciler keeps in memory about a plan.
type planState struct {
	changes    int64 // changes of the namespace at the last staleness check
	checkedAt  time.Time
	policies   []*approval.Policy
	policiesAt time.Time
	candidates []*approval.Policy // the policies that were chosen from; an edited policy is a new pointer
}

// observeWrite records a write that Feed reports.
func (r *reconciler) observeWrite(namespace string, state bool) {
	r.mu.Lock()
	n := r.namespaceState(namespace)
	n.changes++
	if !state {
		n.lastWrite = r.clock.Now()
		if n.firstWrite.IsZero() {
			n.firstWrite = n.lastWrite
		}
	}
	r.mu.Unlock()
	r.queue.AddAfter(namespace, checkInterval/3)
}

// namespaceState returns the state of a namespace. The caller holds the lock.
func (r *reconciler) namespaceState(namespace string) *namespaceState {
	n := r.namespaces[namespace]
	if n == nil {
		n = &namespaceState{plans: map[string]*planState{}}
		r.namespaces[namespace] = n
	}
	return n
}

// planState returns the state of a plan and the namespace's count of changes. Only one worker reconciles a
// namespace at a time, so the plan's state needs no lock.
func (r *reconciler) planState(p *v1alpha1.Plan) (*planState, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.namespaceState(p.Namespace)
	state := n.plans[string(p.UID)]
	if state == nil {
		state = &planState{changes: -1}
		n.plans[string(p.UID)] = state
	}
	return state, n.changes
}

// dropPlanStates removes the states of plans that are gone.
func (r *reconciler) dropPlanStates(s *snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.namespaces[s.namespace]
	if n == nil {
		return
	}
	for uid := range n.plans {
		if !slices.ContainsFunc(s.plans, func(p *v1alpha1.Plan) bool { return string(p.UID) == uid }) {
			delete(n.plans, uid)
		}
	}
}

// isSpeculative reports whether a plan supposes objects that do not exist.
func isSpeculative(p *v1alpha1.Plan) bool { return len(p.Spec.Objects) > 0 }

// hasNoEffect reports whether applying a plan would do nothing at all.
func hasNoEffect(p *v1alpha1.Plan) bool {
	s := p.Status.Summary
	return s.Changes() == 0 && s.Read == 0 && s.Drift == 0
}

// updatePlanConditions sets the conditions Approved and Current of all plans that can still be applied.
func (r *reconciler) updatePlanConditions(ctx context.Context, s *snapshot) error {
	var errs []error
	for _, p := range s.plans {
		if p.Status.Phase != v1alpha1.PlanPlanned || p.DeletionTimestamp != nil {
			continue
		}
		if err := r.updateConditions(ctx, s, p); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("update the conditions of plan %s: %w", p.Name, err))
		}
	}
	r.dropPlanStates(s)
	return errors.Join(errs...)
}

func (r *reconciler) updateConditions(ctx context.Context, s *snapshot, p *v1alpha1.Plan) error {
	approved, err := r.approvedCondition(ctx, s, p)
	if err != nil {
		return err
	}
	stale, err := r.staleReason(ctx, s, p)
	if err != nil {
		return err
	}
	change := func(p *v1alpha1.Plan) bool {
		if p.Status.Phase != v1alpha1.PlanPlanned {
			return false
		}
		changed := setCondition(&p.Status.Conditions, p.Generation, s.now, approved)
		if stale != "" {
			changed = setCondition(&p.Status.Conditions, p.Generation, s.now, controllers.Condition(v1alpha1.PlanCurrent, false, v1alpha1.ReasonMoved, stale)) || changed
		}
		return changed
	}
	if !change(p.DeepCopy()) {
		return nil
	}
	_, err = r.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, change)
	return err
}

func (r *reconciler) approvedCondition(ctx context.Context, s *snapshot, p *v1alpha1.Plan) (metav1.Condition, error) {
	switch {
	case isSpeculative(p):
		return controllers.Condition(v1alpha1.PlanApproved, false, v1alpha1.ReasonSpeculative,
			"The plan is speculative and cannot be applied: create its objects with kubectl apply, then create another plan."), nil
	case hasNoEffect(p):
		return controllers.Condition(v1alpha1.PlanApproved, true, v1alpha1.ReasonNothingToDo, "No changes to apply."), nil
	}
	policies, err := r.policiesOf(ctx, s, p, false)
	if err != nil {
		return metav1.Condition{}, err
	}
	v := approval.Decide(p, s.approvals, policies, s.now, evaluateWithin(ctx))
	return controllers.Condition(v1alpha1.PlanApproved, v.Approved, v.Reason, v.Message), nil
}

// effectiveChanges reads the changes of a plan that have an effect, until visit returns false.
func (r *reconciler) effectiveChanges(ctx context.Context, p *v1alpha1.Plan, visit func(*change.Change) bool) error {
	contents, store := infra.Contents(&p.Status), apistore.NewPlanStore(r.dynamic, p)
	for n := range contents.Chunks {
		chunk := &contents.Chunks[n]
		if chunk.Changes == chunk.Actions[change.NoOp] && p.Status.Summary.Drift == 0 {
			continue
		}
		pieces, err := store.Shown(ctx, n)
		if err != nil {
			return err
		}
		enough := false
		err = chunk.Read(pieces, true, nil, func(c *change.Change) bool {
			if c.Action == change.NoOp && c.Drift == nil && c.Importing == "" {
				return true
			}
			enough = !visit(c)
			return !enough
		})
		if err != nil {
			return fmt.Errorf("chunk %d of plan %s: %w", n, p.Name, err)
		}
		if enough {
			return nil
		}
	}
	return nil
}

func refOf(a change.Address) expr.Ref {
	ref := expr.Ref{Type: a.Type, Namespace: a.Namespace, Name: a.Name}
	if a.Data {
		ref.Kind = expr.Data
	}
	return ref
}

// subject returns the labels and the Provider by which policies select a change.
func (r *reconciler) subject(ref expr.Ref) (labels.Set, string) {
	if o := r.inventory.Object(ref); o != nil {
		return o.Labels, strings.TrimSuffix(o.Group, "."+v1alpha1.ProvidersDomain)
	}
	if state := r.inventory.State(ref); state != nil {
		return nil, state.Spec.Provider
	}
	return nil, ""
}

// policiesOf returns the policies that apply to anything in a plan. It includes nil if none applies to some
// of it. fresh bypasses the result of a recent call.
func (r *reconciler) policiesOf(ctx context.Context, s *snapshot, p *v1alpha1.Plan, fresh bool) ([]*approval.Policy, error) {
	if only, is := approval.Single(s.policies); is && (!includesWorkloads(p, s) || p.Status.Summary.Place+p.Status.Summary.Delete == 0) {
		return []*approval.Policy{only}, nil
	}
	holding := slices.Concat(s.policies, s.workloads)
	state, _ := r.planState(p)
	if !fresh && slices.Equal(state.candidates, holding) && s.now.Sub(state.policiesAt) < checkInterval {
		return state.policies, nil
	}
	var out []*approval.Policy
	var workloads []change.Address
	err := r.effectiveChanges(ctx, p, func(c *change.Change) bool {
		if _, _, is := c.Address.Workload(); is {
			workloads = append(workloads, c.Address)
			return true
		}
		a := c.Address
		if a.Namespace == "" {
			a.Namespace = p.Namespace
		}
		set, provider := r.subject(refOf(a))
		if one := approval.Effective(s.policies, set, provider); !slices.Contains(out, one) {
			out = append(out, one)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	ofWorkloads, err := s.proposals.Policies(ctx, s.workloads, workloads)
	if err != nil {
		return nil, err
	}
	for _, one := range ofWorkloads {
		if !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	state.policies, state.policiesAt, state.candidates = out, s.now, holding
	return out, nil
}

// staleReason returns a message that names the first change whose preconditions no longer hold, or the empty
// string. A stale plan stays stale.
func (r *reconciler) staleReason(ctx context.Context, s *snapshot, p *v1alpha1.Plan) (string, error) {
	for _, c := range p.Status.Conditions {
		if c.Type == v1alpha1.PlanCurrent && c.Status == metav1.ConditionFalse {
			return c.Message, nil
		}
	}
	state, changes := r.planState(p)
	withWorkloads := includesWorkloads(p, s) && p.Status.Summary.Place+p.Status.Summary.Delete > 0
	if state.changes == changes && !withWorkloads || isSpeculative(p) {
		return "", nil
	}
	if wait := checkInterval - s.now.Sub(state.checkedAt); !state.checkedAt.IsZero() && wait > 0 {
		r.requeueAfter(s.namespace, wait)
		return "", nil
	}
	var found string
	var failed error
	err := r.effectiveChanges(ctx, p, func(c *change.Change) bool {
		if _, _, is := c.Address.Workload(); is {
			var stale bool
			if stale, failed = s.proposals.IsStale(ctx, c); stale {
				found = fmt.Sprintf("%s or its proposal changed after it was planned and would be rejected. Create another plan.", c.Address)
			}
			return found == "" && failed == nil
		}
		a := c.Address
		if a.Namespace == "" {
			a.Namespace = p.Namespace
		}
		ref := refOf(a)
		if infra.IsStale(r.inventory.Object(ref), r.inventory.State(ref), c.Preconditions) {
			found = fmt.Sprintf("%s changed after it was planned and would be rejected. Create another plan.", c.Address)
		}
		return found == ""
	})
	if err := errors.Join(err, failed); err != nil {
		return "", err
	}
	if withWorkloads {
		r.requeueAfter(s.namespace, workloadCheckInterval) // proposals are not watched
	}
	state.changes, state.checkedAt = changes, s.now
	return found, nil
}
