package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

const (
	// pendingTime is how long pods have no node before they go to other clusters: nodes may come back, and other
	// pods may leave.
	pendingTime = 5 * time.Minute
	// movesPerSecond and movesAtOnce bound the objects whose pending pods move: many may have no node at the same
	// time, if nodes fail, and may get one soon.
	movesPerSecond = 1
	movesAtOnce    = 10
)

// pending has the pods that have no node, as clusters report them.
type pending struct {
	mu    sync.Mutex
	of    map[string]map[string]*pendingIn  // by KeyOf, by cluster
	in    map[string][]v1alpha1.PendingPods // by cluster
	moves *rate.Limiter
	// moving are the objects whose pending pods may move, until they are no longer pending.
	moving map[string]bool
}

// pendingIn are the pending pods of one object in one cluster.
type pendingIn struct {
	v1alpha1.PendingPods
	// rest is the share that remains when they have moved, once that was decided: a report that is older than the
	// move must not take more away.
	rest    int32
	decided bool
}

func newPending() *pending {
	return &pending{of: map[string]map[string]*pendingIn{}, in: map[string][]v1alpha1.PendingPods{},
		moves: rate.NewLimiter(movesPerSecond, movesAtOnce), moving: map[string]bool{}}
}

// report records the pending pods of a cluster, and returns them and those that it reported before.
func (p *pending) report(cluster string, pods []v1alpha1.PendingPods) (changed []v1alpha1.PendingPods) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.in[cluster]
	if slices.EqualFunc(before, pods, func(a, b v1alpha1.PendingPods) bool {
		return a.Count == b.Count && a.Since.Equal(&b.Since) && keyOfPending(a) == keyOfPending(b)
	}) {
		return nil
	}
	for _, w := range before {
		key := keyOfPending(w)
		if delete(p.of[key], cluster); len(p.of[key]) == 0 {
			delete(p.of, key)
		}
	}
	for _, w := range pods {
		key := keyOfPending(w)
		if p.of[key] == nil {
			p.of[key] = map[string]*pendingIn{}
		}
		p.of[key][cluster] = &pendingIn{PendingPods: w}
	}
	maps.DeleteFunc(p.moving, func(key string, _ bool) bool { return p.of[key] == nil })
	if len(pods) == 0 {
		delete(p.in, cluster)
	} else {
		p.in[cluster] = pods
	}
	return slices.Concat(before, pods)
}

func keyOfPending(w v1alpha1.PendingPods) string {
	return KeyOf(schema.ParseGroupKind(w.Kind), w.Namespace, w.Name)
}

// due returns the pods of an object that have had no node for a time, by cluster, and when to ask again: 0 means when
// clusters report something else.
func (p *pending) due(key string, shares []placement.Share, now time.Time, after time.Duration) (counts map[string]int32, again time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range shares {
		w := p.of[key][s.Cluster]
		if w == nil {
			continue
		}
		if left := after - now.Sub(w.Since.Time); left > 0 {
			if again == 0 || left < again {
				again = left
			}
			continue
		}
		n := w.Count
		if w.decided && !s.Whole {
			n = min(n, s.Replicas-w.rest)
		}
		if n <= 0 {
			continue
		}
		if counts == nil {
			counts = map[string]int32{}
		}
		counts[s.Cluster] = n
	}
	if counts == nil {
		return nil, again
	}
	if !p.moving[key] && !p.moves.AllowN(now, 1) {
		return nil, time.Second
	}
	p.moving[key] = true
	for _, s := range shares {
		if w := p.of[key][s.Cluster]; counts[s.Cluster] > 0 && !w.decided {
			w.rest, w.decided = max(0, s.Replicas-w.Count), true
		}
	}
	return counts, again
}

// movesPending reports whether pending pods of an object may run in another cluster. Those with volume claims may not:
// their data would stay behind.
func movesPending(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	claims, _, _ := unstructured.NestedSlice(obj.Object, "spec", "volumeClaimTemplates")
	if hasOrdinals(k) && len(claims) > 0 {
		return false
	}
	volumes, _ := k.PodSpec(obj)["volumes"].([]any)
	return !slices.ContainsFunc(volumes, func(v any) bool {
		volume, _ := v.(map[string]any)
		return volume["persistentVolumeClaim"] != nil
	})
}

// patience returns how long pods of an object wait for a node before they move: not at all if a user requests a
// rebalance.
func patience(obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) time.Duration {
	if placement.IsRequested(obj.GetAnnotations()[v1alpha1.RebalanceAnnotation], b.Spec.Inputs) {
		return 0
	}
	return pendingTime
}

// pendingOf returns the pods of an object that have had no node for too long, and has the object decided again when
// more of them have.
func (s *scheduler) pendingOf(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]int32 {
	o := refOf(k.GroupKind(), obj)
	counts, again := s.cache.pendingPods.due(KeyOf(o.GroupKind, o.Namespace, o.Name), previous(b), s.Clock.Now(), patience(obj, b))
	if again > 0 {
		s.queue.AddAfter(o, again)
	}
	return counts
}

// pendingText says that pods without a node moved, or "".
func (a *Result) pendingText() string {
	var from []string
	for _, was := range a.Request.Previous {
		i := slices.IndexFunc(a.Shares, func(s v1alpha1.ClusterShare) bool { return s.Name == was.Cluster })
		if a.Request.Pending[was.Cluster] > 0 && (i < 0 || a.Shares[i].Replicas != nil && *a.Shares[i].Replicas < was.Replicas) {
			from = append(from, fmt.Sprintf("%d of its pods had no node in %s", a.Request.Pending[was.Cluster], was.Cluster))
		}
	}
	if len(from) == 0 {
		return ""
	}
	return ": " + strings.Join(from, ", ")
}

// pendingReported records the pending pods of a cluster, and queues their workloads.
func (s *scheduler) pendingReported(cluster string, pods []v1alpha1.PendingPods) {
	for _, w := range s.cache.pendingPods.report(cluster, pods) {
		s.queue.Add(object{schema.ParseGroupKind(w.Kind), types.NamespacedName{Namespace: w.Namespace, Name: w.Name}})
	}
}

// pendingIn returns the pods that have had no node for too long, for a preview: all that may move.
func (s *State) pendingIn() func(interpret.KindInfo, *unstructured.Unstructured, *v1alpha1.ResourceBinding) map[string]int32 {
	p := newPending()
	p.moves = rate.NewLimiter(rate.Inf, 0)
	for _, c := range s.Clusters {
		p.report(c.Name, c.Status.PendingPods)
	}
	return func(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]int32 {
		counts, _ := p.due(KeyOf(k.GroupKind(), obj.GetNamespace(), obj.GetName()), previous(b), s.At, patience(obj, b))
		return counts
	}
}
