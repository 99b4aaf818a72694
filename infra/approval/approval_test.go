package approval

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

func policyOf(name string, age int, cluster bool, spec v1alpha1.SyncPolicySpec) *Policy {
	meta := &metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))}
	return Parse(meta, &spec, cluster, nil)
}

// The most specific policy takes precedence, then one of the namespace, then the older.
func TestPolicyPrecedence(t *testing.T) {
	prod := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "prod"}}
	all := []*Policy{
		policyOf("all-young", 1, false, v1alpha1.SyncPolicySpec{}),
		policyOf("all-old", 9, false, v1alpha1.SyncPolicySpec{}),
		policyOf("cluster-all", 20, true, v1alpha1.SyncPolicySpec{}),
		policyOf("cluster-prod", 20, true, v1alpha1.SyncPolicySpec{Selector: prod}),
		policyOf("aws", 1, false, v1alpha1.SyncPolicySpec{Providers: []string{"aws"}}),
	}
	for _, c := range []struct {
		tier, provider, want string
	}{
		{"prod", "aws", "cluster-prod"},
		{"test", "aws", "aws"},
		{"test", "dns", "all-old"},
	} {
		for range 5 { // whatever the order that they come in
			all = append(all[1:], all[0])
			if got := Effective(Rank(all, nil), labels.Set{"tier": c.tier}, c.provider); got == nil || got.Name != c.want {
				t.Errorf("%s of %s: %v, want %s", c.tier, c.provider, got, c.want)
			}
		}
	}
	if got := Effective(nil, nil, ""); got != nil {
		t.Errorf("no policies, but %v is effective", got)
	}
	p := policyOf("w", 1, false, v1alpha1.SyncPolicySpec{AppliesTo: []v1alpha1.SyncSubject{v1alpha1.SyncWorkloads}})
	if of := WithSubject(append(all, p), v1alpha1.SyncInfrastructure); len(of) != len(all) {
		t.Error("a policy for workloads applies to infrastructure")
	}
}

// evaluate limits only the cost of a rule.
func evaluate(rule cel.Program, variables map[string]any) (ref.Val, error) {
	out, _, err := rule.Eval(variables)
	return out, err
}

func approvalsOf(digest string, names ...string) (out []*v1alpha1.Approval) {
	for i, name := range names {
		a := &v1alpha1.Approval{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Spec: v1alpha1.ApprovalSpec{Plan: "p", Digest: digest}}
		if name != "" {
			a.Spec.Approver = &v1alpha1.Person{Username: name}
		}
		out = append(out, a)
	}
	return out
}

