package placement

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/capacity"
	fleetquota "github.com/atoll-dev/atoll/fleet/quota"
)

// amounts are thousandths of resources, by the names that quotas use.
type amounts map[corev1.ResourceName]int64

// quotaLimit is a ResourceQuota of a cluster.
type quotaLimit struct {
	name   string
	scopes []corev1.ScopedResourceSelectorRequirement
	free   amounts
}

// quotaPods are pods that quotas of their namespace count.
type quotaPods struct {
	spec  *corev1.PodSpec
	uses  amounts // of one
	count int64
}

// quotaBound is the room that a cluster's quotas leave for an object.
type quotaBound struct {
	name     string // of the quota with the least room
	replicas int64
	whole    bool // there is room for the whole object
}

// ReportQuotas records the ResourceQuotas of a cluster as it reports them.
func (r *Rooms) ReportQuotas(cluster string, quotas []v1alpha1.NamespaceQuota) {
	for namespace, in := range r.quotas {
		if delete(in, cluster); len(in) == 0 {
			delete(r.quotas, namespace)
		}
	}
	c := r.clusters[cluster]
	if c == nil {
		if len(quotas) == 0 {
			return
		}
		c = &clusterRoom{}
		r.clusters[cluster] = c
	}
	if c.limited = len(quotas) > 0; !c.limited && c.reported == nil {
		delete(r.clusters, cluster)
	}
	for _, q := range quotas {
		if r.quotas[q.Namespace] == nil {
			r.quotas[q.Namespace] = map[string][]quotaLimit{}
		}
		r.quotas[q.Namespace][cluster] = append(r.quotas[q.Namespace][cluster], quotaLimit{q.Name, q.Scopes, amountsOf(q.Free)})
	}
}

func amountsOf(list corev1.ResourceList) amounts {
	out := make(amounts, len(list))
	for name, q := range list {
		out[name] = milli(q)
	}
	return out
}

// milli returns thousandths; those of very large amounts are bounded.
func milli(q resource.Quantity) int64 {
	if q.Value() > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return q.MilliValue()
}

// quotaPodsOf returns pods as quotas count them. A spec that cannot be read counts nothing: the clusters' API servers
// explain the error.
func quotaPodsOf(pods []Pods) (out []quotaPods) {
	for _, p := range pods {
		spec := &corev1.PodSpec{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(p.Spec, spec); err != nil {
			continue
		}
		uses, err := fleetquota.UsesOf([]fleetquota.Pods{{Count: 1, Spec: p.Spec}})
		if err != nil {
			continue
		}
		one := amountsOf(uses)
		one["count/pods"] = one[corev1.ResourcePods]
		out = append(out, quotaPods{spec, one, p.Count})
	}
	return out
}

// uses adds up the pods that a quota counts.
func (l *quotaLimit) uses(pods []quotaPods) amounts {
	out := amounts{}
	for _, p := range pods {
		if capacity.InScopes(l.scopes, p.spec) {
			for name, n := range p.uses {
				out[name] += n * p.count
			}
		}
	}
	return out
}

// withinQuotas returns the room that the quotas of clusters leave for an object, and for others that must have room in
// the same cluster, by position in the fleet; nil if no cluster has quotas in the object's namespace.
func (r *Rooms) withinQuotas(o *Object, others []Pods) map[int32]quotaBound {
	in := r.quotas[o.Namespace]
	if o.Namespace == "" || len(in) == 0 {
		return nil
	}
	one, all := quotaPodsOf(o.Pods), quotaPodsOf(append(o.WholePods(), others...))
	out := map[int32]quotaBound{}
	for cluster, limits := range in {
		at, joined := r.fleet.index[cluster]
		if !joined {
			continue
		}
		bound := quotaBound{replicas: math.MaxInt64, whole: true}
		for i := range limits {
			l := &limits[i]
			given := l.uses(r.clusters[cluster].givenIn(o.Namespace))
			each, whole := l.uses(one), l.uses(all)
			for name, free := range l.free {
				left := max(0, free-given[name])
				if n := each[name]; n > 0 && left/n < bound.replicas {
					bound.name, bound.replicas = l.name, left/n
				}
				if whole[name] > left {
					bound.whole = false
				}
			}
		}
		if bound.name != "" {
			out[at] = bound
		}
	}
	return out
}

// givenIn returns the pods of recent decisions in a namespace.
func (c *clusterRoom) givenIn(namespace string) (out []quotaPods) {
	for i := range c.grants {
		if g := &c.grants[i]; g.namespace == namespace {
			out = append(out, g.counted...)
		}
	}
	return out
}

// quotaFor returns the quota that bounds an object in a cluster more than its nodes do.
func (r *Room) quotaFor(o *Object, at int32) (quotaBound, bool) {
	if r == nil {
		return quotaBound{}, false
	}
	b, bounded := r.quotas[at]
	if !bounded {
		return b, false
	}
	n, known := r.onNodes(o, at)
	b.replicas = o.runningAtOnce(b.replicas)
	return b, !known || b.replicas < n
}

// runningAtOnce returns for how many replicas there is room if so many of them can run at the same time.
func (o *Object) runningAtOnce(n int64) int64 {
	if o.AtOnce > 0 && o.AtOnce < o.Replicas && n < math.MaxInt64/int64(o.Replicas) {
		return n * int64(o.Replicas) / int64(o.AtOnce)
	}
	return n
}
