package scheduler

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/transition"
)

// transitionRule returns how copies of an object relate to each other.
func transitionRule(k interpret.KindInfo, spec *v1alpha1.ResourceBindingSpec) transition.Rule {
	switch {
	case transition.IsExclusive(k.GroupKind()):
		return transition.Exclusive
	case hasOrdinals(k):
		return transition.Numbered
	case spec.ScaledBy != nil:
		return transition.Autoscaled
	}
	return transition.Overlapping
}

// stepInput assembles the input of the next step from a binding to a decision. spec is the spec with the decision, as
// its clusters.
func (snap *Snapshot) stepInput(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, spec *v1alpha1.ResourceBindingSpec) transition.Input {
	in := transition.Input{Rule: transitionRule(k, spec), Now: stepShares(b.Spec.Clusters, ""), Goal: stepShares(spec.Clusters, a.Decision.Mode), At: snap.Now}
	from := b.Decided()
	if t := b.Spec.Transition; t != nil {
		in.Underway, in.Progress, in.Final = true, t.ProgressTime.Time, t.Cause == v1alpha1.CauseRolledBack
		if from = t.From; in.Final {
			in.Final = sameShares(b.Spec.Goal, spec.Clusters)
			if !in.Final {
				from = b.Spec.Goal // it returned there
			}
		}
	}
	in.From = stepShares(from, "")
	if was := b.Status.Transition; was != nil && b.Spec.Transition != nil && was.ID == b.Spec.Transition.ID {
		in.Phase, in.Since = was.Phase, was.Since.Time
	}
	in.Volumes = snap.volumesAlong(k, obj, b, spec.Clusters)
	in.Reports = snap.stepReports(a, k, obj, b, spec)
	for cluster, r := range in.Reports {
		if c, joined := snap.Fleet.Cluster(cluster); len(in.Volumes.Claims) > 0 && joined && !c.LeavesAsIs() {
			r.Lost = false // as long as it may come back, replicas do not begin elsewhere with empty volumes
			in.Reports[cluster] = r
		}
	}
	in.Wanted = wantedReplicas(&in, k, obj)
	return in
}

// stepShares converts shares. In a mode in which clusters run whole objects, a count is one that an override sets.
func stepShares(shares []v1alpha1.ClusterShare, mode v1alpha1.PlacementMode) []transition.Share {
	out := make([]transition.Share, 0, len(shares))
	for _, c := range shares {
		s := transition.Share{Cluster: c.Name, Revision: c.Revision, Whole: c.Replicas == nil || mode != "" && mode != v1alpha1.ModeDivided}
		if c.Replicas != nil {
			s.Replicas = *c.Replicas
		}
		if c.OrdinalStart != nil {
			s.Start = *c.OrdinalStart
		}
		if d := c.Drain; d != nil {
			s.Drain = transition.Drain{Replicas: d.Replicas, Start: d.OrdinalStart, Revision: d.Revision, Since: d.Since.Time}
		}
		out = append(out, s)
	}
	return out
}

// sameShares reports whether two decisions give clusters the same.
func sameShares(a, b []v1alpha1.ClusterShare) bool {
	return slices.EqualFunc(normalized(a), normalized(b), func(x, y v1alpha1.ClusterShare) bool {
		return x.Name == y.Name && equalInt(x.Replicas, y.Replicas) && equalInt(x.OrdinalStart, y.OrdinalStart)
	})
}

func equalInt(a, b *int32) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// wantedReplicas returns how many replicas there are to be in all clusters together, or in each copy.
func wantedReplicas(in *transition.Input, k interpret.KindInfo, obj *unstructured.Unstructured) int32 {
	total, counted := int32(0), len(in.Goal) > 0
	for _, s := range in.Goal {
		total += s.Replicas
		counted = counted && !s.Whole
	}
	if !counted {
		if n, divisible := k.Replicas(obj); divisible {
			return n
		}
		return 1
	}
	if in.Rule == transition.Autoscaled {
		running := int32(0)
		for _, s := range in.From {
			running += in.Reports[s.Cluster].Running
		}
		total = max(total, running)
	}
	return total
}

