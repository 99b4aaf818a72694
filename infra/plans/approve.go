package plans

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// verdict is whether a plan may be carried out, and why.
type verdict struct {
	approved        bool
	reason, message string
	// by are users, and rules as "SyncPolicy NAME: RULE".
	by []string
	// auto says that every policy concerned is one that carries out by itself.
	auto bool
	// open says that each of them lets applies begin now; opens when all do, as far as can be told.
	open  bool
	opens time.Time
}

// judge decides by all policies that anything in the plan is under: each has to be satisfied, by one of its rules or by
// as many persons as it asks for. A nil policy is none.
func judge(ctx context.Context, plan *v1alpha1.Plan, approvals []*v1alpha1.Approval, policies []*policy, now time.Time) verdict {
	v := verdict{approved: true, open: true, auto: len(policies) > 0}
	var waits []string
	persons, others := approvers(plan, approvals)
	byRule := false
	for _, p := range policies {
		v.auto = v.auto && p.auto()
		if open, next := p.opens(now); !open {
			v.open = false
			if next.After(v.opens) {
				v.opens = next
			}
		}
		rule, problem := p.rule(ctx, plan)
		if rule != "" {
			byRule = true
			v.by = append(v.by, p.String()+": "+rule)
			continue
		}
		required, author := p.required()
		counted := persons
		if !author && plan.Spec.Author != nil {
			counted = slices.DeleteFunc(slices.Clone(persons), func(name string) bool { return name == plan.Spec.Author.Username })
		}
		if len(counted) >= required {
			v.by = append(v.by, counted...)
			if required == 0 {
				v.by = append(v.by, p.String())
			}
			continue
		}
		v.approved = false
		waits = append(waits, waiting(p, required, len(counted), len(counted) < len(persons), problem))
	}
	slices.Sort(v.by)
	v.by = slices.Compact(v.by)
	switch {
	case v.approved && byRule && len(persons) == 0:
		v.reason, v.message = v1alpha1.ReasonAutoApproved, "Approved by "+strings.Join(v.by, ", ")+"."
	case v.approved && len(v.by) > 0:
		v.reason, v.message = v1alpha1.ReasonApproved, "Approved by "+strings.Join(v.by, ", ")+"."
	case v.approved:
		v.reason, v.message = v1alpha1.ReasonApproved, "Nobody has to approve."
	case len(persons) == 0 && others > 0:
		v.reason = v1alpha1.ReasonOtherDigest
		v.message = fmt.Sprintf("%s The approvals that there are name another digest: look at the plan, and approve of %s.", strings.Join(waits, " "), plan.Status.Digest)
	default:
		v.reason, v.message = v1alpha1.ReasonWaiting, strings.Join(waits, " ")
	}
	if !v.approved {
		v.by = nil
	}
	return v
}

func waiting(p *policy, required, counted int, without bool, problem error) string {
	text := fmt.Sprintf("%d of %d approvals that %s asks for are there.", counted, required, p)
	if p == nil {
		text = "Somebody has to approve of it."
	}
	if without {
		text += " That of the plan's author does not count."
	}
	if p != nil && p.broken != nil {
		text += fmt.Sprintf(" The policy cannot be followed: %v.", p.broken)
	}
	if problem != nil {
		text += fmt.Sprintf(" No person is needed if one of its rules says true, but: %v.", problem)
	}
	return text
}

// approvers are those who approve of the digest, sorted, each once, and how many approvals name another.
func approvers(plan *v1alpha1.Plan, approvals []*v1alpha1.Approval) (names []string, others int) {
	for _, a := range approvals {
		switch {
		case a.Spec.Plan != plan.Name || a.DeletionTimestamp != nil:
		case plan.Status.Digest == "" || a.Spec.Digest != plan.Status.Digest:
			others++
		case a.Spec.Approver == nil || a.Spec.Approver.Username == "":
			// Not by way of this API's admission: nobody knows whose it is.
		default:
			names = append(names, a.Spec.Approver.Username)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), others
}
