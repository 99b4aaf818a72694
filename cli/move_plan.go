package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/moving"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// movePlan is what a label would move.
type movePlan struct {
	moves   []scheduler.Move
	targets []moving.Target  // objects that change clusters
	blocked []blockedObject  // objects that would not go where they are to go
	steps   []scheduler.Step // of the object, if it is only one
}

// blockedObject is an object that stays where it is, or waits, and why.
type blockedObject struct{ object, why string }

// planMove returns what moves if an object or a namespace gets the label for a cluster, or loses it with "". It
// changes the state.
func planMove(s *scheduler.State, o moving.Object, cluster string) (*movePlan, error) {
	before := s.Moves(s.Snapshot())
	var subjects []int // positions in s.Placed
	if interpret.IsNamespace(o.Kind) {
		labels, exists := s.Namespaces[o.Name]
		if !exists {
			return nil, fmt.Errorf("Namespace %q not found", o.Name)
		}
		s.Namespaces[o.Name] = labelled(labels, cluster)
		for i, p := range s.Placed {
			if _, own := p.Object.GetLabels()[v1alpha1.ClusterLabel]; p.Object.GetNamespace() == o.Name && !own {
				subjects = append(subjects, i)
			}
		}
	} else {
		key := scheduler.KeyOf(o.Kind, o.Namespace, o.Name)
		i := slices.IndexFunc(s.Placed, func(p scheduler.Placed) bool { return p.Key() == key })
		if i < 0 {
			return nil, fmt.Errorf("%s is not placed by a decision of its own: move the objects that need it. `atoll explain %s%s` lists them", o, o.Argument(), o.InNamespace())
		}
		p := s.Placed[i]
		p.Object = p.Object.DeepCopy()
		p.Object.SetLabels(labelled(p.Object.GetLabels(), cluster))
		s.Placed[i], subjects = p, []int{i}
	}
	plan := &movePlan{}
	after := s.Moves(s.Snapshot())
	plan.moves = caused(before, after)
	snap := s.Snapshot()
	for _, i := range subjects {
		plan.add(s, snap, s.Placed[i], cluster, plan.moves)
	}
	if len(subjects) == 1 && len(plan.targets) == 1 {
		p := s.Placed[subjects[0]]
		plan.steps = s.Steps(snap, p.Kind, p.Object)
	}
	return plan, nil
}

// add adds an object to the targets or to the blocked ones.
func (plan *movePlan) add(s *scheduler.State, snap *scheduler.Snapshot, p scheduler.Placed, cluster string, moves []scheduler.Move) {
	o := moving.Object{Resource: p.Kind.GVR(), Kind: p.Kind.GroupKind(), Namespace: p.Object.GetNamespace(), Name: p.Object.GetName()}
	b := s.Binding(p.Kind, o.Namespace, o.Name)
	a := snap.Schedule(p.Kind, p.Object, b)
	t := moving.Target{Object: o}
	for _, c := range a.Shares {
		t.Clusters = append(t.Clusters, c.Name)
	}
	fresh := snap.Schedule(p.Kind, p.Object, nil)
	switch why, finished := against(&a, &fresh, cluster); {
	case finished:
		return
	case cluster != "" && !slices.Equal(t.Clusters, []string{cluster}): // somewhere else, or not only there
		plan.blocked = append(plan.blocked, blockedObject{o.String(), why})
		return
	}
	if i := slices.IndexFunc(moves, func(m scheduler.Move) bool { return m.Cluster == "" && isOf(&m, p) }); i >= 0 {
		plan.blocked = append(plan.blocked, blockedObject{o.String(), moves[i].Why})
		return
	}
	var now []string
	if b != nil {
		for _, c := range b.Decided() {
			now = append(now, c.Name)
		}
	}
	if !slices.Equal(slices.Sorted(slices.Values(now)), slices.Sorted(slices.Values(t.Clusters))) || b != nil && b.Spec.Transition != nil {
		plan.targets = append(plan.targets, t)
	}
}