// stepReports returns a report for each cluster that reported the object or is in its binding.
func (snap *Snapshot) stepReports(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, spec *v1alpha1.ResourceBindingSpec) map[string]transition.Report {
	out := map[string]transition.Report{}
	decided := clustersIn(spec.Clusters)
	set := func(cluster string) {
		state, reported := b.State(cluster)
		share, runs := b.Share(cluster)
		r := transition.Report{Present: reported, Revision: state.ShareRevision}
		c, joined := snap.Fleet.Cluster(cluster)
		r.Unreachable = !joined || c.IsSilent()
		r.Lost = !decided[cluster] && (!joined || c.LeavesAsIs() || a.Choice.Policy.HasLost(&c, &a.Request.Object, snap.Now))
		r.Current = reported && runs && !r.Unreachable && state.UID != "" && isInSync(state.Reason) && state.Generation >= obj.GetGeneration() &&
			state.ObservedGeneration >= state.MemberGeneration && equalInt(state.Replicas, share.Replicas) && state.ShareRevision == share.Revision
		setCounts(&r, &state, sizeOf(&share, k, obj))
		if state.Health != v1alpha1.Progressing || !isInSync(state.Reason) { // else it repeats the counts
			r.Message = shortened(state.Message)
		}
		for _, v := range state.Volumes {
			if r.Volumes == nil {
				r.Volumes = map[string]transition.VolumeReport{}
			}
			r.Volumes[v.Claim] = transition.VolumeReport{State: v.State, Revision: v.Revision, Message: v.Message}
		}
		out[cluster] = r
	}
	for _, c := range b.Status.Clusters {
		set(c.Name)
	}
	for _, c := range b.Spec.Clusters {
		if _, have := out[c.Name]; !have {
			set(c.Name)
		}
	}
	return out
}

// shortened returns the beginning of a cluster's message, because several texts and events repeat it.
func shortened(message string) string {
	const most = 200 // bytes
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + "…"
}

// isInSync reports whether a cluster runs the last applied state.
func isInSync(reason string) bool {
	return reason == "" || reason == v1alpha1.StateDrifted || reason == v1alpha1.StateUnwatched
}

// replicaCounts are the fields of workloads' statuses.
type replicaCounts struct {
	Replicas          *int32 `json:"replicas"`
	UpdatedReplicas   *int32 `json:"updatedReplicas"`
	AvailableReplicas *int32 `json:"availableReplicas"`
	ReadyReplicas     *int32 `json:"readyReplicas"`
	NumberAvailable   *int32 `json:"numberAvailable"`
}

// setCounts sets the counts of a report. Of a kind whose status has none, all replicas count as available while it is
// healthy.
func setCounts(r *transition.Report, state *v1alpha1.ClusterState, size int32) {
	r.Healthy, r.Settled = state.Health == v1alpha1.Healthy, true
	var counts replicaCounts
	if state.Status != nil {
		if err := json.Unmarshal(state.Status.Raw, &counts); err != nil {
			counts = replicaCounts{} // fields of these names with another meaning
		}
	}
	of := func(values ...*int32) (int32, bool) {
		for _, v := range values {
			if v != nil {
				return *v, true
			}
		}
		return 0, false
	}
	running, counted := of(counts.Replicas)
	available, known := of(counts.AvailableReplicas, counts.ReadyReplicas, counts.NumberAvailable)
	switch {
	case counted || known:
		r.Available, r.Running = available, max(running, available)
		if updated, has := of(counts.UpdatedReplicas); has || counted {
			r.Settled = updated >= running
		}
	default:
		if r.Running = size; r.Healthy {
			r.Available = size
		}
	}
}

