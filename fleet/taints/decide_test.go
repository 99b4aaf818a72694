package taints

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// minute returns a time of the tests' hour.
func minute(m int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 1, 9, 0, 0, 0, time.UTC).Add(time.Duration(m) * time.Minute))
}

func minutes(m int) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(m) * time.Minute}
}

func condition(kind string, status metav1.ConditionStatus, since int) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: "Checked", LastTransitionTime: minute(since)}
}

// disks returns a policy that taints clusters whose disks are unhealthy.
func disks(edit func(*v1alpha1.ClusterTaintPolicySpec)) *Policy {
	p := &v1alpha1.ClusterTaintPolicy{ObjectMeta: metav1.ObjectMeta{Name: "disks", CreationTimestamp: minute(-60)}}
	p.Spec.When = []v1alpha1.ConditionRequirement{{Type: "DisksHealthy", Status: metav1.ConditionFalse}}
	p.Spec.Taints = []v1alpha1.TaintTemplate{{Key: "broken", Value: "disk", Effect: v1alpha1.TaintNoExecute}}
	if edit != nil {
		edit(&p.Spec)
	}
	return Compile(p)
}

func taint(policy string, added int) v1alpha1.PolicyTaint {
	return v1alpha1.PolicyTaint{Policy: policy, Key: "broken", Value: "disk", Effect: v1alpha1.TaintNoExecute, TimeAdded: minute(added)}
}

func ceasedAt(t v1alpha1.PolicyTaint, m int) v1alpha1.PolicyTaint {
	at := minute(m)
	t.CeasedAt = &at
	return t
}

func show(d Decision) string {
	var out []string
	for _, t := range d.Taints {
		line := fmt.Sprintf("%s %s=%s:%s @%s", t.Policy, t.Key, t.Value, t.Effect, t.TimeAdded.UTC().Format("15:04"))
		if t.CeasedAt != nil {
			line += " ceased " + t.CeasedAt.UTC().Format("15:04")
		}
		out = append(out, line)
	}
	for _, c := range d.Changes {
		sign := "-"
		if c.Added {
			sign = "+"
		}
		out = append(out, fmt.Sprintf("%s %s: %s", sign, c.Taint.Policy, c.Why))
	}
	if !d.Next.IsZero() {
		out = append(out, "next "+d.Next.UTC().Format("15:04"))
	}
	return strings.Join(out, "\n")
}