// against returns why a cluster does not get an object, and whether the object finished, so that it goes nowhere.
// fresh is the decision about the object as if it were new: unlike a, it does not prefer the clusters that have it.
func against(a, fresh *scheduler.Result, cluster string) (why string, finished bool) {
	if a.Choice.Err != nil {
		return invalidPolicy(a), false
	}
	if a.Decision.Reason == scheduler.ReasonVolumesStay {
		return a.Decision.Message, false // it says what to set
	}
	_, verdicts := placement.Explain(a.Request)
	var kept []string
	for _, v := range verdicts {
		if v.Reason == placement.ReasonKeptFinished {
			return "", true
		}
		if v.Chosen && v.Cluster != cluster {
			kept = append(kept, fmt.Sprintf("it stays in %s: %s", v.Cluster, v.Message))
		}
	}
	_, verdicts = placement.Explain(fresh.Request)
	for _, v := range verdicts {
		switch {
		case v.Cluster != cluster:
		case !v.Chosen:
			return fmt.Sprintf("cluster %s: %s", cluster, v.Message), false
		case v.Counted && fresh.Condition.Status != metav1.ConditionTrue:
			return fmt.Sprintf("cluster %s has room for %d of its replicas", cluster, v.Replicas), false
		}
	}
	if len(kept) > 0 {
		return strings.Join(kept, "; "), false
	}
	return a.Condition.Message, false
}

func invalidPolicy(a *scheduler.Result) string {
	return "its policy is invalid, so nothing changes: " + a.Choice.Err.Error()
}

func isOf(m *scheduler.Move, p scheduler.Placed) bool {
	return m.Kind == p.Kind.GroupVersionKind.Kind && m.Namespace == p.Object.GetNamespace() && m.Name == p.Object.GetName()
}

func labelled(labels map[string]string, cluster string) map[string]string {
	out := maps.Clone(labels)
	if out == nil {
		out = map[string]string{}
	}
	if out[v1alpha1.ClusterLabel] = cluster; cluster == "" {
		delete(out, v1alpha1.ClusterLabel)
	}
	return out
}

// caused returns the moves of the objects that move otherwise than before: the others are about to move anyway.
func caused(before, after []scheduler.Move) []scheduler.Move {
	anyway := byObject(before)
	changed := map[scheduler.Move]bool{}
	for o, moves := range byObject(after) {
		changed[o] = !slices.Equal(moves, anyway[o])
	}
	return slices.DeleteFunc(slices.Clone(after), func(m scheduler.Move) bool { return !changed[objectOf(&m)] })
}

// objectOf returns what identifies the object of a move.
func objectOf(m *scheduler.Move) scheduler.Move {
	return scheduler.Move{Kind: m.Kind, Namespace: m.Namespace, Name: m.Name}
}

func byObject(moves []scheduler.Move) map[scheduler.Move][]scheduler.Move {
	out := map[scheduler.Move][]scheduler.Move{}
	for i := range moves {
		o := objectOf(&moves[i])
		out[o] = append(out[o], moves[i])
	}
	return out
}

// checkDestination returns why nothing can be moved to a cluster, with the remedy.
func checkDestination(s *scheduler.State, name string) error {
	i := slices.IndexFunc(s.Clusters, func(c *v1alpha1.Cluster) bool { return c.Name == name })
	if i < 0 {
		return noCluster(s, name)
	}
	c := s.Clusters[i]
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady)
	switch {
	case c.DeletionTimestamp != nil:
		return fmt.Errorf("cluster %s is leaving the fleet: use another one", name)
	case c.Spec.Drain != nil:
		return fmt.Errorf("cluster %s is drained: use another one, or end the drain with `atoll uncordon %s`", name, name)
	case c.Spec.Unschedulable:
		return fmt.Errorf("cluster %s is cordoned: use another one, or run `atoll uncordon %s` first", name, name)
	case ready == nil:
		return fmt.Errorf("cluster %s has not been probed yet: wait until `kubectl get clusters` shows it as Ready", name)
	case ready.Status != metav1.ConditionTrue:
		return fmt.Errorf("cluster %s is not Ready (%s): %s. Run `kubectl describe cluster %s` for details", name, ready.Reason, strings.TrimSuffix(ready.Message, "."), name)
	}
	return nil
}

// blockedError lists objects that do not go to a cluster.
func (plan *movePlan) blockedError(remedy string) error {
	const most = 10
	var out strings.Builder
	fmt.Fprintf(&out, "%d objects would not move:\n", len(plan.blocked))
	if len(plan.blocked) == 1 {
		out.Reset()
	}
	for _, b := range plan.blocked[:min(most, len(plan.blocked))] {
		if len(plan.blocked) > 1 {
			out.WriteString("  ")
		}
		fmt.Fprintf(&out, "%s: %s\n", b.object, b.why)
	}
	if more := len(plan.blocked) - most; more > 0 {
		fmt.Fprintf(&out, "  and %d more\n", more)
	}
	return fmt.Errorf("%s%s", out.String(), remedy)
}
