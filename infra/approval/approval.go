// Package approval decides what approves a plan: it parses policies, finds those that apply, evaluates their
// rules and windows, and counts approvals.
//
// It is pure: objects and the time come as arguments, and the caller evaluates rules, because it limits how
// long they take.
package approval

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Decision says whether a plan may be carried out, and why.
type Decision struct {
	Approved bool
	// Reason and Message explain it in the Plan's condition Approved.
	Reason, Message string
	// ApprovedBy lists users, and rules as "SyncPolicy NAME: RULE".
	ApprovedBy []string
	// Auto is true if every policy involved has mode Auto.
	Auto bool
	// WindowOpen is true if all of them let applies begin now; OpensAt is when the last of them does, if
	// known.
	WindowOpen bool
	OpensAt    time.Time
}

// Authors are the users who last changed the objects that a plan is about.
type Authors struct {
	Names []string
	// Unknown means that the author of some change is not recorded. It may be anyone, so one approval more
	// is required: then each change has as many from others.
	Unknown bool
}

// Decide evaluates all policies that apply to anything in the plan. Each must be satisfied, by one of its
// rules or by the number of approvals that it requires. A nil policy stands for resources without one.
// authors may be empty if no policy excludes them.
func Decide(plan *v1alpha1.Plan, approvals []*v1alpha1.Approval, policies []*Policy, authors Authors, now time.Time, evaluate Evaluate) Decision {
	v := Decision{Approved: true, WindowOpen: true, Auto: len(policies) > 0}
	var waits []string
	users, others := approvers(plan, approvals)
	byRule := false
	for _, p := range policies {
		v.Auto = v.Auto && p.Auto()
		if open, next := p.windowOpen(now); !open {
			v.WindowOpen = false
			if next.After(v.OpensAt) {
				v.OpensAt = next
			}
		}
		rule, problem := p.approvingRule(plan, evaluate)
		if rule != "" {
			byRule = true
			v.ApprovedBy = append(v.ApprovedBy, p.String()+": "+rule)
			continue
		}
		required, _ := p.required()
		counted, unknown := users, false
		if p.ExcludesAuthors() {
			counted = slices.DeleteFunc(slices.Clone(users), func(name string) bool {
				return plan.Spec.Author != nil && name == plan.Spec.Author.Username || slices.Contains(authors.Names, name)
			})
			if unknown = authors.Unknown && required > 0; unknown {
				required++
			}
		}
		if len(counted) >= required {
			v.ApprovedBy = append(v.ApprovedBy, counted...)
			if required == 0 {
				v.ApprovedBy = append(v.ApprovedBy, p.String())
			}
			continue
		}
		v.Approved = false
		waits = append(waits, waitMessage(p, required, len(counted), len(counted) < len(users), unknown, problem))
	}
	slices.Sort(v.ApprovedBy)
	v.ApprovedBy = slices.Compact(v.ApprovedBy)
	switch {
	case v.Approved && byRule && len(users) == 0:
		v.Reason, v.Message = v1alpha1.ReasonAutoApproved, "Approved by "+strings.Join(v.ApprovedBy, ", ")+"."
	case v.Approved && len(v.ApprovedBy) > 0:
		v.Reason, v.Message = v1alpha1.ReasonApproved, "Approved by "+strings.Join(v.ApprovedBy, ", ")+"."
	case v.Approved:
		v.Reason, v.Message = v1alpha1.ReasonApproved, "No approval is required."
	case len(users) == 0 && others > 0:
		v.Reason = v1alpha1.ReasonOtherDigest
		v.Message = fmt.Sprintf("%s The existing approvals are for another digest: review the plan and approve digest %s.", strings.Join(waits, " "), plan.Status.Digest)
	default:
		v.Reason, v.Message = v1alpha1.ReasonWaiting, strings.Join(waits, " ")
	}
	if !v.Approved {
		v.ApprovedBy = nil
	}
	return v
}

func waitMessage(p *Policy, required, counted int, authorExcluded, unknownAuthor bool, problem error) string {
	text := fmt.Sprintf("%d of %d approvals required by %s.", counted, required, p)
	if p == nil {
		text = "An approval is required."
	}
	if authorExcluded {
		text += " The approvals of the plan's author, and of the users who changed its objects, do not count."
	}
	if unknownAuthor {
		text += " One more is required because the author of some changes is not recorded: to have it recorded, change the specs of these objects."
	}
	if p != nil && p.Invalid != nil {
		text += fmt.Sprintf(" The policy is invalid: %v.", p.Invalid)
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
