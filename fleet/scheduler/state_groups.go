package scheduler

import (
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/groups"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// stateGroups are the groups of a State.
type stateGroups struct {
	state  *State
	index  *groups.Index[object]
	placed map[object]Placed
	// after are the decisions of a preview, by KeyOf. They replace those of bindings.
	after map[string][]v1alpha1.ClusterShare
	// mounters are the objects whose pods mount a claim, by the KeyOf the claim.
	mounters map[string][]object
}

func newStateGroups(s *State) *stateGroups {
	g := &stateGroups{state: s, index: groups.NewIndex[object](), placed: make(map[object]Placed, len(s.Placed)), after: map[string][]v1alpha1.ClusterShare{}, mounters: map[string][]object{}}
	for _, p := range s.Placed {
		o := refOf(p.Kind.GroupKind(), p.Object)
		g.placed[o] = p
		facts := factsOf(p.Kind, p.Object)
		g.index.Set(o.Namespace, o, facts)
		for _, claim := range facts.Claims {
			if key := KeyOf(claimKind(), o.Namespace, claim); !p.Kind.Finished(p.Object) {
				g.mounters[key] = append(g.mounters[key], o)
			}
		}
	}
	for _, claim := range s.claims {
		g.index.SetClaim(claim.GetNamespace(), claim.GetName(), interpret.SharedClaim(claim))
	}
	return g
}

// GroupOf returns the group of an object.
func (g *stateGroups) GroupOf(o object) groups.Group[object] { return g.index.Of(o.Namespace, o) }

// Member returns an object of a group and its clusters, by the preview if that has decided already.
func (g *stateGroups) Member(o object) (Placed, []v1alpha1.ClusterShare, bool) {
	p, ok := g.placed[o]
	if !ok {
		return Placed{}, nil, false
	}
	if shares, decided := g.after[p.Key()]; decided {
		return p, shares, true
	}
	if b := g.state.bindings[p.Key()]; b != nil {
		return p, b.Decided(), true
	}
	return p, nil, true
}

// ClaimIn returns the clusters that a claim is bound to.
func (g *stateGroups) ClaimIn(namespace, name string) []string {
	b := g.state.bindings[KeyOf(claimKind(), namespace, name)]
	if b == nil || b.DeletionTimestamp != nil || g.state.claims[KeyOf(claimKind(), namespace, name)] == nil {
		return nil
	}
	return clusterNames(b.Decided())
}

// MountedBy returns the objects whose pods mount a claim, and are not finished.
func (g *stateGroups) MountedBy(namespace, claim string) []object {
	return g.mounters[KeyOf(claimKind(), namespace, claim)]
}

// inOrder returns objects in the order of decisions: those that require others come last.
func (g *stateGroups) inOrder(placed []Placed) []Placed {
	first, last := make([]Placed, 0, len(placed)), []Placed(nil)
	for _, p := range placed {
		members := g.GroupOf(refOf(p.Kind.GroupKind(), p.Object)).Members
		if len(members) > 0 && len(members[0].Near) > 0 {
			last = append(last, p)
		} else {
			first = append(first, p)
		}
	}
	return append(first, last...)
}