// TestDecide decides at 9:30.
func TestDecide(t *testing.T) {
	broken := []metav1.Condition{condition("DisksHealthy", metav1.ConditionFalse, 20)}
	healthy := []metav1.Condition{condition("DisksHealthy", metav1.ConditionTrue, 20)}
	forLong := func(m int) func(*v1alpha1.ClusterTaintPolicySpec) {
		return func(s *v1alpha1.ClusterTaintPolicySpec) { s.When[0].For = minutes(m) }
	}
	keepFor := func(m int) func(*v1alpha1.ClusterTaintPolicySpec) {
		return func(s *v1alpha1.ClusterTaintPolicySpec) { s.KeepFor = minutes(m) }
	}
	notReady := func(s *v1alpha1.ClusterTaintPolicySpec) {
		s.When[0] = v1alpha1.ConditionRequirement{Type: v1alpha1.ClusterReady, Status: metav1.ConditionFalse}
	}
	with := func(p *Policy, name string, created int) *Policy {
		p.Name, p.created = name, minute(created).Time
		return p
	}
	for name, tt := range map[string]struct {
		conditions  []metav1.Condition
		spec        []v1alpha1.Taint
		recorded    []v1alpha1.PolicyTaint
		policies    []*Policy
		unconfirmed bool
		want        string
	}{
		"holds": {conditions: broken, policies: []*Policy{disks(nil)},
			want: "disks broken=disk:NoExecute @09:30\n+ disks: condition DisksHealthy is False (Checked)"},
		"stays":                   {conditions: broken, recorded: []v1alpha1.PolicyTaint{taint("disks", 21)}, policies: []*Policy{disks(nil)}, want: "disks broken=disk:NoExecute @09:21"},
		"does not hold":           {conditions: healthy, policies: []*Policy{disks(nil)}},
		"is missing":              {policies: []*Policy{disks(nil)}},
		"Unknown is not False":    {conditions: []metav1.Condition{condition("DisksHealthy", metav1.ConditionUnknown, 20)}, policies: []*Policy{disks(nil)}},
		"Unknown can be required": {conditions: []metav1.Condition{condition("DisksHealthy", metav1.ConditionUnknown, 20)}, policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) { s.When[0].Status = metav1.ConditionUnknown })}, want: "disks broken=disk:NoExecute @09:30\n+ disks: condition DisksHealthy is Unknown (Checked)"},
		"not long enough":         {conditions: broken, policies: []*Policy{disks(forLong(15))}, want: "next 09:35"},
		"long enough": {conditions: broken, policies: []*Policy{disks(forLong(10))},
			want: "disks broken=disk:NoExecute @09:30\n+ disks: condition DisksHealthy is False (Checked) for 10m0s"},
		"a checker's clock is ahead": {conditions: []metav1.Condition{condition("DisksHealthy", metav1.ConditionFalse, 40)}, policies: []*Policy{disks(forLong(5))}, want: "next 09:45"},
		"one of two": {conditions: broken, policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) {
			s.When = append(s.When, v1alpha1.ConditionRequirement{Type: "FansHealthy", Status: metav1.ConditionFalse})
		})}},
		"both of two": {conditions: append([]metav1.Condition{condition("FansHealthy", metav1.ConditionFalse, 29)}, broken...), policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) {
			s.When = append(s.When, v1alpha1.ConditionRequirement{Type: "FansHealthy", Status: metav1.ConditionFalse, For: minutes(2)})
		})}, want: "next 09:31"},
		"ceases": {conditions: healthy, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)}, policies: []*Policy{disks(nil)},
			want: "- disks: condition DisksHealthy is True (Checked)"},
		"vanishes": {recorded: []v1alpha1.PolicyTaint{taint("disks", 1)}, policies: []*Policy{disks(nil)},
			want: "- disks: condition DisksHealthy is missing"},
		"is kept": {conditions: healthy, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)}, policies: []*Policy{disks(keepFor(10))},
			want: "disks broken=disk:NoExecute @09:01 ceased 09:30\nnext 09:40"},
		"is kept longer": {conditions: healthy, recorded: []v1alpha1.PolicyTaint{ceasedAt(taint("disks", 1), 25)}, policies: []*Policy{disks(keepFor(10))},
			want: "disks broken=disk:NoExecute @09:01 ceased 09:25\nnext 09:35"},
		"was kept long enough": {conditions: healthy, recorded: []v1alpha1.PolicyTaint{ceasedAt(taint("disks", 1), 20)}, policies: []*Policy{disks(keepFor(10))},
			want: "- disks: condition DisksHealthy is True (Checked)"},
		"holds again while kept, not for long yet": {conditions: broken, recorded: []v1alpha1.PolicyTaint{ceasedAt(taint("disks", 1), 15)},
			policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) { forLong(60)(s); keepFor(10)(s) })},
			want:     "disks broken=disk:NoExecute @09:01"},
		"a former clock was ahead": {conditions: healthy, recorded: []v1alpha1.PolicyTaint{ceasedAt(taint("disks", 50), 55)}, policies: []*Policy{disks(keepFor(10))},
			want: "disks broken=disk:NoExecute @09:30 ceased 09:30\nnext 09:40"},
		"the policy was deleted": {conditions: broken, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)}, want: "- disks: the policy does not exist"},
		"the policy is invalid": {conditions: healthy, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)},
			policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) {
				s.Clusters = &v1alpha1.ClusterSelector{Expression: "cluster."}
			})},
			want: "disks broken=disk:NoExecute @09:01"},
		"an invalid policy adds nothing": {conditions: broken,
			policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) {
				s.Clusters = &v1alpha1.ClusterSelector{Expression: "cluster."}
			})}},
		"the policy cannot be read": {conditions: healthy, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)},
			policies: []*Policy{Unreadable("disks", errors.New("no"))}, want: "disks broken=disk:NoExecute @09:01"},
		"another cluster": {conditions: broken, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)},
			policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) {
				s.Clusters = &v1alpha1.ClusterSelector{Names: []string{"west"}}
				keepFor(10)(s)
			})}, want: "- disks: the policy does not select the cluster"},
		"another value": {conditions: broken, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)},
			policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) { s.Taints[0].Value = "fan" })},
			want:     "disks broken=fan:NoExecute @09:30\n- disks: the policy does not have the taint\n+ disks: condition DisksHealthy is False (Checked)"},
		"two policies": {conditions: broken, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)}, policies: []*Policy{with(disks(nil), "newer", 5), disks(nil)},
			want: "disks broken=disk:NoExecute @09:01\nnewer broken=disk:NoExecute @09:01\n+ newer: condition DisksHealthy is False (Checked)"},
		"one of two policies is deleted": {conditions: broken, recorded: []v1alpha1.PolicyTaint{taint("disks", 1), taint("newer", 1)}, policies: []*Policy{with(disks(nil), "newer", 5)},
			want: "newer broken=disk:NoExecute @09:01\n- disks: the policy does not exist"},
		"a user set it first": {conditions: broken, spec: []v1alpha1.Taint{{Key: "broken", Value: "disk", Effect: v1alpha1.TaintNoExecute, TimeAdded: new(minute(3))}}, policies: []*Policy{disks(nil)},
			want: "disks broken=disk:NoExecute @09:03\n+ disks: condition DisksHealthy is False (Checked)"},
		"a former leader's Ready adds nothing": {conditions: []metav1.Condition{condition("Ready", metav1.ConditionFalse, 1)}, policies: []*Policy{disks(notReady)}, unconfirmed: true},
		"a former leader's Ready removes nothing": {conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue, 1)}, recorded: []v1alpha1.PolicyTaint{ceasedAt(taint("disks", 1), 2)},
			policies: []*Policy{disks(notReady)}, unconfirmed: true, want: "disks broken=disk:NoExecute @09:01 ceased 09:02"},
		"Ready with another one that does not hold": {conditions: []metav1.Condition{condition("Ready", metav1.ConditionFalse, 1)}, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)}, unconfirmed: true,
			policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) {
				s.When = append(s.When, v1alpha1.ConditionRequirement{Type: v1alpha1.ClusterReady, Status: metav1.ConditionFalse})
			})}, want: "- disks: condition DisksHealthy is missing"},
		"a policy does not see policies' taints": {conditions: broken, recorded: []v1alpha1.PolicyTaint{taint("disks", 1)},
			policies: []*Policy{disks(func(s *v1alpha1.ClusterTaintPolicySpec) {
				s.Clusters = &v1alpha1.ClusterSelector{Fields: []v1alpha1.FieldRequirement{{Path: "status.policyTaints", Operator: v1alpha1.FieldDoesNotExist}}}
			})}, want: "disks broken=disk:NoExecute @09:01"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Spec: v1alpha1.ClusterSpec{Taints: tt.spec},
				Status: v1alpha1.ClusterStatus{Conditions: tt.conditions, PolicyTaints: tt.recorded}}
			before := c.DeepCopy()
			if got := show(Decide(c, tt.policies, !tt.unconfirmed, minute(30).Time)); got != tt.want {
				t.Errorf("decided\n%s\nwant\n%s", got, tt.want)
			}
			if fmt.Sprint(before) != fmt.Sprint(c) {
				t.Error("the Cluster was changed")
			}
		})
	}
}

