package cliview

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
)

// ApproveOptions configure Approve.
type ApproveOptions struct {
	// Digest, if set, is the digest that the user reviewed: no other is approved.
	Digest string
	Reason string
	// Yes approves without a prompt.
	Yes bool
}

// Approve approves the current contents of a plan.
func (s *Session) Approve(ctx context.Context, name string, opts ApproveOptions) error {
	p, err := s.applicablePlan(ctx, name)
	if err != nil {
		return err
	}
	if opts.Digest != "" && opts.Digest != p.Status.Digest {
		return fmt.Errorf("plan %s has digest %s, not %s: review it again with `%s`", name, p.Status.Digest, opts.Digest, s.command("show "+name))
	}
	if !hasEffect(p) {
		return fmt.Errorf("plan %s has no changes to approve", name)
	}
	if opts.Digest == "" && !opts.Yes {
		if err := s.confirmApproval(ctx, p); err != nil {
			return err
		}
	}
	return s.approve(ctx, p, opts.Reason)
}

// applicablePlan reads a plan that can be approved and applied.
func (s *Session) applicablePlan(ctx context.Context, name string) (*v1alpha1.Plan, error) {
	p, err := get[v1alpha1.Plan](ctx, s, planKind(), name)
	if err != nil {
		return nil, s.explain(ctx, "read plan "+name, planKind(), name, err)
	}
	switch {
	case p.Status.Phase == v1alpha1.PlanFailed:
		return nil, failedPlan(p)
	case p.Status.Phase == v1alpha1.PlanApplied:
		return nil, fmt.Errorf("plan %s was already applied: create another with `%s`", name, s.command("plan"))
	case !planEnded(p.Status.Phase):
		return nil, fmt.Errorf("plan %s is not ready: check its progress with `%s`", name, s.command("show "+name))
	case len(p.Spec.Objects) > 0:
		return nil, fmt.Errorf("plan %s is speculative, because it was created with -f: `kubectl apply` the files and plan again without -f", name)
	}
	return p, nil
}

// shownDestructive is how many destructive changes a prompt lists.
const shownDestructive = 10

// confirmApproval shows a summary of the plan and prompts.
func (s *Session) confirmApproval(ctx context.Context, p *v1alpha1.Plan) error {
	c := counts(p)
	summary := c.Summary()
	if p.Spec.Mode == v1alpha1.PlanRefreshOnly || !HasChanges(p) {
		summary = fmt.Sprintf("%d changes made outside of Atoll would be recorded in the state.", p.Status.Summary.Drift)
	}
	s.infof("%s\nPlan %[3]s, digest %[2]s (details: `%[4]s`)", summary, p.Status.Digest, p.Name, s.command("show "+p.Name))
	if c.Delete+c.Replace > 0 {
		left := shownDestructive
		stop := errors.New("enough")
		err := s.changes(ctx, p.Name, Filter{Actions: []string{string(change.Delete), string(change.Replace)}}, func(c *change.Change) error {
			if left--; left < 0 {
				return stop
			}
			address := c.Address
			if address.Namespace == s.Namespace {
				address.Namespace = ""
			}
			s.infof("  %s %s", c.Action, printable(address.String()))
			return nil
		})
		if errors.Is(err, stop) {
			s.infof("  and %d more", c.Delete+c.Replace-shownDestructive)
		} else if err != nil {
			return err
		}
	}
	return s.Confirm(ctx, "this plan", "plan "+p.Name, "use --yes, or --digest with the digest that you reviewed")
}

// Confirm prompts whether to approve something, and returns an error unless the answer is yes. remedy is what to do
// where no one can answer.
func (s *Session) Confirm(ctx context.Context, this, name, remedy string) error {
	err := s.Ask(ctx, "Approve "+this+"?", "approve "+name, remedy)
	if errors.Is(err, errDeclined) {
		return fmt.Errorf("%s was not approved", name)
	}
	return err
}

func (s *Session) approve(ctx context.Context, p *v1alpha1.Plan, reason string) error {
	doing := "approve plan " + p.Name
	made, err := create[v1alpha1.Approval](ctx, s, approvalKind(), p.Name+"-", &v1alpha1.ApprovalSpec{Plan: p.Name, Digest: p.Status.Digest, Reason: reason})
	if err != nil {
		return s.explain(ctx, doing, approvalKind(), "", err)
	}
	s.infof("%s created for digest %s", approvalKind().id(made.Name), p.Status.Digest)
	// The server knows who approved, and has set the approver. The lookup is optional.
	all, err := list[v1alpha1.Approval](ctx, s, approvalKind())
	if err != nil || made.Spec.Approver == nil {
		return nil
	}
	for _, a := range all {
		if a.Name != made.Name && a.Spec.Plan == p.Name && a.Spec.Digest == p.Status.Digest && a.Spec.Approver != nil && a.Spec.Approver.Username == made.Spec.Approver.Username {
			s.infof("You have already approved this plan (%s): each user counts once.", approvalKind().id(a.Name))
			break
		}
	}
	return nil
}

// approved reports whether a plan is approved or has an approval. The server decides whether that suffices:
// an apply waits for missing approvals. For a plan that was just computed, it waits for the server's decision.
func (s *Session) approved(ctx context.Context, p *v1alpha1.Plan) (bool, error) {
	p, err := s.waitForDecision(ctx, p)
	if err != nil {
		return false, err
	}
	if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.PlanApproved) {
		return true, nil
	}
	all, err := list[v1alpha1.Approval](ctx, s, approvalKind())
	if err != nil {
		return false, s.explain(ctx, "list the approvals of plan "+p.Name, approvalKind(), "", err)
	}
	for _, a := range all {
		if a.Spec.Plan == p.Name && a.Spec.Digest == p.Status.Digest {
			return true, nil
		}
	}
	return false, nil
}

// waitForDecision returns a plan once the server has decided whether a policy approves it: then the user need
// not approve, which requires a right. The server decides right after planning.
func (s *Session) waitForDecision(ctx context.Context, p *v1alpha1.Plan) (*v1alpha1.Plan, error) {
	wait := min(firstPoll, s.PollInterval)
	for range 8 { // some five seconds
		if meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlanApproved) != nil {
			return p, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("approve plan %s: %w", p.Name, interrupted(ctx))
		case <-s.Clock.After(wait):
			wait = min(wait*2, s.PollInterval)
		}
		is, err := get[v1alpha1.Plan](ctx, s, planKind(), p.Name)
		switch {
		case err == nil:
			p = is
		case !transient(err):
			return nil, s.explain(ctx, "read plan "+p.Name, planKind(), p.Name, err)
		}
	}
	return p, nil
}
