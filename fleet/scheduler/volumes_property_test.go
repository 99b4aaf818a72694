package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// TestVolumesAreNeverLeft: whatever happens to clusters, policy, labels and replica counts, no replica that runs begins
// again without its volume, and a decision that is repeated stays the same.
func TestVolumesAreNeverLeft(t *testing.T) {
	stayed := 0
	for seed := range uint64(3000) {
		w := newVolumeWorld(t, rand.New(rand.NewPCG(seed, 7)))
		for step := range 12 {
			if step > 0 {
				w.change()
			}
			before := slices.Clone(w.binding.Spec.Clusters)
			a := w.decide()
			if problem := w.left(before, &a); problem != "" {
				t.Fatalf("seed %d, step %d: %s: %s -> %s (%s)\n%+v", seed, step, problem, rangesText(before), rangesText(a.Shares), a.Condition.Message, w.policy.Spec)
			}
			if a.Condition.Reason == ReasonVolumesStay {
				stayed++
			}
			w.take(&a)
			if again := w.decide(); !sameShares(a.Shares, again.Shares) {
				t.Fatalf("seed %d, step %d: %s -> %s (%s), and again %s (%s)", seed, step, rangesText(before), rangesText(a.Shares), a.Condition.Message, rangesText(again.Shares), again.Condition.Message)
			}
		}
	}
	if stayed < 1000 {
		t.Errorf("only %d decisions kept an object with its volumes", stayed)
	}
}

// volumeWorld is a fleet with one object that has volumes.
type volumeWorld struct {
	*rand.Rand
	t        *testing.T
	state    *State
	policy   *v1alpha1.Placement
	replicas int64
	binding  *v1alpha1.ResourceBinding
}

func newVolumeWorld(t *testing.T, r *rand.Rand) *volumeWorld {
	w := &volumeWorld{Rand: r, t: t, replicas: int64(r.IntN(6)), state: &State{At: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)},
		policy: &v1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}}, binding: &v1alpha1.ResourceBinding{}}
	for i := range 3 + r.IntN(2) {
		c := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i), CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1+i, 0, 0, 0, 0, time.UTC))}}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.state.At.Add(-time.Hour))}}
		w.state.Clusters = append(w.state.Clusters, c)
	}
	w.policy.Spec.Mode = []v1alpha1.PlacementMode{v1alpha1.ModeSingle, v1alpha1.ModeDivided, v1alpha1.ModeDivided, v1alpha1.ModeDuplicated}[r.IntN(4)]
	w.state.Placements = []*v1alpha1.Placement{w.policy}
	return w
}

// change changes one thing.
func (w *volumeWorld) change() {
	c := w.state.Clusters[w.IntN(len(w.state.Clusters))]
	ready := func(status metav1.ConditionStatus) { c.Status.Conditions[0].Status = status }
	switch w.IntN(9) {
	case 0:
		ready(metav1.ConditionFalse)
	case 1:
		ready(metav1.ConditionTrue)
	case 2:
		c.Spec.Taints = []v1alpha1.Taint{{Key: "drain", Effect: v1alpha1.TaintNoExecute}}
	case 3:
		c.Spec.Taints, c.Spec.Limits = nil, nil
	case 4, 5:
		w.replicas = int64(w.IntN(8))
	case 6:
		w.policy.Spec.Mode = []v1alpha1.PlacementMode{v1alpha1.ModeSingle, v1alpha1.ModeDivided, v1alpha1.ModeDuplicated}[w.IntN(3)]
	case 7:
		most := int32(1 + w.IntN(4))
		w.policy.Spec.Division = &v1alpha1.ReplicaDivision{MaxPerCluster: &most}
		pods := int64(2)
		c.Spec.Limits = &v1alpha1.ClusterLimits{Pods: &pods}
	case 8:
		w.policy.Spec.Clusters = &v1alpha1.ClusterSelector{}
		for _, o := range w.state.Clusters {
			if w.IntN(2) == 0 {
				w.policy.Spec.Clusters.Names = append(w.policy.Spec.Clusters.Names, o.Name)
			}
		}
	}
}

