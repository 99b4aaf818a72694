package plans

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// decision states whether a plan may be carried out, and why.
type decision struct {
	approved        bool
	reason, message string
	// approvedBy lists users, and rules as "SyncPolicy NAME: RULE".
	approvedBy []string
	// auto is true if every policy involved has mode Auto.
	auto bool
	// windowOpen is true if all of them let applies begin now; opensAt is when the last of them does, if
	// known.
	windowOpen bool
	opensAt    time.Time
}

// decide evaluates all policies that apply to anything in the plan. Each must be satisfied, by one of its
// rules or by the number of approvals that it requires. A nil policy stands for resources without one.
func decide(ctx context.Context, plan *v1alpha1.Plan, approvals []*v1alpha1.Approval, policies []*policy, now time.Time) decision {
	v := decision{approved: true, windowOpen: true, auto: len(policies) > 0}
	var waits []string
	users, others := approvers(plan, approvals)
	byRule := false
	for _, p := range policies {
		v.auto = v.auto && p.auto()
		if open, next := p.windowOpen(now); !open {
			v.windowOpen = false
			if next.After(v.opensAt) {
				v.opensAt = next
			}
		}
		rule, problem := p.approvingRule(ctx, plan)
		if rule != "" {
			byRule = true
			v.approvedBy = append(v.approvedBy, p.String()+": "+rule)
			continue
		}
		required, author := p.required()
		counted := users
		if !author && plan.Spec.Author != nil {
			counted = slices.DeleteFunc(slices.Clone(users), func(name string) bool { return name == plan.Spec.Author.Username })
		}
		if len(counted) >= required {
			v.approvedBy = append(v.approvedBy, counted...)
			if required == 0 {
				v.approvedBy = append(v.approvedBy, p.String())
			}
			continue
		}
		v.approved = false
		waits = append(waits, waitMessage(p, required, len(counted), len(counted) < len(users), problem))
	}
	slices.Sort(v.approvedBy)
	v.approvedBy = slices.Compact(v.approvedBy)
	switch {
	case v.approved && byRule && len(users) == 0:
		v.reason, v.message = v1alpha1.ReasonAutoApproved, "Approved by "+strings.Join(v.approvedBy, ", ")+"."
	case v.approved && len(v.approvedBy) > 0:
		v.reason, v.message = v1alpha1.ReasonApproved, "Approved by "+strings.Join(v.approvedBy, ", ")+"."
	case v.approved:
		v.reason, v.message = v1alpha1.ReasonApproved, "No approval is required."
	case len(users) == 0 && others > 0:
		v.reason = v1alpha1.ReasonOtherDigest
		v.message = fmt.Sprintf("%s The existing approvals are for another digest: review the plan and approve digest %s.", strings.Join(waits, " "), plan.Status.Digest)
	default:
		v.reason, v.message = v1alpha1.ReasonWaiting, strings.Join(waits, " ")
	}
	if !v.approved {
		v.approvedBy = nil
	}
	return v
}

func waitMessage(p *policy, required, counted int, authorExcluded bool, problem error) string {
	text := fmt.Sprintf("%d of %d approvals required by %s.", counted, required, p)
	if p == nil {
		text = "An approval is required."
	}
	if authorExcluded {
		text += " The approval of the plan's author does not count."
	}
	if p != nil && p.invalid != nil {
		text += fmt.Sprintf(" The policy is invalid: %v.", p.invalid)
	}
	if problem != nil {
		text += fmt.Sprintf(" Automatic approval failed: %v.", problem)
	}
	return text
}

// approvers returns the users who approve of the plan's digest, sorted and without duplicates, and the number
// of approvals for another digest.
func approvers(plan *v1alpha1.Plan, approvals []*v1alpha1.Approval) (names []string, others int) {
	for _, a := range approvals {
		switch {
		case a.Spec.Plan != plan.Name || a.DeletionTimestamp != nil:
		case plan.Status.Digest == "" || a.Spec.Digest != plan.Status.Digest:
			others++
		case a.Spec.Approver == nil || a.Spec.Approver.Username == "":
			// The approval did not pass this API's admission, so its author is unknown.
		default:
			names = append(names, a.Spec.Approver.Username)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), others
}
