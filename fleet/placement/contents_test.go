package placement

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// editedPolicy is a policy for the object that it selects by name.
type editedPolicy struct {
	generation int64
	selects    string
	mode       v1alpha1.ChangeMode // of the active content, or of the spec without one
	active     *Content
	later      []Content
	approved   string
}

func content(generation int64, selects string, mode v1alpha1.ChangeMode) Content {
	c := Content{Generation: generation}
	c.Spec.Selector.Names = []string{selects}
	if mode != "" {
		c.Spec.Changes = &v1alpha1.PolicyChanges{Apply: mode}
	}
	return c
}

func (e editedPolicy) placement(t *testing.T) *v1alpha1.Placement {
	t.Helper()
	record := func(c Content) v1alpha1.PolicyContent {
		out, err := Record(c.Generation, &c.Spec)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	p := &v1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop", UID: "p", Generation: e.generation}, Spec: content(0, e.selects, e.mode).Spec.PlacementSpec}
	if e.approved != "" {
		p.Annotations = map[string]string{v1alpha1.ApprovedAnnotation: e.approved}
	}
	if e.active != nil {
		active := record(*e.active)
		p.Status.Active = &active
	}
	for _, c := range e.later {
		p.Status.Later = append(p.Status.Later, record(c))
	}
	return p
}

// TestContentInEffect: which generation decides about which object is a function of the policy and of the object's
// binding.
func TestContentInEffect(t *testing.T) {
	one := func(mode v1alpha1.ChangeMode) *Content { c := content(1, "a", mode); return &c }
	follows := func(generations ...int64) (f Following) {
		for _, g := range generations {
			f.Adopted = append(f.Adopted, v1alpha1.PolicyVersion{Kind: "Placement", Name: "p", UID: "p", Generation: g})
		}
		return f
	}
	const none = int64(0) // the policy does not select it
	for _, tt := range []struct {
		name      string
		policy    editedPolicy
		object    string
		following Following
		want      int64
		adopted   bool
	}{
		{"unknown state: the spec", editedPolicy{generation: 4, selects: "a", mode: v1alpha1.ChangeOnApproval}, "a", follows(), 4, false},
		{"immediate: the spec", editedPolicy{generation: 2, selects: "b", active: one("")}, "b", follows(), 2, false},
		{"waiting: the earlier selector", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeOnApproval)}, "a", follows(), 1, false},
		{"waiting: not the new selector", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeOnApproval)}, "b", follows(), none, false},
		{"waiting: new objects, too", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeOnApproval)}, "b", Following{Changed: true}, none, false},
		{"an edit of changes itself waits", editedPolicy{generation: 2, selects: "b", mode: v1alpha1.ChangeImmediate, active: one(v1alpha1.ChangeOnApproval)}, "b", follows(), none, false},
		{"approved", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeOnApproval), approved: "2"}, "b", follows(), 2, false},
		{"another generation is approved", editedPolicy{generation: 3, selects: "b", active: one(v1alpha1.ChangeOnApproval), approved: "2"}, "b", follows(), none, false},
		{"reverted", editedPolicy{generation: 3, selects: "a", mode: v1alpha1.ChangeOnApproval, active: one(v1alpha1.ChangeOnApproval)}, "a", follows(), 3, false},
		{"not yet in progress", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeLazy)}, "b", Following{Changed: true}, none, false},
		{"lazy: unchanged", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeLazy), later: []Content{content(2, "b", "")}}, "a", follows(), 1, false},
		{"lazy: changed", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeLazy), later: []Content{content(2, "b", "")}}, "b", Following{Changed: true}, 2, true},
		{"lazy: released from the policy, and stays so", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeLazy), later: []Content{content(2, "b", "")}}, "a", follows(2), none, true},
		{"staged: changed", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeStaged), later: []Content{content(2, "b", "")}}, "b", Following{Changed: true}, none, false},
		{"staged: in a step", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeStaged), later: []Content{content(2, "b", "")}}, "b", follows(2), 2, true},
		{"staged: a second edit leaves it where the first put it", editedPolicy{generation: 3, selects: "a", active: one(v1alpha1.ChangeStaged),
			later: []Content{content(2, "b", ""), content(3, "a", "")}}, "b", follows(2), 2, true},
		{"staged: the later of two", editedPolicy{generation: 3, selects: "c", active: one(v1alpha1.ChangeStaged),
			later: []Content{content(2, "b", ""), content(3, "c", "")}}, "c", follows(2, 3), 3, true},
		{"another policy of that name", editedPolicy{generation: 2, selects: "b", active: one(v1alpha1.ChangeStaged), later: []Content{content(2, "b", "")}}, "b",
			Following{Adopted: []v1alpha1.PolicyVersion{{UID: "q", Generation: 2}}}, none, false},
	} {
		policies := NewPolicies([]*v1alpha1.Placement{tt.policy.placement(t)}, nil, nil)
		choice := policies.For(PolicyTarget{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: tt.object, Following: tt.following})
		if choice.Reference.Generation != tt.want {
			t.Errorf("%s: generation %d decides, want %d", tt.name, choice.Reference.Generation, tt.want)
		}
		if got := slices.ContainsFunc(choice.Adopted, func(v v1alpha1.PolicyVersion) bool { return v.UID == "p" }); got != tt.adopted {
			t.Errorf("%s: adopted %v, want %v", tt.name, choice.Adopted, tt.adopted)
		}
	}
}

// TestInvalidEditWaits: an invalid edit is reported, and the earlier content decides.
func TestInvalidEditWaits(t *testing.T) {
	active := content(1, "a", v1alpha1.ChangeOnApproval)
	p := editedPolicy{generation: 2, selects: "a", active: &active}.placement(t)
	p.Spec.Clusters = &v1alpha1.ClusterSelector{Expression: "cluster.nonsense("}
	policies := NewPolicies([]*v1alpha1.Placement{p}, nil, nil)
	if len(policies.Invalid) != 1 || policies.Invalid[0].Reference.Generation != 2 {
		t.Errorf("invalid are %v, want generation 2", policies.Invalid)
	}
	if choice := policies.For(PolicyTarget{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: "a"}); choice.Err != nil || choice.Reference.Generation != 1 {
		t.Errorf("decided by generation %d (%v), want 1", choice.Reference.Generation, choice.Err)
	}
}

// TestSuspensionInEffect: an edit that waits neither suspends nor resumes.
func TestSuspensionInEffect(t *testing.T) {
	active := content(1, "a", v1alpha1.ChangeStaged)
	active.Spec.Suspend = true
	p := editedPolicy{generation: 2, selects: "a", active: &active, later: []Content{content(2, "a", "")}}.placement(t)
	policies := NewPolicies([]*v1alpha1.Placement{p}, nil, nil)
	ref := &v1alpha1.PolicyReference{Kind: "Placement", Name: "p"}
	if !policies.Suspends(ref, "shop", Following{}) {
		t.Error("an object that waits is resumed")
	}
	if policies.Suspends(ref, "shop", Following{Adopted: []v1alpha1.PolicyVersion{{UID: "p", Generation: 2}}}) {
		t.Error("an object that follows the edit is still suspended")
	}
}
