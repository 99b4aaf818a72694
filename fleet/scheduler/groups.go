package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/groups"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// Groups is what decisions read about the objects that belong together.
type Groups interface {
	// GroupOf returns the group of an object.
	GroupOf(o object) groups.Group[object]
	// Member returns an object of a group and the clusters of its latest decision. It returns false if
	// clusters do not run the object, or it is being deleted.
	Member(o object) (Placed, []v1alpha1.ClusterShare, bool)
	// ClaimIn returns the clusters that have a claim, or will.
	ClaimIn(namespace, name string) []string
	// MountedBy returns the objects whose pods mount a claim, and are not finished.
	MountedBy(namespace, claim string) []object
}

// Together is the group of an object in a decision.
type Together struct {
	// Members are the others that run in the same cluster.
	Members []Companion
	// Why joins the object to them.
	Why string
	// Undivided is why the object runs in one cluster, where its policy would divide it; otherwise "".
	Undivided string
}

// Companion is another object of a group.
type Companion struct {
	object   object
	placed   Placed
	finished bool

	Kind string `json:"kind"`
	Name string `json:"name"`
	// Why joins it to the group.
	Why      string   `json:"why"`
	Clusters []string `json:"clusters,omitempty"`
}

// nowhere is the name of no cluster.
const nowhere = "-"

func claimKind() schema.GroupKind { return schema.GroupKind{Kind: "PersistentVolumeClaim"} }

// isOneVolume reports whether an object is a claim that only one cluster may have: a copy in another would
// be another, empty volume.
func isOneVolume(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	return k.GroupKind() == claimKind() && !interpret.SharedClaim(obj)
}

// factsOf returns what an object says about its group.
func factsOf(k interpret.KindInfo, obj *unstructured.Unstructured) groups.Facts {
	if obj.GetNamespace() == "" {
		return groups.Facts{}
	}
	pods := k.PodLabels(obj)
	if pods == nil && k.MakesPods() {
		pods = map[string]string{}
	}
	facts := groups.Read(obj, k.Placed, pods, interpret.PodSpec(obj.Object))
	if parts, err := k.Components(obj); err == nil {
		for _, part := range parts {
			facts.Mount(part.Pod)
		}
	}
	return facts
}

// companion is another member of a group with what the decision reads of it.
type companion struct {
	groups.Member[object]
	Placed
	clusters []string
	divided  bool
	policy   *placement.Policy
	finished bool
}

// group completes a request by what the group of the object means for it.
func (snap *Snapshot) group(r *placement.Request, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, policy *placement.Policy) *Together {
	if snap.Groups == nil || r.Object.Finished && len(r.Previous) > 0 {
		return nil
	}
	o := refOf(k.GroupKind(), obj)
	g := snap.Groups.GroupOf(o)
	if len(g.Members) == 0 {
		return nil
	}
	others := snap.companions(&g, policy)
	self := &g.Members[0]
	if len(self.Claims) > 0 && snap.hasSeveralVolumes(o.Namespace, self.Claims, r.Previous) {
		self.Claims, self.Whole = nil, "" // nothing is removed from where it has data
	}
	modes := map[object]v1alpha1.PlacementMode{o: placement.EffectiveMode(&r.Object, policy, snap.Fleet)}
	for _, c := range others {
		identity := identityOf(c.Kind, c.Object)
		if c.Kind.Unanswered(c.Object) != nil {
			identity.Divisible = c.divided // until its webhook answers, it stays as it is
		}
		if snap.electsLeader(c.Kind, c.Object) && len(c.clusters) <= 1 && !c.policy.NeedsSeveral() {
			identity.Mode = v1alpha1.ModeSingle
		}
		modes[c.ID] = placement.EffectiveMode(&identity, c.policy, snap.Fleet)
	}
	whole := g.Whole(func(m groups.Member[object]) bool { return modes[m.ID] == v1alpha1.ModeSingle })
	undivided, inOne := whole[o]
	if inOne && undivided != "" && modes[o] != v1alpha1.ModeSingle {
		r.Object.Single = true
	} else {
		undivided = ""
	}
	t := &Together{Why: self.Why, Undivided: undivided}
	snap.stayNear(r, self, others, whole, inOne)
	if !inOne {
		return t
	}
	others = slices.DeleteFunc(others, func(c companion) bool { _, is := whole[c.ID]; return !is })
	for _, c := range others {
		t.Members = append(t.Members, Companion{object: c.ID, placed: c.Placed, finished: c.finished, Kind: c.ID.Kind, Name: c.ID.Name, Why: c.Why, Clusters: c.clusters})
	}
	r.Group = snap.gather(others)
	snap.unite(r, others, policy)
	along := snap.takesAlong(k, obj, b, r, self.Claims)
	self.Claims = slices.DeleteFunc(slices.Clone(self.Claims), func(c string) bool { return slices.Contains(along, c) })
	snap.restrict(r, o, self, others)
	return t
}

