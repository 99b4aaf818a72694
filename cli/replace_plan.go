package cli

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/moving"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// replacePlan has the steps by which one cluster replaces another.
type replacePlan struct {
	// relabel are the objects and namespaces whose label names the old cluster.
	relabel []relabelled
	// policies name the old cluster and not the new one.
	policies []string
	drain    *drainPlan
}

// relabelled is an object that gets another label, and its UID, if that is known.
type relabelled struct {
	moving.Object
	uid types.UID
}

// planReplace returns what moves if the objects that are labelled for a cluster are labelled for another, and the
// first one is drained. It changes the state.
func planReplace(s *scheduler.State, old, by string) (*replacePlan, error) {
	plan := &replacePlan{policies: policiesNaming(s, old, by)}
	before := s.Moves(s.Snapshot())
	for name, labels := range s.Namespaces {
		if labels[v1alpha1.ClusterLabel] == old {
			k := interpret.NamespaceKind()
			plan.relabel = append(plan.relabel, relabelled{Object: moving.Object{Resource: k.GVR(), Kind: k.GroupKind(), Name: name}})
			s.Namespaces[name] = labelled(labels, by)
		}
	}
	slices.SortFunc(plan.relabel, func(a, b relabelled) int { return strings.Compare(a.Name, b.Name) })
	for i, p := range s.Placed {
		if p.Object.GetLabels()[v1alpha1.ClusterLabel] != old {
			continue
		}
		plan.relabel = append(plan.relabel, relabelled{uid: p.Object.GetUID(),
			Object: moving.Object{Resource: p.Kind.GVR(), Kind: p.Kind.GroupKind(), Namespace: p.Object.GetNamespace(), Name: p.Object.GetName()}})
		p.Object = p.Object.DeepCopy()
		p.Object.SetLabels(labelled(p.Object.GetLabels(), by))
		s.Placed[i] = p
	}
	drain, err := planDrain(s, old)
	if err != nil {
		return nil, err
	}
	drain.moves = caused(before, s.Moves(s.Snapshot())) // also those of the labels
	plan.drain = drain
	return plan, nil
}

// policiesNaming returns the policies that name a cluster and not its replacement.
func policiesNaming(s *scheduler.State, old, by string) (out []string) {
	add := func(p placement.Subject) {
		var names []string
		if c := p.Spec.Clusters; c != nil {
			names = append(names, c.Names...)
		}
		for _, g := range p.Spec.ClusterGroups {
			names = append(names, g.Clusters.Names...)
		}
		if slices.Contains(names, old) && !slices.Contains(names, by) {
			out = append(out, p.Kind+" "+policyName(p.Meta.Namespace, p.Meta.Name))
		}
	}
	for _, p := range s.Placements {
		add(placement.SubjectOf(p))
	}
	for _, p := range s.ClusterPlacements {
		add(placement.SubjectOfCluster(p))
	}
	slices.Sort(out)
	return out
}

// warnings are about the policies that no one edits.
func (plan *replacePlan) warnings(old, by string) (out []string) {
	for _, p := range plan.policies {
		out = append(out, fmt.Sprintf("%s names cluster %s and not %s: its objects do not go to %s unless you add it", p, old, by, by))
	}
	return out
}
