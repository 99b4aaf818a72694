package placement

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/capacity"
)

// Cluster has the facts about a cluster that placement uses.
type Cluster struct {
	Name string
	// Joined orders the clusters: the remainder of a division goes to the first ones.
	Joined time.Time
	Ready  bool
	// Since is when Ready last changed, or for an unreachable cluster when it became unreachable.
	Since time.Time
	// Why is the reason why the cluster is not Ready.
	Why string
	// Confirmed: the caller has itself observed that the cluster is not Ready. A status that was
	// recorded before a restart may be outdated.
	Confirmed bool
	// EvictAfter is how long an unreachable cluster keeps its share.
	EvictAfter time.Duration
	// HoldRecorded: its condition FailoverHeld is True. HeldUntil is when that became False; zero if it never was True.
	HoldRecorded  bool
	HeldUntil     time.Time
	hold          hold // computed by NewFleet
	Unschedulable bool
	Leaving       bool
	// Draining: its objects move to other clusters. With DrainPaused, no further ones do.
	Draining, DrainPaused bool
	Labels                map[string]string
	Taints                []v1alpha1.Taint
	// Limits bound what the fleet may place there.
	Limits *v1alpha1.ClusterLimits
	// Allocatable is what the cluster has for pods; nil if unknown.
	Allocatable *Resources
	// Nodes are nil if unknown, or if the cluster gets more of them when pods wait.
	Nodes *capacity.Nodes
	// Quotas are the ResourceQuotas that limit pods there.
	Quotas []v1alpha1.NamespaceQuota
	// Object is the complete Cluster, for policies that read its fields.
	Object *v1alpha1.Cluster
}

// FromCluster converts a Cluster. A status that was observed at or after since counts as confirmed.
func FromCluster(c *v1alpha1.Cluster, since time.Time) Cluster {
	f := Cluster{Name: c.Name, Joined: c.CreationTimestamp.Time, Since: c.CreationTimestamp.Time, EvictAfter: c.EvictAfter(),
		Unschedulable: c.Spec.Unschedulable, Labels: c.Labels, Taints: c.TaintsWithTime(), Limits: c.Spec.Limits, Quotas: c.Status.NamespaceQuotas, Object: c}
	f.Leaving, _ = c.Leaving()
	f.Draining, f.DrainPaused = c.Spec.Drain != nil, c.Spec.Drain != nil && c.Spec.Drain.Paused
	for _, condition := range c.Status.Conditions {
		if condition.Type == v1alpha1.ClusterReady {
			f.Ready = condition.Status == metav1.ConditionTrue
			f.Since = condition.LastTransitionTime.Time
			if !f.Ready {
				f.Why = condition.Reason
			}
		}
		if condition.Type == v1alpha1.ClusterFailoverHeld {
			if f.HoldRecorded = condition.Status == metav1.ConditionTrue; !f.HoldRecorded {
				f.HeldUntil = condition.LastTransitionTime.Time
			}
		}
	}
	if f.isUnreachable() && c.Status.UnreachableSince != nil {
		f.Since = c.Status.UnreachableSince.Time
	}
	// A ready cluster needs no confirmation, and a change of it requires no decision.
	f.Confirmed = f.Ready || ObservedSince(c, since)
	if len(c.Status.Allocatable) > 0 {
		a := ResourcesFrom(c.Status.Allocatable)
		f.Allocatable = &a
	}
	if !c.Spec.Elastic {
		f.Nodes = capacity.Prepare(c.Status.NodeShapes)
	}
	return f
}

// ObservedSince reports whether a Cluster was probed at or after a time. Times in the API have whole
// seconds.
func ObservedSince(c *v1alpha1.Cluster, since time.Time) bool {
	return c.Status.LastProbeTime != nil && !c.Status.LastProbeTime.Time.Before(since.Truncate(time.Second))
}

// EqualForPolicies reports whether two states of a cluster are equal for all policies, except for
// those that read the complete object.
func (c *Cluster) EqualForPolicies(other *Cluster) bool {
	return c.Name == other.Name && c.Joined.Equal(other.Joined) && c.Ready == other.Ready && c.Since.Equal(other.Since) &&
		c.Why == other.Why && c.Confirmed == other.Confirmed && c.EvictAfter == other.EvictAfter && c.fences() == other.fences() &&
		c.HoldRecorded == other.HoldRecorded && c.HeldUntil.Equal(other.HeldUntil) &&
		c.Draining == other.Draining && c.DrainPaused == other.DrainPaused && c.Unschedulable == other.Unschedulable && c.Leaving == other.Leaving && maps.Equal(c.Labels, other.Labels) &&
		equality.Semantic.DeepEqual(c.Taints, other.Taints) && equality.Semantic.DeepEqual(c.Limits, other.Limits) &&
		equality.Semantic.DeepEqual(c.Allocatable, other.Allocatable) && c.Nodes.SameKinds(other.Nodes)
}

// Fleet is the set of all clusters at one time, prepared for many decisions. It is immutable and
// safe for concurrent use.
type Fleet struct {
	clusters []Cluster // in order of joining
	index    map[string]int32
	hashes   []uint64
	noPolicy *Policy // applies when no policy does
	// These concern any cluster; each decision asks for them.
	knowsNodes, knowsQuotas, limited, drains bool

	mu      sync.Mutex
	objects []map[string]any // Cluster.Object as maps, filled on demand
	views   map[*Policy]*policyView
	rooms   map[string][]capacity.Room
}

