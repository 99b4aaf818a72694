package scheduler

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/capacity"
	"github.com/atoll-dev/atoll/fleet/placement"
)

const (
	// roomInterval is how often the objects that wait for room are examined at most, and expiryInterval how often
	// without news about nodes.
	roomInterval   = time.Second
	expiryInterval = 5 * time.Second
	// mostAtOnce bounds the objects that are decided again at one time: the first ones may take all the room.
	mostAtOnce = 200
)

// waitingObject is an object that waits for room.
type waitingObject struct {
	object placement.Object
	whole  bool // it needs room for all of its pods in one cluster
	since  time.Time
	// priority of its pods: see priorityOf.
	priority int32
	// runs: it needs the room only to leave a drained cluster.
	runs bool
}

// lowestRank bounds how long objects of lower priorities are deferred.
const lowestRank = 5

// trackRoom records whether an object waits for room. The caller holds allocationsMu.
func (s *scheduler) trackRoom(o object, obj *unstructured.Unstructured, a *Result) {
	s.preemptions.setClass(o, className(obj))
	if !a.Decision.Waits {
		s.preemptions.succeeded(o)
	}
	if !a.Decision.Waits && (!a.Decision.Blocked || a.Request.Room == nil) {
		delete(s.cache.waiting, o)
		return
	}
	w, is := s.cache.waiting[o]
	if !is {
		w.since = a.Request.Now
	}
	w.priority, w.runs = s.podPriority(obj).value, !a.Decision.Waits
	w.object, w.whole = a.Request.Object, a.Decision.Mode != v1alpha1.ModeDivided
	s.cache.waiting[o] = w
}

// nodesReported records the nodes of a cluster as it reports them; nil if they are not known.
func (s *scheduler) nodesReported(cluster string, nodes *capacity.Nodes, quotas []v1alpha1.NamespaceQuota) {
	s.cache.allocationsMu.Lock()
	s.cache.rooms.Report(cluster, nodes, s.Clock.Now())
	s.cache.rooms.ReportQuotas(cluster, quotas)
	s.cache.allocationsMu.Unlock()
	s.roomChanged(cluster)
}

// roomChanged has the objects decided again that wait for room in some clusters.
func (s *scheduler) roomChanged(clusters ...string) {
	s.cache.allocationsMu.Lock()
	for _, name := range clusters {
		s.cache.reported[name] = true
	}
	s.cache.allocationsMu.Unlock()
	select {
	case s.cache.roomChanged <- struct{}{}:
	default:
	}
}

// followRoom queues the objects that wait for room when there is some, until ctx ends.
func (s *scheduler) followRoom(ctx context.Context) {
	for {
		expire := s.Clock.NewTimer(expiryInterval)
		select {
		case <-ctx.Done():
			expire.Stop()
			return
		case <-s.cache.roomChanged:
			expire.Stop()
		case <-expire.C():
		}
		s.requeueFor(s.changedRoom())
		pause := s.Clock.NewTimer(roomInterval)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C():
		}
	}
}

// changedRoom returns the clusters that may have more room than before.
func (s *scheduler) changedRoom() []string {
	s.cache.allocationsMu.Lock()
	defer s.cache.allocationsMu.Unlock()
	changed := s.cache.rooms.Expire(s.Clock.Now())
	changed = append(changed, slices.Collect(maps.Keys(s.cache.reported))...)
	clear(s.cache.reported)
	return changed
}

// requeueFor queues the objects that wait and have room in one of some clusters: those of the highest priority first,
// and of equal priority those that wait longest. Objects that run in a drained cluster come last. Workers decide concurrently, so each lower priority is deferred until
// the ones above it are decided.
func (s *scheduler) requeueFor(clusters []string) {
	fleet := s.fleetSnapshot()
	s.cache.allocationsMu.Lock()
	defer s.cache.allocationsMu.Unlock()
	if len(clusters) == 0 || len(s.cache.waiting) == 0 {
		return
	}
	suited := make([]object, 0, len(s.cache.waiting))
	for o, w := range s.cache.waiting {
		if s.cache.rooms.Suit(fleet, &w.object, w.whole, clusters) {
			suited = append(suited, o)
		}
	}
	slices.SortFunc(suited, func(a, b object) int {
		if s.cache.waiting[a].runs != s.cache.waiting[b].runs {
			if s.cache.waiting[b].runs {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(s.cache.waiting[b].priority, s.cache.waiting[a].priority), s.cache.waiting[a].since.Compare(s.cache.waiting[b].since), strings.Compare(a.NamespacedName.String(), b.NamespacedName.String()), strings.Compare(a.Kind, b.Kind))
	})
	rank := time.Duration(0)
	for i, o := range suited[:min(len(suited), mostAtOnce)] {
		if i > 0 && s.cache.waiting[o].priority < s.cache.waiting[suited[i-1]].priority && rank < lowestRank {
			rank++
		}
		s.queue.AddAfter(o, rank*roomInterval)
	}
}

// grantRecent records what a binding gave to clusters a moment ago, as far as they do not run it yet: another leader
// may have decided that.
func grantRecent(rooms *placement.Rooms, o *placement.Object, b *v1alpha1.ResourceBinding, now time.Time) {
	if !placement.GrantedRecently(b.CreationTimestamp.Time, now) {
		return
	}
	given := slices.DeleteFunc(previous(b), func(s placement.Share) bool {
		state, reported := b.State(s.Cluster)
		return reported && state.Health == v1alpha1.Healthy
	})
	rooms.Grant(o, nil, given, b.CreationTimestamp.Time)
}

// healthReported records where an object is healthy: all of its pods are there.
func (s *scheduler) healthReported(was, is *v1alpha1.ResourceBinding) {
	if is == nil {
		return
	}
	o := boundBy(is)
	key := ""
	for i := range is.Status.Clusters {
		state := &is.Status.Clusters[i]
		if state.Health != v1alpha1.Healthy {
			continue
		}
		if was != nil {
			if before, had := was.State(state.Name); had && before.Health == v1alpha1.Healthy && before.MemberGeneration == state.MemberGeneration {
				continue
			}
		}
		if key == "" {
			key = KeyOf(o.GroupKind, o.Namespace, o.Name)
			s.cache.allocationsMu.Lock()
			defer s.cache.allocationsMu.Unlock()
		}
		s.cache.rooms.Seen(key, state.Name, s.Clock.Now())
	}
}