// TestDecisionIsStable: a decision about its own result changes nothing.
func TestDecisionIsStable(t *testing.T) {
	c := &v1alpha1.Cluster{Status: v1alpha1.ClusterStatus{Conditions: []metav1.Condition{condition("DisksHealthy", metav1.ConditionFalse, 1)}}}
	p := disks(func(s *v1alpha1.ClusterTaintPolicySpec) {
		s.KeepFor = minutes(5)
		s.Taints = append(s.Taints, v1alpha1.TaintTemplate{Key: "avoid", Effect: v1alpha1.TaintPreferNoSchedule})
	})
	for m := 10; m < 30; m++ {
		d := Decide(c, []*Policy{p}, true, minute(m).Time)
		c.Status.PolicyTaints = d.Taints
		if again := Decide(c, []*Policy{p}, true, minute(m).Time); len(again.Changes) > 0 || fmt.Sprint(again.Taints) != fmt.Sprint(d.Taints) {
			t.Fatalf("minute %d: %s\nthen %s", m, show(d), show(again))
		}
		c.Status.Conditions[0].Status = map[bool]metav1.ConditionStatus{true: metav1.ConditionFalse, false: metav1.ConditionTrue}[m < 20]
	}
	if len(c.Status.PolicyTaints) > 0 {
		t.Errorf("taints stay: %v", c.Status.PolicyTaints)
	}
}

// TestTaintsAreBounded: recorded taints take precedence over new ones, and older policies over newer ones.
func TestTaintsAreBounded(t *testing.T) {
	c := &v1alpha1.Cluster{Status: v1alpha1.ClusterStatus{Conditions: []metav1.Condition{condition("DisksHealthy", metav1.ConditionFalse, 1)},
		PolicyTaints: []v1alpha1.PolicyTaint{taint("newest", 1)}}}
	var policies []*Policy
	for i := range v1alpha1.MaxPolicyTaints {
		p := disks(nil)
		p.Name, p.created = fmt.Sprintf("p%03d", i), minute(i).Time
		policies = append(policies, p)
	}
	newest := disks(nil)
	newest.Name, newest.created = "newest", minute(1000).Time
	d := Decide(c, append(policies, newest), true, minute(30).Time)
	if len(d.Taints) != v1alpha1.MaxPolicyTaints || d.Taints[0].Policy != "newest" || len(d.Omitted) != 1 || d.Omitted[0].Policy != "p127" {
		t.Errorf("%d taints, first %v; omitted %v", len(d.Taints), d.Taints[0], d.Omitted)
	}
}

// TestWith: a preview of one policy leaves the taints of others alone.
func TestWith(t *testing.T) {
	c := &v1alpha1.Cluster{Status: v1alpha1.ClusterStatus{Conditions: []metav1.Condition{condition("DisksHealthy", metav1.ConditionFalse, 1)},
		PolicyTaints: []v1alpha1.PolicyTaint{taint("other", 1)}}}
	got, d := With(c, disks(nil), minute(30).Time)
	if len(got) != 2 || got[0].Policy != "other" || got[1].Policy != "disks" || len(d.Changes) != 1 {
		t.Errorf("taints %v, changes %v", got, d.Changes)
	}
}
