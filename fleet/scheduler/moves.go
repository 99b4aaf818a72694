package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// Move is the change for one object in one cluster.
type Move struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Cluster   string `json:"cluster,omitempty"`
	// Before and After describe the cluster's share: "-" for none, "whole", or the number of
	// replicas.
	Before string `json:"before"`
	After  string `json:"after"`
	Reason string `json:"reason"`
	Why    string `json:"why"`
}

// NoShare is Before or After in a cluster without the object.
const NoShare = "-"

// Moves returns the changes if the scheduler decided about everything with this snapshot: first
// the placed objects, then their followers, then Namespaces. Objects that wait make those of a lower priority leave.
func (s *State) Moves(snap *Snapshot) []Move {
	groups := snap.Groups.(*stateGroups)
	all := make([]previewed, 0, len(s.Placed))
	for _, p := range groups.inOrder(s.Placed) {
		d := previewed{Placed: p, binding: s.bindings[p.Key()]}
		d.result = snap.Schedule(p.Kind, p.Object, d.binding)
		d.moves = MovesOf(p, d.binding, d.result)
		snap.reserve(&d.result)
		snap.reserveCopies(&d.result, p.Kind, p.Object, d.binding)
		groups.after[p.Key()] = d.result.Shares
		all = append(all, d)
	}
	snap.preemptAll(all)
	var out []Move
	after := map[string][]v1alpha1.ClusterShare{} // by object
	for _, d := range all {
		out = append(out, d.moves...)
		if after[d.Key()] = d.result.Shares; d.result.Choice.Policy != nil && d.result.Choice.Policy.Dependencies() == v1alpha1.DependenciesStay {
			after[d.Key()] = nil // nothing goes along
			continue
		}
		for _, claim := range snap.claimsGoing(d.Kind, d.Object, d.result.Shares) {
			after[claim] = d.result.Shares
		}
	}
	out = append(out, s.followers(after)...)
	return append(out, s.namespaceMoves(snap, after)...)
}

// previewed is an object with the decision of a preview.
type previewed struct {
	Placed
	binding *v1alpha1.ResourceBinding // before it, or nil
	result  Result
	moves   []Move
}

// MovesOf returns the changes for one object. An object that waits, or newly stays although its policy asks for
// something else, has one without a cluster.
func MovesOf(p Placed, b *v1alpha1.ResourceBinding, a Result) []Move {
	was, is := shareTexts(b, nil), shareTexts(nil, &a)
	var out []Move
	var verdicts []placement.Verdict
	for _, name := range changed(was, is) {
		before, after := was[name], is[name]
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
		if after.cluster != "" {
			m.Why += a.Together.groupText()
		}
		if a.Choice.Policy != nil && a.Choice.Policy.Suspended() {
			m.Why += "; suspended by the policy until suspend is removed"
		}
		out = append(out, m)
	}
	stays := b != nil && a.Choice.Err == nil && meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.BindingScheduled)
	if a.Condition.Status != "True" && (b == nil || len(out) > 0 || stays) {
		out = append(out, Move{Kind: p.Kind.GroupVersionKind.Kind, Namespace: p.Object.GetNamespace(), Name: p.Object.GetName(), Before: NoShare, After: NoShare,
			Reason: a.Condition.Reason, Why: a.Condition.Message})
	}
	return out
}

