package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// Move is what would become of one object in one cluster.
type Move struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Cluster   string `json:"cluster,omitempty"`
	// Before and After say what the cluster has: "-" nothing, "whole", or replicas.
	Before string `json:"before"`
	After  string `json:"after"`
	Reason string `json:"reason"`
	Why    string `json:"why"`
}

// Nothing is what a Move says of a cluster that does not have the object.
const Nothing = "-"

// Moves says what would change if the scheduler decided about everything by this
// world: of what is placed first, then of what follows it.
func (s *Snapshot) Moves(w *World) []Move {
	var out []Move
	after := map[string][]string{} // clusters of each object
	for _, p := range s.Placed {
		b := s.bindings[p.Key()]
		a := w.Answer(p.Kind, p.Object, b)
		w.enter(&a)
		for _, c := range a.Shares {
			after[p.Key()] = append(after[p.Key()], c.Name)
		}
		out = append(out, MovesOf(p, b, a)...)
	}
	return append(out, s.followers(after)...)
}

// MovesOf says what would change for one object.
func MovesOf(p Placed, b *v1alpha1.ResourceBinding, a Answer) []Move {
	was, is := shareTexts(b, nil), shareTexts(nil, &a)
	names := map[string]bool{}
	for name := range was {
		names[name] = true
	}
	for name := range is {
		names[name] = true
	}
	var out []Move
	var verdicts []placement.Verdict
	for name := range names {
		before, after := was[name], is[name]
		if before.same(after) {
			continue
		}
		m := Move{Kind: p.Kind.GroupVersionKind.Kind, Namespace: p.Object.GetNamespace(), Name: p.Object.GetName(), Cluster: name,
			Before: before.text(), After: after.text(), Reason: after.reason, Why: after.why}
		if after.cluster == "" {
			if verdicts == nil && a.Choice.Err == nil {
				_, verdicts = placement.Explain(a.Request)
			}
			m.Reason, m.Why = "ClusterGone", "the cluster is not in the fleet"
			if i := slices.IndexFunc(verdicts, func(v placement.Verdict) bool { return v.Cluster == name }); i >= 0 {
				m.Reason, m.Why = verdicts[i].Reason, verdicts[i].Message
			}
		}
		if a.Choice.Policy != nil && a.Choice.Policy.Suspended() {
			m.Why += "; not before the policy's suspend is taken back"
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Move) int { return cmp.Compare(a.Cluster, b.Cluster) })
	if a.Condition.Status != "True" && (b == nil || len(out) > 0) {
		out = append(out, Move{Kind: p.Kind.GroupVersionKind.Kind, Namespace: p.Object.GetNamespace(), Name: p.Object.GetName(), Before: Nothing, After: Nothing,
			Reason: a.Condition.Reason, Why: a.Condition.Message})
	}
	return out
}

// shareText is one cluster's share as people read it.
type shareText struct {
	cluster, reason, why string
	replicas             *int32
	start                *int32
	overrides            []v1alpha1.Override
}

func (s shareText) same(o shareText) bool {
	return s.cluster == o.cluster && equality.Semantic.DeepEqual(s.replicas, o.replicas) && equality.Semantic.DeepEqual(s.start, o.start) &&
		equality.Semantic.DeepEqual(s.overrides, o.overrides)
}

func (s shareText) text() string {
	if s.cluster == "" {
		return Nothing
	}
	out := "whole"
	if s.replicas != nil {
		out = fmt.Sprint(*s.replicas)
	}
	if s.start != nil {
		out += fmt.Sprintf(" from %d", *s.start)
	}
	switch n := len(s.overrides); n {
	case 0:
	case 1:
		out += " (1 override)"
	default:
		out += fmt.Sprintf(" (%d overrides)", n)
	}
	return out
}

// shareTexts reads the shares of a binding or of an answer, by cluster.
func shareTexts(b *v1alpha1.ResourceBinding, a *Answer) map[string]shareText {
	if a != nil {
		b = &v1alpha1.ResourceBinding{Spec: v1alpha1.ResourceBindingSpec{Clusters: a.Shares, Overrides: a.Overrides}}
	}
	out := map[string]shareText{}
	if b == nil {
		return out
	}
	for _, c := range b.Spec.Clusters {
		out[c.Name] = shareText{c.Name, c.Reason, c.Message, c.Replicas, c.OrdinalStart, b.OverridesOf(c)}
	}
	return out
}

// followers says where what follows others would go along. Of a follower with more
// users than its binding names, nothing can be said.
func (s *Snapshot) followers(after map[string][]string) []Move {
	var out []Move
	type follower struct {
		key string
		b   *v1alpha1.ResourceBinding
	}
	var all []follower
	for key, b := range s.bindings {
		if n := len(b.Spec.RequiredBy); n > 0 && n < v1alpha1.MaxRequirers {
			all = append(all, follower{key, b})
		}
	}
	slices.SortFunc(all, func(a, b follower) int { return cmp.Compare(a.key, b.key) })
	// A follower may follow a follower, which has to be known first.
	for progress := true; progress; {
		progress = false
		for i, f := range all {
			if f.b == nil {
				continue
			}
			clusters, known := s.ofUsers(f.b, after)
			if !known {
				continue
			}
			after[f.key], all[i].b, progress = clusters, nil, true
			out = append(out, s.followed(f.b, clusters)...)
		}
	}
	return out
}

func (s *Snapshot) ofUsers(b *v1alpha1.ResourceBinding, after map[string][]string) (clusters []string, known bool) {
	for _, r := range b.Spec.RequiredBy {
		namespace := cmp.Or(r.Namespace, b.Namespace)
		found := false
		for _, k := range s.knowledge.Kinds() {
			if k.GroupVersionKind.Kind != r.Kind {
				continue
			}
			if k.ClusterScoped {
				namespace = ""
			}
			if names, ok := after[KeyOf(k.GroupKind(), namespace, r.Name)]; ok {
				clusters, found = append(clusters, names...), true
			}
		}
		if !found {
			return nil, false
		}
	}
	slices.Sort(clusters)
	return slices.Compact(clusters), true
}

func (s *Snapshot) followed(b *v1alpha1.ResourceBinding, clusters []string) []Move {
	ref := b.Spec.Resource
	move := func(cluster, before, after, reason, why string) Move {
		return Move{Kind: ref.Kind, Namespace: b.Namespace, Name: ref.Name, Cluster: cluster, Before: before, After: after, Reason: reason, Why: why}
	}
	var out []Move
	for _, name := range clusters {
		if _, has := b.Share(name); !has {
			out = append(out, move(name, Nothing, "whole", ReasonRequired, "what needs it goes there"))
		}
	}
	k, _ := s.knowledge.Find(ref.GroupVersionKind().GroupKind())
	for _, c := range b.Spec.Clusters {
		if c.Reason == ReasonRequired && !slices.Contains(clusters, c.Name) && !k.KeepsData {
			out = append(out, move(c.Name, "whole", Nothing, "NotRequired", "nothing there needs it any more"))
		}
	}
	return out
}
