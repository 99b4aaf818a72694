package scheduler

import (
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// ReasonVolumesStay means that an object stays in its clusters because it would begin elsewhere with empty volumes.
const ReasonVolumesStay = "VolumesStay"

// volumesOf returns what the volumes of an object mean for its moves.
func (snap *Snapshot) volumesOf(k interpret.KindInfo, obj *unstructured.Unstructured) volumes.Verdict {
	pods := []map[string]any{interpret.PodSpec(obj.Object)}
	if parts, err := k.Components(obj); err == nil {
		for _, part := range parts {
			pods = append(pods, part.Pod)
		}
	}
	claims := volumes.ClaimsOf(obj.Object, pods, func(name string) (*unstructured.Unstructured, bool) {
		if snap.Claim == nil {
			return nil, false
		}
		return snap.Claim(obj.GetNamespace(), name)
	})
	return volumes.Judge(claims, snap.Volumes)
}

// keepVolumes decides again if a decision would take an object away from its volumes: first with the clusters that have
// them held and all others obstructed, and if that would still do so, with nothing changed but surplus replicas.
func (snap *Snapshot) keepVolumes(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) {
	if b == nil || sameShares(b.Spec.Clusters, a.Shares) {
		return
	}
	v := snap.volumesOf(k, obj)
	carried := len(v.Carried) > 0
	if !v.Stays && !carried || carried && sameShares(b.Decided(), a.Shares) {
		return // the latter is a transition that goes on when it can
	}
	if g := a.Request.Group; g != nil && g.Pinned && !v.Templates {
		return // the group is where the volume is
	}
	h := snap.holding(b, a.Request.Object.Replicas)
	if !v.Moves(&h, a.Shares) {
		return
	}
	hindrance := ""
	if carried {
		if hindrance = snap.hindrance(a, k, obj, b, &v, &h); hindrance == "" {
			return
		}
		hindrance = "; " + hindrance
	}
	a.Preemption = nil // it needs no room elsewhere
	snap.obstructVolumes(&a.Request, &h, &v)
	a.decideAgain(k)
	total := wantedTotal(&a.Request)
	fixed := len(a.Shares) == 0 || v.Moves(&h, a.Shares) || h.Ends(a.Shares, total)
	if fixed {
		a.Request.Fixed = "its volumes stay where they are"
		a.Request.Previous, a.Request.Ordinals = nil, nil
		kept := &v1alpha1.ResourceBinding{Spec: v1alpha1.ResourceBindingSpec{Clusters: h.Kept(total)}}
		if a.Request.Previous = previous(kept); hasOrdinals(k) {
			a.Request.Ordinals = ordinals(kept)
		}
		a.decideAgain(k)
	}
	a.Volumes = fmt.Sprintf("it stays in %s with its volumes (%s)", names.List(clusterNames(a.Shares)), v.Text())
	if !fixed && !a.isKept() && a.Decision.Scheduled {
		return // it is as its policy asks for
	}
	a.Decision.Scheduled, a.Decision.Reason = false, ReasonVolumesStay
	a.Decision.Message = a.Volumes + a.keptCause() + hindrance + ". " + v.Remedy()
	if a.Decision.Unplaced > 0 {
		a.Decision.Message = fmt.Sprintf("%d of %d replicas have no cluster; ", a.Decision.Unplaced, a.Request.Object.Replicas) + a.Decision.Message
	}
}

// obstructVolumes holds an object in the clusters where it runs with its volumes, and keeps it out of all others.
func (snap *Snapshot) obstructVolumes(r *placement.Request, h *volumes.Holding, v *volumes.Verdict) {
	in := clusterNames(h.Shares)
	if len(in) == 0 {
		in = h.Clusters // it is still there, although it was to leave
	}
	r.Held = make(map[string]bool, len(in))
	for _, name := range in {
		r.Held[name] = true
	}
	where := names.List(in)
	none := fmt.Sprintf("has none of its volumes (%s), which are in %s", v.Text(), where)
	others := fmt.Sprintf("has other volumes of it (%s) than the ones with which it runs in %s", v.Text(), where)
	for _, name := range snap.Fleet.Names() {
		switch {
		case r.Held[name]:
		case h.Has(name):
			r.Obstruct(name, placement.Obstacle{Reason: ReasonVolumesStay, Message: others})
		default:
			r.Obstruct(name, placement.Obstacle{Reason: ReasonVolumesStay, Message: none})
		}
	}
}

// decideAgain replaces the decision by the one for the changed request.
func (a *Result) decideAgain(k interpret.KindInfo) {
	a.Decision = placement.Decide(a.Request)
	a.Shares = shares(a.Decision)
	if hasOrdinals(k) && a.Decision.Mode == v1alpha1.ModeDivided {
		setOrdinals(a.Shares, a.Request.Ordinals)
	}
}

// wantedTotal returns how many replicas a decision is about.
func wantedTotal(r *placement.Request) int32 {
	if r.Settled > 0 {
		return r.Settled
	}
	return r.Object.Replicas
}

// isKept reports whether the object is in a cluster that it would leave if others could take it.
func (a *Result) isKept() bool {
	return slices.ContainsFunc(a.Shares, func(s v1alpha1.ClusterShare) bool {
		return s.Reason == placement.ReasonKeptVolumes || s.Reason == placement.ReasonKeptNoAlternative
	})
}

// keptCause names the first cluster that the object would leave, and why.
func (a *Result) keptCause() string {
	i := slices.IndexFunc(a.Shares, func(s v1alpha1.ClusterShare) bool { return s.Reason == placement.ReasonKeptVolumes })
	if i < 0 {
		return ", although its replicas are to be divided in another way"
	}
	return fmt.Sprintf("; %s %s", a.Shares[i].Name, a.Shares[i].Message)
}

// holding returns where an object and its volumes are.
func (snap *Snapshot) holding(b *v1alpha1.ResourceBinding, replicas int32) volumes.Holding {
	h := volumes.Holding{Replicas: replicas}
	add := func(cluster string) bool {
		f, joined := snap.Fleet.Cluster(cluster)
		if !joined || f.Leaving {
			return false
		}
		if !h.Has(cluster) {
			h.Clusters = append(h.Clusters, cluster)
		}
		return true
	}
	for _, share := range b.Spec.Clusters {
		if add(share.Name) {
			h.Shares = append(h.Shares, share)
		}
	}
	for i := range b.Status.Clusters {
		if b.Status.Clusters[i].UID != "" {
			add(b.Status.Clusters[i].Name)
		}
	}
	return h
}

// volumesOfGroup returns the cluster of an object where another member of its group stays with its volumes, or "". The
// group moves as a whole, so the object does not leave without it.
func (snap *Snapshot) volumesOfGroup(r *placement.Request, others []companion) (cluster string, of companion) {
	if len(r.Previous) != 1 {
		return "", companion{}
	}
	for _, c := range others {
		if c.finished || len(c.clusters) != 1 || c.clusters[0] != r.Previous[0].Cluster {
			continue
		}
		if v := snap.volumesOf(c.Kind, c.Object); v.Stays {
			return c.clusters[0], c
		}
	}
	return "", companion{}
}

// movesPods reports whether pods of an object may run in another cluster instead.
func (snap *Snapshot) movesPods(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	return movesPending(k, obj) || snap.sharesVolumes(k, obj)
}

// staysPut is staysPut for objects whose volumes may have the same data in every cluster.
func (snap *Snapshot) staysPut(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	return isUnrepeatable(k) || !snap.movesPods(k, obj)
}

// sharesVolumes reports whether the volumes of an object have the same data in every cluster.
func (snap *Snapshot) sharesVolumes(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	v := snap.volumesOf(k, obj)
	return v.Shared
}

// volumeRules are the policies for volumes, and the objects that stay with their volumes.
type volumeRules struct {
	mu       sync.Mutex
	policies *volumes.Policies
	stay     map[object]bool
}

func newVolumeRules() *volumeRules { return &volumeRules{stay: map[object]bool{}} }

func (r *volumeRules) current() *volumes.Policies {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policies
}

func (r *volumeRules) set(all []*v1alpha1.VolumePolicy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.policies = volumes.Compile(all)
}

// track records whether an object stays with its volumes.
func (r *volumeRules) track(o object, stays bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stays {
		r.stay[o] = true
	} else {
		delete(r.stay, o)
	}
}

func (r *volumeRules) staying() []object {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]object, 0, len(r.stay))
	for o := range r.stay {
		out = append(out, o)
	}
	return out
}

// volumePolicyChanged queues the objects that stay with their volumes: they may move by another policy.
func (s *scheduler) volumePolicyChanged(was, is *v1alpha1.VolumePolicy) {
	if was != nil && is != nil && was.UID == is.UID && was.Generation == is.Generation {
		return
	}
	s.volumes.set(s.Policies.Volumes.All())
	for _, o := range s.volumes.staying() {
		s.queue.Add(o)
	}
}

// claimOf returns a claim of the control plane.
func (s *scheduler) claimOf(namespace, name string) (*unstructured.Unstructured, bool) {
	return s.Objects.Get(claimKind(), types.NamespacedName{Namespace: namespace, Name: name})
}

// claimOf returns a claim of the control plane.
func (s *State) claimOf(namespace, name string) (*unstructured.Unstructured, bool) {
	claim, exists := s.claims[KeyOf(claimKind(), namespace, name)]
	return claim, exists
}