// changed returns the sorted names of the clusters whose shares differ.
func changed(was, is map[string]shareText) []string {
	var out []string
	for name, before := range was {
		if !before.same(is[name]) {
			out = append(out, name)
		}
	}
	for name := range is {
		if _, had := was[name]; !had {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// shareText is one cluster's share for display.
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
		return NoShare
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

// shareTexts returns the shares of a binding or of a result, by cluster.
func shareTexts(b *v1alpha1.ResourceBinding, a *Result) map[string]shareText {
	if a != nil {
		b = &v1alpha1.ResourceBinding{Spec: v1alpha1.ResourceBindingSpec{Clusters: a.Shares, Overrides: a.Overrides}}
	}
	out := map[string]shareText{}
	if b == nil {
		return out
	}
	for _, c := range b.Decided() {
		out[c.Name] = shareText{c.Name, c.Reason, c.Message, c.Replicas, c.OrdinalStart, b.OverridesOf(c)}
	}
	return out
}

// followers returns the changes of followers. It omits a follower with more users than its
// binding can list.
func (s *State) followers(after map[string][]v1alpha1.ClusterShare) []Move {
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
	// A follower may follow another follower, which has to be computed first.
	for progress := true; progress; {
		progress = false
		for i, f := range all {
			if f.b == nil {
				continue
			}
			users, known := s.sharesOfUsers(f.b, after)
			if !known {
				continue
			}
			shares := s.followerShares(f.b, users, after)
			if to := after[f.key]; to != nil {
				shares = slices.DeleteFunc(shares, func(c v1alpha1.ClusterShare) bool { return c.Name != to[0].Name })
			}
			after[f.key], all[i].b, progress = shares, nil, true
			out = append(out, followerMoves(f.b, shares)...)
		}
	}
	return out
}

// sharesOfUsers returns the shares of a follower's users, if all of them are known.
func (s *State) sharesOfUsers(b *v1alpha1.ResourceBinding, after map[string][]v1alpha1.ClusterShare) (users [][]v1alpha1.ClusterShare, known bool) {
	for _, r := range b.Spec.RequiredBy {
		if r == namespaceRequirer(b.Namespace) {
			continue
		}
		namespace := cmp.Or(r.Namespace, b.Namespace)
		found := false
		for _, k := range s.knowledge.Kinds() {
			if k.GroupVersionKind.Kind != r.Kind {
				continue
			}
			if k.ClusterScoped {
				namespace = ""
			}
			if shares, ok := after[KeyOf(k.GroupKind(), namespace, r.Name)]; ok {
				users, found = append(users, ofUser(shares)), true
			}
		}
		if !found {
			return nil, false
		}
	}
	return users, true
}

// followerShares returns the shares of a follower: where its users are, where it was requested
// itself, where the workloads of its namespace are, and where it keeps data.
func (s *State) followerShares(b *v1alpha1.ResourceBinding, users [][]v1alpha1.ClusterShare, after map[string][]v1alpha1.ClusterShare) []v1alpha1.ClusterShare {
	k, _ := s.knowledge.Find(b.Spec.Resource.GroupVersionKind().GroupKind())
	var out []v1alpha1.ClusterShare
	have := map[string]bool{}
	for _, c := range slices.Concat(users...) {
		if have[c.Name] {
			continue
		}
		have[c.Name] = true
		share, _ := b.Share(c.Name) // with its overrides, if any
		share.Name, share.Replicas, share.Reason, share.Message = c.Name, nil, ReasonRequired, "its users go there"
		out = append(out, share)
	}
	if boundsReplicas(k.GroupKind()) {
		out = withReplicas(out, users)
	}
	if slices.Contains(b.Spec.RequiredBy, namespaceRequirer(b.Namespace)) {
		out = withConfiguration(out, b.Namespace, s.clustersOf(b.Namespace, after), len(users) > 0)
		have = clustersIn(out)
	}
	for _, c := range b.Spec.Clusters {
		stays := slices.ContainsFunc(s.Clusters, func(o *v1alpha1.Cluster) bool { return o.Name == c.Name && o.DeletionTimestamp == nil })
		if !have[c.Name] && stays && (c.Reason != ReasonRequired && c.Reason != ReasonConfiguration || k.KeepsData) {
			out = append(out, c)
		}
	}
	return out
}

// clustersOf returns the clusters that run workloads of a namespace, or any with "".
func (s *State) clustersOf(namespace string, after map[string][]v1alpha1.ClusterShare) []string {
	found := map[string]bool{}
	for _, p := range s.Placed {
		if in := p.Object.GetNamespace(); in == "" || namespace != "" && in != namespace {
			continue
		}
		for _, c := range after[p.Key()] {
			found[c.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func followerMoves(b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare) []Move {
	was, is := shareTexts(b, nil), shareTexts(nil, &Result{Shares: shares, Overrides: b.Spec.Overrides})
	var out []Move
	for _, name := range changed(was, is) {
		m := Move{Kind: b.Spec.Resource.Kind, Namespace: b.Namespace, Name: b.Spec.Resource.Name, Cluster: name,
			Before: was[name].text(), After: is[name].text(), Reason: is[name].reason, Why: is[name].why}
		if m.After == NoShare {
			m.Reason, m.Why = "NotRequired", "no object there needs it any more"
		}
		out = append(out, m)
	}
	return out
}