// companions returns the other members of a group that clusters run, without those that only their owner
// or their Service joins to it and another policy places.
func (snap *Snapshot) companions(g *groups.Group[object], policy *placement.Policy) (out []companion) {
	kept := g.Members[:1:1]
	for _, m := range g.Members[1:] {
		p, shares, ok := snap.Groups.Member(m.ID)
		if !ok {
			continue
		}
		c := companion{Member: m, Placed: p, policy: snap.Choose(p.Kind, p.Object).Policy, finished: p.Kind.Finished(p.Object)}
		if m.Weak && c.policy != policy {
			continue
		}
		for _, share := range shares {
			c.divided = c.divided || share.Replicas != nil
			if f, joined := snap.Fleet.Cluster(share.Name); joined && !f.Leaving {
				c.clusters = append(c.clusters, share.Name)
			}
		}
		out, kept = append(out, c), append(kept, m)
	}
	g.Members = kept
	return out
}

// hasSeveralVolumes reports whether the object and one of its claims are in several clusters already.
func (snap *Snapshot) hasSeveralVolumes(namespace string, claims []string, previous []placement.Share) bool {
	return len(previous) > 1 && slices.ContainsFunc(claims, func(c string) bool { return len(snap.claimIn(namespace, c)) > 1 })
}

// claimIn returns the clusters of the fleet that have a claim.
func (snap *Snapshot) claimIn(namespace, name string) []string {
	return slices.DeleteFunc(snap.Groups.ClaimIn(namespace, name), func(cluster string) bool {
		f, joined := snap.Fleet.Cluster(cluster)
		return !joined || f.Leaving
	})
}

// gather adds up what the others need, and where they are.
func (snap *Snapshot) gather(others []companion) *placement.Group {
	g := &placement.Group{Near: map[string]int32{}}
	limited := snap.Fleet.Limited()
	for _, c := range others {
		for _, cluster := range c.clusters {
			g.Near[cluster]++
		}
		if limited && !c.finished {
			of := objectOf(c.Kind, c.Object)
			g.Keys = append(g.Keys, of.Key)
			g.Needs = g.Needs.Plus(of.Whole(), 1)
		}
	}
	return g
}

// unite adds what keeps the others out of clusters: their policies, and what clusters lack for them. Of
// those that are not placed yet it counts only while none is: a new member does not move the others.
func (snap *Snapshot) unite(r *placement.Request, others []companion, policy *placement.Policy) {
	placed := len(r.Previous) > 0 || len(r.Group.Near) > 0
	seen := map[*placement.Policy]bool{policy: true}
	for _, c := range others {
		if c.finished || placed && len(c.clusters) == 0 {
			continue
		}
		if !seen[c.policy] && c.policy != nil {
			seen[c.policy] = true
			for _, name := range snap.Fleet.Names() {
				if !snap.Fleet.Selects(c.policy, name) {
					r.Obstruct(name, placement.Obstacle{Reason: placement.ReasonGroup,
						Message: fmt.Sprintf("is not permitted by the policy of %s %s, which belongs to its group", c.ID.Kind, c.ID.Name)})
				}
			}
		}
		if snap.Gapped != nil && !snap.Gapped(c.ID) {
			continue
		}
		obstacles, _ := snap.obstaclesTo(c.Kind, c.Object, nil)
		for name, obstacle := range obstacles {
			obstacle.Message += fmt.Sprintf(" (%s %s, which belongs to its group)", c.ID.Kind, c.ID.Name)
			obstacle.Keeps = true // its own decision says whether it stays
			r.Obstruct(name, obstacle)
		}
	}
}