// NewFleet prepares clusters, given in any order.
func NewFleet(clusters []Cluster) *Fleet {
	f := &Fleet{clusters: slices.Clone(clusters), index: make(map[string]int32, len(clusters)),
		hashes: make([]uint64, len(clusters)), objects: make([]map[string]any, len(clusters)), views: map[*Policy]*policyView{},
		rooms: map[string][]capacity.Room{}, noPolicy: noPolicy()}
	slices.SortFunc(f.clusters, func(a, b Cluster) int {
		return cmp.Or(a.Joined.Compare(b.Joined), cmp.Compare(a.Name, b.Name))
	})
	holdFailovers(f.clusters)
	for i := range f.clusters {
		f.index[f.clusters[i].Name] = int32(i)
		f.hashes[i] = hash(f.clusters[i].Name)
		c := &f.clusters[i]
		f.knowsNodes, f.knowsQuotas, f.limited = f.knowsNodes || c.Nodes != nil, f.knowsQuotas || len(c.Quotas) > 0, f.limited || c.Limits != nil
		f.drains = f.drains || c.Draining
	}
	return f
}

// noPolicy returns an empty policy, which is always valid.
func noPolicy() *Policy {
	p, err := Compile(&v1alpha1.PlacementSpec{})
	if err != nil {
		panic(err)
	}
	return p
}

// mostRooms bounds the pods whose room is remembered. Those of most workloads ask much the same.
const mostRooms = 1000

// TooSmall returns why clusters have no node that could run pods with a spec, even an empty one.
func (f *Fleet) TooSmall(pod map[string]any) map[string]string {
	var out map[string]string
	for i, room := range f.roomFor(pod) {
		if room.Why != "" {
			if out == nil {
				out = map[string]string{}
			}
			out[f.clusters[i].Name] = room.Why
		}
	}
	return out
}

// KnowsRoom reports whether the nodes of any cluster are known, or quotas of it.
func (f *Fleet) KnowsRoom() bool { return f.knowsNodes || f.knowsQuotas }

// KnowsNodes reports whether the nodes of any cluster are known.
func (f *Fleet) KnowsNodes() bool { return f.knowsNodes }

// roomFor returns the room of each cluster. It is not known for a spec that cannot be read: the clusters' own
// API servers explain the error.
func (f *Fleet) roomFor(pod map[string]any) []capacity.Room {
	key := capacity.KeyOf(pod)
	f.mu.Lock()
	out, ok := f.rooms[key]
	f.mu.Unlock()
	if ok {
		return out
	}
	d, err := capacity.DemandOf(pod)
	if err != nil {
		return nil
	}
	out = make([]capacity.Room, len(f.clusters))
	for i := range f.clusters {
		if n := f.clusters[i].Nodes; n != nil {
			out[i] = n.RoomFor(d)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.rooms) >= mostRooms {
		clear(f.rooms)
	}
	f.rooms[key] = out
	return out
}

// With returns a fleet with one cluster added or replaced.
func (f *Fleet) With(c Cluster) *Fleet {
	return NewFleet(append(slices.DeleteFunc(slices.Clone(f.clusters), func(o Cluster) bool { return o.Name == c.Name }), c))
}

// Without returns a fleet without one cluster.
func (f *Fleet) Without(name string) *Fleet {
	return NewFleet(slices.DeleteFunc(slices.Clone(f.clusters), func(o Cluster) bool { return o.Name == name }))
}

// Cluster returns the facts about one cluster.
func (f *Fleet) Cluster(name string) (Cluster, bool) {
	i, ok := f.index[name]
	if !ok {
		return Cluster{}, false
	}
	return f.clusters[i], true
}

// Names returns the clusters in order of joining.
func (f *Fleet) Names() []string {
	out := make([]string, len(f.clusters))
	for i := range f.clusters {
		out[i] = f.clusters[i].Name
	}
	return out
}

// object returns a function for a complete Cluster as maps, for the few policies that read it.
func (f *Fleet) object(i int32) func() map[string]any {
	return func() map[string]any {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.objects[i] == nil {
			f.objects[i] = f.clusters[i].content()
		}
		return f.objects[i]
	}
}

func (c *Cluster) content() map[string]any {
	if c.Object == nil {
		return map[string]any{}
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.Object)
	if err != nil {
		return map[string]any{} // a field that cannot be converted counts as missing
	}
	return m
}

// mostViews bounds the cached views. If labels name a cluster for each object, there may be as many
// policies as clusters, and each view has an entry for each cluster.
const mostViews = 100

// view returns a policy's view of the fleet. It is computed once, or a few times if there are many
// policies.
func (f *Fleet) view(p *Policy) *policyView {
	f.mu.Lock()
	v, ok := f.views[p]
	f.mu.Unlock()
	if ok {
		return v
	}
	v = newPolicyView(f, p)
	f.mu.Lock()
	defer f.mu.Unlock()
	if before, ok := f.views[p]; ok {
		return before
	}
	for old := range f.views {
		if len(f.views) < mostViews {
			break
		}
		delete(f.views, old) // any one: it can be computed again
	}
	f.views[p] = v
	return v
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return mix(h.Sum64())
}

// mix makes every bit of the result depend on every bit of x (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Drains reports whether any cluster is drained.
func (f *Fleet) Drains() bool { return f.drains }

// Limited reports whether any cluster limits what may be placed there.
func (f *Fleet) Limited() bool { return f.limited }
