package scheduler

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/pace"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// turns decides when objects leave clusters that are unreachable or drained: many objects do at a time.
type turns struct {
	mu    sync.Mutex
	lines map[lineKey]*pace.Line[object]
	// leaving are the objects that are leaving each cluster, as their bindings say. A new leader knows them too.
	leaving map[string]map[object]bool
	// changed has an element if there may be further turns.
	changed chan struct{}
}

// lineKey identifies the objects that leave one cluster for one reason.
type lineKey struct {
	cluster string
	drained bool
}

func newTurns() *turns {
	return &turns{lines: map[lineKey]*pace.Line[object]{}, leaving: map[string]map[object]bool{}, changed: make(chan struct{}, 1)}
}

func (t *turns) signal() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// ask returns which of an object's departures have to wait, by cluster, and records that the object waits. It no longer
// waits for the other clusters of its previous decision.
func (t *turns) ask(o object, previous []placement.Share, departures []placement.Departure, priority func() int32, now time.Time) (awaits map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, share := range previous {
		for _, drained := range []bool{false, true} {
			if line := t.lines[lineKey{share.Cluster, drained}]; line != nil && !slices.Contains(departures, placement.Departure{Cluster: share.Cluster, Drained: drained}) && line.Forget(o) {
				t.signal()
			}
		}
	}
	for _, d := range departures {
		key := lineKey{d.Cluster, d.Drained}
		if t.lines[key] == nil {
			t.lines[key] = pace.NewLine(compareObjects)
		}
		if t.lines[key].Ask(o, priority(), now) {
			continue
		}
		if awaits == nil {
			awaits = map[string]bool{}
		}
		awaits[d.Cluster] = true
		t.signal()
	}
	return awaits
}

func compareObjects(a, b object) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Group, b.Group))
}

// bindingChanged records which clusters an object is leaving.
func (t *turns) bindingChanged(was, is *v1alpha1.ResourceBinding) {
	before, after := departing(was), departing(is)
	left := leftBy(was, is)
	if len(before)+len(after)+len(left) == 0 {
		return
	}
	b := is
	if is == nil {
		b = was
	}
	o := boundBy(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, cluster := range before {
		if delete(t.leaving[cluster], o); len(t.leaving[cluster]) == 0 {
			delete(t.leaving, cluster)
		}
	}
	for _, cluster := range after {
		if t.leaving[cluster] == nil {
			t.leaving[cluster] = map[object]bool{}
		}
		t.leaving[cluster][o] = true
	}
	for _, cluster := range left {
		for _, drained := range []bool{false, true} {
			if line := t.lines[lineKey{cluster, drained}]; line != nil {
				line.Forget(o)
			}
		}
	}
	t.signal()
}

// leftBy returns the clusters that a new decision leaves.
func leftBy(was, is *v1alpha1.ResourceBinding) (out []string) {
	if was == nil || is != nil && is.Generation == was.Generation && is.UID == was.UID {
		return nil
	}
	var now []v1alpha1.ClusterShare
	if is != nil && is.DeletionTimestamp == nil {
		now = is.Decided()
	}
	stays := clustersIn(now)
	for _, c := range was.Decided() {
		if !stays[c.Name] {
			out = append(out, c.Name)
		}
	}
	return out
}

// departing returns the clusters that an object is leaving: its decision does not name them, and they still run it or
// are to run it until others do. Followers go with the object that needs them, and a suspended object stays.
func departing(b *v1alpha1.ResourceBinding) (out []string) {
	if b == nil || b.DeletionTimestamp != nil || b.Spec.Policy == nil || b.Spec.Suspend {
		return nil
	}
	return undecidedIn(b)
}

// undecidedIn returns the clusters that have an object, or are to have it until others do, and that its decision does
// not name.
func undecidedIn(b *v1alpha1.ResourceBinding) (out []string) {
	decided := b.Decided()
	// The usual case needs no index: each reports as decided, in the same order.
	if b.Spec.Transition == nil && slices.EqualFunc(decided, b.Status.Clusters, func(c v1alpha1.ClusterShare, state v1alpha1.ClusterState) bool { return c.Name == state.Name }) {
		return nil
	}
	seen := clustersIn(decided)
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	if b.Spec.Transition != nil {
		for i := range b.Spec.Clusters {
			add(b.Spec.Clusters[i].Name)
		}
	}
	for i := range b.Status.Clusters {
		add(b.Status.Clusters[i].Name)
	}
	return out
}

// next returns the objects whose turn it is, and when to ask again.
func (t *turns) next(cluster func(name string) (*v1alpha1.Cluster, bool), now time.Time) (objects []object, again time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, line := range t.lines {
		c, joined := cluster(key.cluster)
		if !joined {
			delete(t.lines, key) // its objects are decided again, and find no cluster to leave
			continue
		}
		line.SetLimits(limitsOf(c, key.drained), now)
		turns, after := line.Next(now, len(t.leaving[key.cluster]))
		objects = append(objects, turns...)
		if after > 0 && (again == 0 || after < again) {
			again = after
		}
	}
	return objects, again
}

// limitsOf returns how fast objects leave a cluster. It is not known whether those that leave a cluster that is not
// Ready have left, so their number does not limit a drain then.
func limitsOf(c *v1alpha1.Cluster, drained bool) pace.Limits {
	switch {
	case !drained:
		return pace.Limits{Rate: c.FailoverRate()}
	case c.Spec.Drain == nil || c.Spec.Drain.Paused:
		return pace.Limits{}
	}
	rate, most := c.DrainRate()
	if !meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterReady) {
		most = 0
	}
	return pace.Limits{Rate: rate, Most: most}
}