func TestDecide(t *testing.T) {
	plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.PlanSpec{Author: &v1alpha1.Person{Username: "author"}},
		Status: v1alpha1.PlanStatus{Digest: "d", Summary: v1alpha1.PlanSummary{Create: 2}}}
	number, no := func(n int32) *int32 { return &n }, false
	rule := func(expression string) []v1alpha1.AutoApproval {
		return []v1alpha1.AutoApproval{{Name: "r", Expression: expression}}
	}
	for name, c := range map[string]struct {
		approval  v1alpha1.ApprovalPolicy
		none      bool
		approvals []*v1alpha1.Approval
		reason    string
		by        []string
	}{
		"no policy, no approval": {none: true, reason: v1alpha1.ReasonWaiting},
		"no policy, the author":  {none: true, approvals: approvalsOf("d", "author"), reason: v1alpha1.ReasonApproved, by: []string{"author"}},
		"another digest":         {approvals: approvalsOf("e", "ann"), reason: v1alpha1.ReasonOtherDigest},
		"unknown approver":       {approvals: approvalsOf("d", ""), reason: v1alpha1.ReasonWaiting},
		"same user twice":        {approval: v1alpha1.ApprovalPolicy{Required: number(2)}, approvals: approvalsOf("d", "ann", "ann"), reason: v1alpha1.ReasonWaiting},
		"two":                    {approval: v1alpha1.ApprovalPolicy{Required: number(2)}, approvals: approvalsOf("d", "bob", "ann"), reason: v1alpha1.ReasonApproved, by: []string{"ann", "bob"}},
		"not the author":         {approval: v1alpha1.ApprovalPolicy{AllowAuthor: &no}, approvals: approvalsOf("d", "author"), reason: v1alpha1.ReasonWaiting},
		"none required":          {approval: v1alpha1.ApprovalPolicy{Required: number(0)}, reason: v1alpha1.ReasonApproved, by: []string{"SyncPolicy x"}},
		"a rule":                 {approval: v1alpha1.ApprovalPolicy{Auto: rule("plan.status.summary.create <= 2")}, reason: v1alpha1.ReasonAutoApproved, by: []string{"SyncPolicy x: r"}},
		"rule returns false":     {approval: v1alpha1.ApprovalPolicy{Auto: rule("plan.status.summary.create > 2")}, reason: v1alpha1.ReasonWaiting},
		"rule fails":             {approval: v1alpha1.ApprovalPolicy{Auto: rule("plan.status.nothing == 1")}, reason: v1alpha1.ReasonWaiting},
		"rule is not a bool":     {approval: v1alpha1.ApprovalPolicy{Auto: rule("plan.status.digest")}, reason: v1alpha1.ReasonWaiting},
		"rule does not compile":  {approval: v1alpha1.ApprovalPolicy{Auto: rule("1 +")}, reason: v1alpha1.ReasonWaiting},
		"rule is too expensive": {approval: v1alpha1.ApprovalPolicy{Auto: rule("[1,2,3,4,5,6,7,8,9,0].map(a,[1,2,3,4,5,6,7,8,9,0].map(b,[1,2,3,4,5,6,7,8,9,0].map(c,[1,2,3,4,5,6,7,8,9,0].map(d," +
			"[1,2,3,4,5,6,7,8,9,0].map(e,[1,2,3,4,5,6,7,8,9,0].map(f, plan.status.summary.create)))))).size() > 0")}, reason: v1alpha1.ReasonWaiting},
	} {
		t.Run(name, func(t *testing.T) {
			policies := []*Policy{policyOf("x", 1, false, v1alpha1.SyncPolicySpec{Approval: c.approval})}
			if c.none {
				policies = []*Policy{nil}
			}
			v := Decide(plan, c.approvals, policies, Authors{}, time.Now(), evaluate)
			if v.Reason != c.reason || v.Approved != (len(c.by) > 0) || !slices.Equal(v.ApprovedBy, c.by) || v.Message == "" {
				t.Errorf("got %+v", v)
			}
		})
	}
	// All policies that apply to anything in the plan must be satisfied.
	strict := policyOf("strict", 1, false, v1alpha1.SyncPolicySpec{Approval: v1alpha1.ApprovalPolicy{Required: number(2)}})
	easy := policyOf("easy", 1, false, v1alpha1.SyncPolicySpec{Mode: v1alpha1.SyncAuto, Approval: v1alpha1.ApprovalPolicy{Auto: rule("true")}})
	if v := Decide(plan, approvalsOf("d", "ann"), []*Policy{easy, strict}, Authors{}, time.Now(), evaluate); v.Approved || v.Auto {
		t.Errorf("one of two policies sufficed: %+v", v)
	}
	if v := Decide(plan, nil, []*Policy{easy}, Authors{}, time.Now(), evaluate); !v.Approved || !v.Auto {
		t.Errorf("got %+v", v)
	}
}

