package placement

import (
	"slices"
	"time"

	"github.com/atoll-dev/atoll/fleet/capacity"
)

const (
	// grantTime is how long pods that a decision gave to a cluster count as running there although the cluster
	// does not report them: it reports free room every few seconds.
	grantTime = 30 * time.Second
	// seenTime is how long after a workload is healthy the pods are in the next report for certain.
	seenTime = 2 * time.Second
)

// grant is what a decision gave to a cluster.
type grant struct {
	object string
	pods   []capacity.Pods
	share  int32 // of the object then
	at     time.Time
	seen   time.Time // when the object was healthy there; zero if it is not known to be

	namespace string
	counted   []quotaPods // nil unless the cluster has quotas
}

// GrantedRecently reports whether a decision of some time may not be in the reports of clusters yet.
func GrantedRecently(at, now time.Time) bool { return now.Sub(at) < grantTime }

// Expire forgets decisions that are so old that reports have their pods. It returns their clusters.
func (r *Rooms) Expire(now time.Time) (changed []string) {
	for name, c := range r.clusters {
		before := len(c.grants)
		c.grants = slices.DeleteFunc(c.grants, func(g grant) bool { return now.Sub(g.at) >= grantTime })
		before += len(c.promises)
		c.promises = slices.DeleteFunc(c.promises, func(p promise) bool { return !now.Before(p.until) })
		if len(c.grants)+len(c.promises) != before {
			r.update(name)
			changed = append(changed, name)
		}
	}
	return changed
}

// Seen records that an object is healthy in a cluster: all of its pods are there.
func (r *Rooms) Seen(object, cluster string, now time.Time) {
	if c := r.clusters[cluster]; c != nil {
		for i := range c.grants {
			if g := &c.grants[i]; g.object == object && g.seen.IsZero() {
				g.seen = now
			}
		}
	}
}

// Grant records the pods that a decision adds in clusters. It replaces those of earlier decisions about the object
// that its binding does not have.
func (r *Rooms) Grant(o *Object, previous, shares []Share, now time.Time) {
	r.withdraw(o.Key, previous)
	for _, s := range shares {
		c := r.clusters[s.Cluster]
		if c == nil {
			continue
		}
		n, had := o.times(s), int32(0)
		if i := slices.IndexFunc(previous, func(p Share) bool { return p.Cluster == s.Cluster }); i >= 0 {
			had = o.times(previous[i])
		}
		if n <= had {
			continue
		}
		more := o.podsFor(n - had)
		pods := r.demandsOf(more)
		if len(pods) == 0 {
			continue
		}
		g := grant{object: o.Key, pods: pods, share: n, at: now, namespace: o.Namespace}
		if len(r.quotas[o.Namespace][s.Cluster]) > 0 {
			g.counted = quotaPodsOf(more)
		}
		c.grants = append(c.grants, g)
		r.granted[o.Key] = append(r.granted[o.Key], s.Cluster)
		r.take(s.Cluster, pods)
	}
}

// Withdraw forgets the recent decisions about an object that is gone.
func (r *Rooms) Withdraw(object string) {
	r.withdraw(object, nil)
	r.unpromise(object)
}

// withdraw forgets recent decisions about an object beyond its shares.
func (r *Rooms) withdraw(object string, shares []Share) {
	var keep []string
	for _, name := range r.granted[object] {
		c := r.clusters[name]
		if c == nil {
			continue
		}
		before := len(c.grants)
		has := false
		c.grants = slices.DeleteFunc(c.grants, func(g grant) bool {
			if g.object != object {
				return false
			}
			i := slices.IndexFunc(shares, func(s Share) bool { return s.Cluster == name })
			beyond := i < 0 || !shares[i].Whole && shares[i].Replicas < g.share
			has = has || !beyond
			return beyond
		})
		if has {
			keep = append(keep, name)
		}
		if len(c.grants) != before {
			r.update(name)
		}
	}
	if len(keep) == 0 {
		delete(r.granted, object)
		return
	}
	slices.Sort(keep)
	r.granted[object] = slices.Compact(keep)
}

// take is update after pods were added to the decisions about a cluster.
func (r *Rooms) take(cluster string, pods []capacity.Pods) {
	if r.fleet == nil {
		return
	}
	at, ok := r.fleet.index[cluster]
	if !ok || r.nodes[at] == nil {
		return
	}
	if len(r.clusters[cluster].promises) > 0 {
		r.update(cluster) // promises count after decisions
		return
	}
	for _, p := range pods {
		r.nodes[at], _ = r.nodes[at].Less(p.Demand, p.Count)
	}
}