// followTurns queues objects when it is their turn to leave a cluster, until ctx ends.
func (s *scheduler) followTurns(ctx context.Context) {
	for {
		objects, again := s.turns.next(s.Clusters.Get, s.Clock.Now())
		for _, o := range objects {
			s.queue.Add(o)
		}
		var timeout <-chan time.Time
		stop := func() bool { return false }
		if again > 0 {
			timer := s.Clock.NewTimer(again)
			timeout, stop = timer.C(), timer.Stop
		}
		select {
		case <-ctx.Done():
			stop()
			return
		case <-s.turns.changed:
		case <-timeout:
		}
		stop()
	}
}

// scheduleInTurn decides about an object, which may have to wait for its turn to leave a cluster. Only the object itself
// has a turn: with the same snapshot, others are examined too.
func (s *scheduler) scheduleInTurn(snap *Snapshot, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) Result {
	if b == nil || b.Spec.Manual != nil { // a plan says when it leaves
		return snap.Schedule(k, obj, b)
	}
	o := refOf(k.GroupKind(), obj)
	var asked []placement.Departure
	ask := func(shares []placement.Share, departures []placement.Departure) map[string]bool {
		asked = departures
		return s.turns.ask(o, shares, departures, func() int32 { return s.podPriority(obj).value }, snap.Now)
	}
	snap.Turn = ask
	a := snap.Schedule(k, obj, b)
	snap.Turn = nil
	// A quota may keep it where it is, or its policy is invalid: then others have its turn.
	leaves := slices.DeleteFunc(slices.Clone(asked), func(d placement.Departure) bool {
		return !a.Request.Awaits[d.Cluster] && slices.ContainsFunc(a.Shares, func(c v1alpha1.ClusterShare) bool { return c.Name == d.Cluster })
	})
	if len(leaves) < len(asked) || asked == nil {
		ask(previous(b), leaves)
	}
	return a
}

// RecordedTurn returns what a Snapshot needs as Turn to explain the recorded decision about an object: it awaits the
// turns that it awaited then.
func RecordedTurn(b *v1alpha1.ResourceBinding) func([]placement.Share, []placement.Departure) map[string]bool {
	return func(_ []placement.Share, departures []placement.Departure) map[string]bool {
		awaits := map[string]bool{}
		for _, d := range departures {
			if share, decided := decidedShare(b, d.Cluster); decided && share.Reason == placement.ReasonKeptUntilItsTurn || awaitsConsolidation(b, d.Cluster) {
				awaits[d.Cluster] = true
			}
		}
		return awaits
	}
}

// decideInTurn decides. The object stays in clusters that it may not leave yet. One that does not leave, whatever keeps it,
// has no turn.
func (snap *Snapshot) decideInTurn(a *Result, decide func()) {
	decide()
	if snap.Turn == nil {
		return
	}
	if a.Request.Awaits = snap.Turn(a.Request.Previous, a.Decision.Departures); len(a.Request.Awaits) > 0 {
		decide()
	}
}