// sizeOf returns how many replicas a share has; 1 if the object has none.
func sizeOf(share *v1alpha1.ClusterShare, k interpret.KindInfo, obj *unstructured.Unstructured) int32 {
	if share.Replicas != nil {
		return *share.Replicas
	}
	if n, divisible := k.Replicas(obj); divisible {
		return n
	}
	return 1
}

// floors returns how many replicas disruption budgets require of an object.
func (s *scheduler) floors(o object, wanted int32) transition.Floor {
	var budgets []transition.Budget
	for _, f := range s.needs.neededBy(o) {
		if f.GroupKind != budgetKind() {
			continue
		}
		obj, exists := s.Objects.Get(f.GroupKind, f.NamespacedName)
		if !exists || obj.GetDeletionTimestamp() != nil {
			continue
		}
		budget := transition.Budget{Name: f.Name, MinAvailable: intOrPercent(obj, "minAvailable"), MaxUnavailable: intOrPercent(obj, "maxUnavailable")}
		for _, user := range s.needs.usersOf(f) {
			if user == o {
				continue
			}
			wanted, available := s.replicasOf(user)
			budget.OthersWanted += wanted
			budget.OthersAvailable += available
		}
		budgets = append(budgets, budget)
	}
	return transition.FloorOf(wanted, budgets)
}

// intOrPercent reads a field of an object's spec; nil if it is absent.
func intOrPercent(obj *unstructured.Unstructured, field string) *intstr.IntOrString {
	value, found, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", field)
	if !found {
		return nil
	}
	var out intstr.IntOrString
	switch value := value.(type) {
	case int64:
		out = intstr.FromInt32(int32(value))
	case string:
		out = intstr.FromString(value)
	default:
		return nil
	}
	return &out
}

// replicasOf returns how many replicas of a workload there are to be in all clusters, and how many are available.
func (s *scheduler) replicasOf(o object) (wanted, available int32) {
	b, bound := s.Bindings.Get(o.binding())
	k, served := s.Kinds.Get(o.GroupKind)
	obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
	if !bound || !served || !exists {
		return 0, 0
	}
	for _, c := range b.Decided() {
		wanted += sizeOf(&c, k, obj)
	}
	snap := s.snapshot()
	for i := range b.Status.Clusters {
		state := &b.Status.Clusters[i]
		if c, joined := snap.Fleet.Cluster(state.Name); joined && !c.IsSilent() {
			share, _ := b.Share(state.Name)
			var r transition.Report
			setCounts(&r, state, sizeOf(&share, k, obj))
			available += r.Available
		}
	}
	return wanted, available
}

// causeOf returns why an object leaves clusters.
func (snap *Snapshot) causeOf(a *Result, from, goal []v1alpha1.ClusterShare) string {
	stays := clustersIn(goal)
	cause := ""
	for _, share := range from {
		if stays[share.Name] {
			continue
		}
		c, joined := snap.Fleet.Cluster(share.Name)
		switch {
		case !joined || c.Leaving:
			return v1alpha1.CauseLeaving
		case a.Choice.Policy.HasLost(&c, &a.Request.Object, snap.Now):
			return v1alpha1.CauseFailover
		case c.Object != nil && c.Object.Spec.Drain != nil:
			cause = v1alpha1.CauseDrained
		case cause == "" && slices.Contains(a.Decision.Degraded, share.Name):
			cause = v1alpha1.CauseDegraded
		case cause == "" && slices.ContainsFunc(c.Taints, func(t v1alpha1.Taint) bool { return t.Effect == v1alpha1.TaintNoExecute }):
			cause = v1alpha1.CauseTainted
		}
	}
	switch {
	case cause != "":
		return cause
	case a.Decision.Consolidation.Returned:
		return v1alpha1.CauseConsolidated
	case placement.IsRequested(a.Request.Object.Rebalance, a.Request.Inputs):
		return v1alpha1.CauseRebalanced
	}
	return v1alpha1.CauseMoved
}
