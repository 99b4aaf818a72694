package placement

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// overriding returns a spec that sets one variable.
func overriding(value string, clusters *v1alpha1.ClusterSelector) v1alpha1.PlacementSpec {
	return v1alpha1.PlacementSpec{Drift: v1alpha1.DriftCorrect, Overrides: []v1alpha1.OverridePolicy{{Clusters: clusters, Override: v1alpha1.Override{Env: []v1alpha1.EnvOverride{{Name: "X", Value: value}}}}}}
}

// TestOverridesApplyBeside: a policy of overrides alone does not take the decision from another one, and the
// overrides of all are in the documented order.
func TestOverridesApplyBeside(t *testing.T) {
	at := func(n int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", CreationTimestamp: metav1.NewTime(start.Add(time.Duration(n) * time.Minute))}
	}
	placement := func(name string, n int, spec v1alpha1.PlacementSpec) *v1alpha1.Placement {
		p := &v1alpha1.Placement{ObjectMeta: at(n), Spec: spec}
		p.Name = name
		return p
	}
	forAll := func(name string, n int, spec v1alpha1.PlacementSpec) *v1alpha1.ClusterPlacement {
		p := &v1alpha1.ClusterPlacement{ObjectMeta: at(n), Spec: v1alpha1.ClusterPlacementSpec{PlacementSpec: spec}}
		p.Namespace, p.Name = "", name
		return p
	}
	where := overriding("where", nil)
	where.Selector.Kinds, where.Clusters = []string{"Deployment"}, &v1alpha1.ClusterSelector{Names: []string{"east"}}
	named := overriding("named", &v1alpha1.ClusterSelector{Names: []string{"west"}})
	named.Selector.Names = []string{"web"}
	labelled := overriding("labelled", nil)
	labelled.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	other := overriding("other", nil)
	other.Selector.Names = []string{"db"}

	p := NewPolicies(
		[]*v1alpha1.Placement{placement("where", 0, where), placement("named", 1, named), placement("labelled", 2, labelled), placement("other", 3, other)},
		[]*v1alpha1.ClusterPlacement{forAll("older", 0, overriding("older", nil)), forAll("newer", 1, overriding("newer", nil)), forAll("default", 2, overriding("default", nil))}, nil)
	fleet := NewFleet([]Cluster{{Name: "east", Ready: true}, {Name: "west", Ready: true}})
	values := func(policy *Policy, cluster string) (out []string) {
		overrides, where := policy.Overrides(fleet, "apps", "Deployment", []string{"east", "west"})
		for _, i := range where[cluster] {
			out = append(out, overrides[i].Env[0].Value)
		}
		return out
	}
	target := PolicyTarget{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"}}
	choice := p.For(target)
	if choice.Err != nil || choice.Reference.Name != "where" || !choice.Explicit {
		t.Fatalf("it is decided by %+v", choice)
	}
	if got := Decide(Request{Object: Object{Key: "k", Mode: v1alpha1.ModeDuplicated}, Fleet: fleet, Policy: choice.Policy}); len(got.Chosen) != 1 || got.Chosen[0].Cluster != "east" {
		t.Errorf("it runs in %v", got.Chosen)
	}
	equal(t, values(choice.Policy, "east"), "default", "newer", "older", "where", "labelled")
	equal(t, values(choice.Policy, "west"), "default", "newer", "older", "where", "labelled", "named")
	equal(t, values(choice.Overrides, "west"), "default", "newer", "older", "labelled", "named")
	var by []string
	for _, r := range choice.Policy.OverriddenBy(fleet, "apps", "Deployment", "west", choice.Reference) {
		by = append(by, r.Name)
	}
	equal(t, by, "default", "newer", "older", "where", "labelled", "named")
	if again := p.For(target); again.Policy != choice.Policy || !again.Equal(&choice) {
		t.Error("the same question has another answer")
	}
	if len(p.Overruled(target)) != 0 {
		t.Errorf("overruled: %v", p.Overruled(target))
	}

	// Without a policy that decides, the built-in default does.
	target.Namespace = "elsewhere"
	choice = p.For(target)
	if choice.Reference.Kind != v1alpha1.PolicyDefault || choice.Explicit {
		t.Errorf("it is decided by %+v", choice.Reference)
	}
	equal(t, values(choice.Policy, "east"), "default", "newer", "older")
	// A label that names a cluster keeps the overrides.
	target.Labels = map[string]string{v1alpha1.ClusterLabel: "west"}
	equal(t, values(p.For(target).Policy, "west"), "default", "newer", "older")

	// A higher priority counts later.
	first := overriding("first", nil)
	first.Priority = 1
	target.Labels = nil
	p = NewPolicies(nil, []*v1alpha1.ClusterPlacement{forAll("first", 2, first), forAll("older", 0, overriding("older", nil))}, nil)
	equal(t, values(p.For(target).Policy, "east"), "older", "first")

	// What clusters are to get is unknown if a policy cannot be read.
	bad := overriding("bad", &v1alpha1.ClusterSelector{Expression: "cluster."})
	if choice = NewPolicies(nil, []*v1alpha1.ClusterPlacement{forAll("bad", 0, bad)}, nil).For(target); choice.Err == nil || choice.Reference.Name != "bad" {
		t.Errorf("an invalid policy: %+v", choice)
	}
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got, want)
			return
		}
	}
}