// decide decides about the object in the current fleet.
func (w *volumeWorld) decide() Result {
	u := parse(w.t, dbWithVolumes)[0]
	u.SetLabels(nil)
	u.Object["spec"].(map[string]any)["replicas"] = w.replicas
	k := kindOf(w.t, u)
	w.policy.Generation++
	w.state.Placed = []Placed{{k, u}}
	w.state.bindings = map[string]*v1alpha1.ResourceBinding{w.state.Placed[0].Key(): w.binding}
	return w.state.Snapshot().Schedule(k, u, w.binding)
}

// take puts a decision into effect: clusters that can be reached have it, and the others of before have it not any more.
func (w *volumeWorld) take(a *Result) {
	w.binding.Spec.Clusters, w.binding.Spec.Inputs = a.Shares, a.Decision.Inputs
	w.binding.Status.Clusters = slices.DeleteFunc(w.binding.Status.Clusters, func(s v1alpha1.ClusterState) bool {
		c := w.state.Clusters[slices.IndexFunc(w.state.Clusters, func(c *v1alpha1.Cluster) bool { return c.Name == s.Name })]
		_, stays := w.binding.Share(s.Name)
		return !stays && c.Status.Conditions[0].Status == metav1.ConditionTrue
	})
	for _, s := range a.Shares {
		if _, has := w.binding.State(s.Name); !has {
			w.binding.Status.Clusters = append(w.binding.Status.Clusters, v1alpha1.ClusterState{Name: s.Name, UID: "uid"})
		}
	}
}

// left returns which replicas a decision takes away from their volumes, or "".
func (w *volumeWorld) left(before []v1alpha1.ClusterShare, a *Result) string {
	after := a.Shares
	if len(before) == 0 || len(after) == 0 {
		return ""
	}
	var in []string
	for _, s := range after {
		in = append(in, s.Name)
	}
	kept := slices.ContainsFunc(before, func(s v1alpha1.ClusterShare) bool { return slices.Contains(in, s.Name) })
	for _, s := range w.binding.Status.Clusters {
		kept = kept || slices.Contains(in, s.Name)
	}
	if !kept {
		return "no cluster keeps it"
	}
	if before[0].Replicas == nil || after[0].Replicas == nil {
		return ""
	}
	had, has := replicasIn(before), replicasIn(after)
	ended, begun := 0, 0
	for ordinal, cluster := range had {
		if has[ordinal] != cluster {
			ended++
		}
	}
	for ordinal, cluster := range has {
		if had[ordinal] != cluster {
			begun++
		}
	}
	if ended > 0 && begun > 0 {
		return fmt.Sprintf("%d replicas end and %d begin", ended, begun)
	}
	if surplus := len(had) - int(w.replicas); a.Condition.Reason == ReasonVolumesStay && ended > max(0, surplus) {
		return fmt.Sprintf("%d replicas end, and %d are too many", ended, surplus)
	}
	return ""
}

// replicasIn returns the cluster of each ordinal.
func replicasIn(shares []v1alpha1.ClusterShare) map[int32]string {
	out := map[int32]string{}
	for _, s := range shares {
		for i := range *s.Replicas {
			out[*s.OrdinalStart+i] = s.Name
		}
	}
	return out
}

// BenchmarkVolumesStay measures decisions about objects that a policy wants elsewhere and their volumes keep.
func BenchmarkVolumesStay(b *testing.B) {
	var all []placement.Cluster
	for i := range 1000 {
		all = append(all, placement.Cluster{Name: fmt.Sprint("c", i), Ready: true, Confirmed: true})
	}
	u := parse(&testing.T{}, dbWithVolumes)[0]
	u.SetLabels(map[string]string{v1alpha1.ClusterLabel: "c7"})
	k := kindOf(&testing.T{}, u)
	binding := &v1alpha1.ResourceBinding{Spec: v1alpha1.ResourceBindingSpec{Clusters: []v1alpha1.ClusterShare{{Name: "c3"}}}}
	snap := &Snapshot{Fleet: placement.NewFleet(all), Policies: placement.NewPolicies(nil, nil, nil), Volumes: volumes.Compile(nil), Now: time.Now()}
	for b.Loop() {
		if a := snap.Schedule(k, u, binding); a.Condition.Reason != ReasonVolumesStay {
			b.Fatal(a.Condition)
		}
	}
}