// TestAuthorsDoNotApprove: where the author's approval does not count, neither do those of the users who changed
// the objects. An unrecorded author may be any of the approvers.
func TestAuthorsDoNotApprove(t *testing.T) {
	no, two := false, int32(2)
	one := policyOf("x", 1, false, v1alpha1.SyncPolicySpec{Approval: v1alpha1.ApprovalPolicy{AllowAuthor: &no}})
	both := policyOf("x", 1, false, v1alpha1.SyncPolicySpec{Approval: v1alpha1.ApprovalPolicy{AllowAuthor: &no, Required: &two}})
	zero := int32(0)
	none := policyOf("x", 1, false, v1alpha1.SyncPolicySpec{Approval: v1alpha1.ApprovalPolicy{AllowAuthor: &no, Required: &zero}})
	counting := policyOf("x", 1, false, v1alpha1.SyncPolicySpec{})
	for name, c := range map[string]struct {
		policy    *Policy
		author    string
		authors   Authors
		approvals []string
		want      bool
		says      string
	}{
		"of a plan by a policy":            {one, "atoll:infra", Authors{Names: []string{"ann"}}, []string{"ann"}, false, "0 of 1 approvals required by SyncPolicy x. The approvals of the plan's author, and of the users who changed its objects, do not count."},
		"another user":                     {one, "atoll:infra", Authors{Names: []string{"ann"}}, []string{"ann", "bob"}, true, "Approved by bob."},
		"one of several authors":           {one, "atoll:infra", Authors{Names: []string{"ann", "bob"}}, []string{"ann", "bob"}, false, "0 of 1"},
		"of another user's plan":           {one, "bob", Authors{Names: []string{"ann"}}, []string{"ann", "bob"}, false, "0 of 1"},
		"the author counts":                {counting, "atoll:infra", Authors{Names: []string{"ann"}, Unknown: true}, []string{"ann"}, true, "Approved by ann."},
		"an unknown author":                {one, "atoll:infra", Authors{Unknown: true}, []string{"ann"}, false, "1 of 2 approvals required by SyncPolicy x. One more is required because"},
		"an unknown author, two approvals": {one, "atoll:infra", Authors{Unknown: true}, []string{"ann", "bob"}, true, "Approved by ann, bob."},
		"an unknown author, two required":  {both, "carl", Authors{Unknown: true}, []string{"ann", "bob", "carl"}, false, "2 of 3"},
		"none required":                    {none, "carl", Authors{Unknown: true}, nil, true, "Approved by SyncPolicy x."},
	} {
		plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.PlanSpec{Author: &v1alpha1.Person{Username: c.author}}, Status: v1alpha1.PlanStatus{Digest: "d"}}
		v := Decide(plan, approvalsOf("d", c.approvals...), []*Policy{c.policy}, c.authors, time.Now(), evaluate)
		if v.Approved != c.want || !strings.Contains(v.Message, c.says) {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestLabelsOfBefore: an object is under the policies of the labels that it has and had.
func TestLabelsOfBefore(t *testing.T) {
	gold := policyOf("gold", 1, false, v1alpha1.SyncPolicySpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}})
	rest := policyOf("rest", 1, false, v1alpha1.SyncPolicySpec{})
	ranked := Rank([]*Policy{rest, gold}, nil)
	for name, c := range map[string]struct {
		sets []labels.Set
		want []*Policy
	}{
		"unchanged":            {[]labels.Set{{"tier": "gold"}, {"tier": "gold", "a": "b"}}, []*Policy{gold}},
		"the label is dropped": {[]labels.Set{{}, {"tier": "gold"}}, []*Policy{rest, gold}},
		"the label is added":   {[]labels.Set{{"tier": "gold"}, {}}, []*Policy{gold, rest}},
		"not recorded":         {[]labels.Set{{}}, []*Policy{rest}},
	} {
		if got := EffectiveOnAll(ranked, c.sets, "demo"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := EffectiveOnAll([]*Policy{gold}, []labels.Set{{}, {"tier": "gold"}}, "demo"); !slices.Equal(got, []*Policy{nil, gold}) {
		t.Errorf("without a policy for the rest: %v", got)
	}
}

func TestWindows(t *testing.T) {
	nights := policyOf("n", 1, false, v1alpha1.SyncPolicySpec{Mode: v1alpha1.SyncAuto, Windows: []v1alpha1.SyncWindow{
		{Schedule: "0 22 * * 1-5", TimeZone: "Europe/Berlin", Duration: metav1.Duration{Duration: 2 * time.Hour}}}})
	for at, want := range map[string]string{
		"2026-11-23T20:59:59Z": "2026-11-23T21:00:00Z", // a Monday, in winter
		"2026-11-23T21:00:00Z": "open",
		"2026-11-23T22:59:59Z": "open",
		"2026-11-23T23:00:00Z": "2026-11-24T21:00:00Z",
		"2026-11-27T23:00:00Z": "2026-11-30T21:00:00Z", // over the weekend
		"2026-07-06T20:30:00Z": "open",                 // in summer
	} {
		now, _ := time.Parse(time.RFC3339, at)
		open, next := nights.windowOpen(now)
		got := next.UTC().Format(time.RFC3339)
		if open {
			got = "open"
		}
		if got != want {
			t.Errorf("at %s: %s, want %s", at, got, want)
		}
	}
	for _, c := range []struct {
		w    v1alpha1.SyncWindow
		says string
	}{
		{v1alpha1.SyncWindow{Schedule: "every day", Duration: metav1.Duration{Duration: 1}}, "schedule: "},
		{v1alpha1.SyncWindow{Schedule: "@every 5h", Duration: metav1.Duration{Duration: 1}}, "schedule: @every has no fixed start"},
		{v1alpha1.SyncWindow{Schedule: "TZ=UTC 0 1 * * *", Duration: metav1.Duration{Duration: 1}}, "schedule: a time zone is not allowed here"},
		{v1alpha1.SyncWindow{Schedule: "0 1 * * *", TimeZone: "Nowhere/Land", Duration: metav1.Duration{Duration: 1}}, "timeZone: unknown time zone"},
		{v1alpha1.SyncWindow{Schedule: "0 1 * * *"}, "duration: "},
	} {
		if _, err := parseWindow(c.w); err == nil || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.w, err)
		}
	}
}
