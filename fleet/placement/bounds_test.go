package placement

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func bounding(name string, namespaces map[string]string, clusters *v1alpha1.ClusterSelector) *v1alpha1.ClusterPlacement {
	p := &v1alpha1.ClusterPlacement{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterPlacementSpec{Bounds: clusters}}
	p.Spec.Drift = v1alpha1.DriftCorrect // as the API server sets it
	if namespaces != nil {
		p.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: namespaces}
	}
	return p
}

func named(names ...string) *v1alpha1.ClusterSelector { return &v1alpha1.ClusterSelector{Names: names} }

// TestBounds: no label, no Placement and no other policy leads an object out of the bounds of its namespace.
func TestBounds(t *testing.T) {
	fleet := NewFleet([]Cluster{{Name: "east", Ready: true, Labels: map[string]string{"tier": "prod"}}, {Name: "west", Ready: true}, {Name: "north", Ready: true}})
	teamA := map[string]string{"team": "a"}
	deployment := PolicyTarget{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: "web", NamespaceLabels: teamA}
	pinned := deployment
	pinned.Labels = map[string]string{v1alpha1.ClusterLabel: "west"}
	other := deployment
	other.NamespaceLabels = nil
	toWest := &v1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}, Spec: v1alpha1.PlacementSpec{Clusters: named("west")}}
	inEast := bounding("b", teamA, &v1alpha1.ClusterSelector{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "prod"}}})
	for _, tt := range []struct {
		name     string
		bounds   []*v1alpha1.ClusterPlacement
		own      []*v1alpha1.Placement
		target   PolicyTarget
		previous []Share
		want     string
	}{
		{"without a policy", []*v1alpha1.ClusterPlacement{inEast}, nil, deployment, nil, "east"},
		{"other namespaces", []*v1alpha1.ClusterPlacement{inEast}, nil, other, nil, "east north west"},
		{"a label", []*v1alpha1.ClusterPlacement{inEast}, nil, pinned, nil, ""},
		{"a label of an object that runs there", []*v1alpha1.ClusterPlacement{inEast}, nil, pinned, []Share{{Cluster: "west", Whole: true}}, ""},
		{"a Placement", []*v1alpha1.ClusterPlacement{inEast}, []*v1alpha1.Placement{toWest}, deployment, nil, ""},
		{"a Placement of an object that runs there", []*v1alpha1.ClusterPlacement{inEast}, []*v1alpha1.Placement{toWest}, deployment, []Share{{Cluster: "west", Whole: true}}, ""},
		{"bounds of all", []*v1alpha1.ClusterPlacement{bounding("b", nil, named("east", "west"))}, nil, other, nil, "east west"},
		{"bounds of several", []*v1alpha1.ClusterPlacement{bounding("a", nil, named("east", "west")), bounding("b", teamA, named("west", "north"))}, nil, deployment, nil, "west"},
		{"it leaves a cluster out of bounds", []*v1alpha1.ClusterPlacement{inEast}, nil, deployment, []Share{{Cluster: "west", Whole: true}, {Cluster: "east", Whole: true}}, "east"},
		{"bounds that select no cluster remove nothing", []*v1alpha1.ClusterPlacement{bounding("b", teamA, named("wst"))}, nil, deployment, []Share{{Cluster: "west", Whole: true}}, "west"},
		{"several that select none in common remove nothing", []*v1alpha1.ClusterPlacement{bounding("a", nil, named("east")), bounding("b", teamA, named("west", "north"))}, nil, deployment, []Share{{Cluster: "west", Whole: true}}, "west"},
		{"invalid bounds remove nothing, and allow nothing", []*v1alpha1.ClusterPlacement{bounding("b", teamA, &v1alpha1.ClusterSelector{Expression: "cluster."})}, nil, deployment, []Share{{Cluster: "west", Whole: true}}, "west"},
		{"a Namespace, by its own labels", []*v1alpha1.ClusterPlacement{inEast}, nil, PolicyTarget{GroupKind: schema.GroupKind{Kind: "Namespace"}, Name: "shop", Labels: teamA}, nil, "east"},
		{"cluster-scoped objects have no namespace to select", []*v1alpha1.ClusterPlacement{inEast}, nil, PolicyTarget{GroupKind: schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}, Name: "r", Labels: teamA}, nil, "east north west"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := NewPolicies(tt.own, tt.bounds, nil)
			choice := p.For(tt.target)
			if choice.Reference.Kind == "ClusterPlacement" {
				t.Errorf("bounds decide: %+v", choice.Reference)
			}
			d := Decide(Request{Object: Object{Key: "k", Mode: v1alpha1.ModeDuplicated}, Fleet: fleet, Policy: choice.Policy, Previous: tt.previous, Obstacles: p.OutOfBounds(tt.target, fleet)})
			var got []string
			for _, v := range d.Chosen {
				got = append(got, v.Cluster)
			}
			if slices.Sort(got); strings.Join(got, " ") != tt.want {
				t.Errorf("it runs in %v, want %q: %s", got, tt.want, d.Message)
			}
		})
	}
}

// TestBoundsTakeEffectAtOnce: an edit of bounds waits for no approval, because the content in effect may allow more.
func TestBoundsTakeEffectAtOnce(t *testing.T) {
	fleet := NewFleet([]Cluster{{Name: "east", Ready: true}, {Name: "west", Ready: true}})
	p := bounding("b", nil, named("east", "west"))
	p.Generation, p.Spec.Changes = 1, &v1alpha1.PolicyChanges{Apply: v1alpha1.ChangeOnApproval}
	active, err := Record(1, &p.Spec)
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Active = &active
	p.Generation, p.Spec.Bounds = 2, named("east")
	target := PolicyTarget{GroupKind: schema.GroupKind{Kind: "Service"}, Namespace: "shop", Name: "web"}
	before := NewPolicies(nil, []*v1alpha1.ClusterPlacement{bounding("b", nil, named("east", "west"))}, nil).For(target)
	policies := NewPolicies(nil, []*v1alpha1.ClusterPlacement{p}, nil)
	if out := policies.OutOfBounds(target, fleet); len(out) != 1 || !out["west"].Leaves || !strings.Contains(out["west"].Message, "ClusterPlacement b: its name is not listed") {
		t.Errorf("out of bounds: %v", out)
	}
	if after := policies.For(target); after.Equal(&before) {
		t.Error("a choice with other bounds is equal")
	}
}