// restrict limits the request to the cluster where the group is: where its claims are, and for a new
// member where the others are.
func (snap *Snapshot) restrict(r *placement.Request, o object, self *groups.Member[object], others []companion) {
	in := map[string]string{} // cluster: claim
	for _, claim := range self.Claims {
		for _, cluster := range snap.claimIn(o.Namespace, claim) {
			in[cluster] = claim
		}
	}
	if len(in) > 1 {
		var parts []string
		for _, cluster := range slices.Sorted(maps.Keys(in)) {
			parts = append(parts, fmt.Sprintf("%s has %s", cluster, in[cluster]))
		}
		r.Group.Only, r.Group.Pinned, r.Group.Why = nowhere, true, "does not have all of its claims: "+strings.Join(parts, ", ")
		return
	}
	for i := 0; len(in) == 0 && i < len(others); i++ {
		for _, claim := range others[i].Claims {
			if found := snap.claimIn(o.Namespace, claim); len(found) == 1 {
				in[found[0]] = claim
			}
		}
	}
	if len(in) == 1 {
		for cluster, claim := range in {
			r.Group.Only, r.Group.Pinned = cluster, true
			r.Group.Why = fmt.Sprintf("lacks the volume of claim %s, which is in %s: to start elsewhere with an empty volume, delete the claim", claim, cluster)
		}
		return
	}
	if cluster, of := snap.volumesOfGroup(r, others); cluster != "" {
		r.Group.Only, r.Group.Pinned = cluster, true
		r.Group.Why = fmt.Sprintf("does not run its group, which stays in %s with the volumes of %s %s", cluster, of.ID.Kind, of.ID.Name)
		return
	}
	if len(r.Previous) > 0 {
		return
	}
	if cluster, of := mostIn(others); cluster != "" {
		r.Group.Only, r.Group.Why = cluster, fmt.Sprintf("does not run its group, which is in %s with %s %s", cluster, of.ID.Kind, of.ID.Name)
	}
}

// mostIn returns the cluster that has the most of the members, and one of them. Finished ones count if
// all are finished.
func mostIn(others []companion) (cluster string, of companion) {
	for _, finished := range []bool{false, true} {
		counts := map[string]int{}
		for _, c := range others {
			for _, name := range c.clusters {
				if c.finished == finished {
					counts[name]++
				}
			}
		}
		for name, n := range counts {
			if n > counts[cluster] || n == counts[cluster] && name < cluster {
				cluster = name
			}
		}
		if cluster != "" {
			at := slices.IndexFunc(others, func(c companion) bool { return slices.Contains(c.clusters, cluster) })
			return cluster, others[at]
		}
	}
	return "", companion{}
}

// stayNear adds obstacles in the clusters that lack an object without which this one cannot run there.
// Objects in one cluster need none: they go there together.
func (snap *Snapshot) stayNear(r *placement.Request, self *groups.Member[object], others []companion, whole map[object]string, inOne bool) {
	for _, near := range self.Near {
		found, decided := map[string]bool{}, false
		for _, id := range near.Of {
			if _, is := whole[id]; is && inOne && !near.Numbered {
				decided = false
				break
			}
			i := slices.IndexFunc(others, func(c companion) bool { return c.ID == id })
			if i < 0 {
				continue
			}
			_, shares, _ := snap.Groups.Member(id)
			for _, share := range shares {
				decided = true
				if share.Replicas == nil || *share.Replicas > 0 && (!near.Numbered || hasOrdinal(share, near.Ordinal)) {
					found[share.Name] = true
				}
			}
		}
		if !decided {
			continue
		}
		for _, name := range snap.Fleet.Names() {
			if !found[name] {
				r.Obstruct(name, placement.Obstacle{Reason: placement.ReasonGroup,
					Message: fmt.Sprintf("lacks its neighbours (%s), which are in %s", near.Why, names.List(slices.Sorted(maps.Keys(found))))})
			}
		}
	}
}

func hasOrdinal(share v1alpha1.ClusterShare, n int32) bool {
	start := int32(0)
	if share.OrdinalStart != nil {
		start = *share.OrdinalStart
	}
	return start <= n && n < start+*share.Replicas
}

// groupText names in a preview the group with which an object moves.
func (t *Together) groupText() string {
	if t == nil || len(t.Members) == 0 {
		return ""
	}
	first := t.Members[0]
	others := fmt.Sprintf("%s %s", first.Kind, first.Name)
	if more := len(t.Members) - 1; more > 0 {
		others += fmt.Sprintf(" and %d more", more)
	}
	return "; with its group: " + others
}

// message says in a binding's condition why the object is not divided.
func (t *Together) message() string {
	if t == nil || t.Undivided == "" {
		return ""
	}
	return "; not divided: " + t.Undivided
}
