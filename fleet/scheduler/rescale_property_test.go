package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// scaled is a model of an autoscaled Deployment: the scheduler's decisions, the autoscalers of the
// clusters with their parts of the bounds, and the count that is written back.
type scaled struct {
	target, autoscaler interpret.KindInfo
	obj, bounds        *unstructured.Unstructured
	clusters           []placement.Cluster
	binding            *v1alpha1.ResourceBinding
	// load is how many replicas each cluster's autoscaler would like, and counts are the replicas
	// there. reports are the statuses of the autoscalers.
	load    map[string]int32
	counts  map[string]int32
	reports map[string]map[string]any
}

func newScaled(rng *rand.Rand) *scaled {
	s := &scaled{load: map[string]int32{}, counts: map[string]int32{}, reports: map[string]map[string]any{}}
	s.target, _ = interpret.Find(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	s.autoscaler, _ = interpret.Find(interpret.AutoscalerKind())
	s.obj = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web", "namespace": "shop"}, "spec": map[string]any{"replicas": int64(1 + rng.IntN(8))}}}
	s.bounds = &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "web", "namespace": "shop"}, "spec": map[string]any{}}}
	s.setBounds(rng)
	for i := range 1 + rng.IntN(4) {
		s.clusters = append(s.clusters, placement.Cluster{Name: fmt.Sprint("c", i), Joined: time.Unix(int64(i), 0), Ready: true})
		s.load[fmt.Sprint("c", i)] = rng.Int32N(12)
	}
	return s
}

func (s *scaled) setBounds(rng *rand.Rand) {
	least := 1 + rng.IntN(6)
	s.bounds.Object["spec"] = map[string]any{"minReplicas": int64(least), "maxReplicas": int64(least + rng.IntN(15))}
}

func (s *scaled) replicas() int32 {
	n, _ := s.target.Replicas(s.obj)
	return n
}

func (s *scaled) setReplicas(n int32) { s.obj.Object["spec"] = map[string]any{"replicas": int64(n)} }

// schedule makes the next decision. Clusters that it drops lose the Deployment; others start with
// their share, unless an autoscaler owns the count.
func (s *scaled) schedule() {
	snap := &Snapshot{Fleet: placement.NewFleet(s.clusters), Policies: placement.NewPolicies(nil, nil, nil), Now: time.Unix(1000, 0),
		Autoscaler: func(interpret.KindInfo, *unstructured.Unstructured) *unstructured.Unstructured { return s.bounds }}
	shares := snap.Schedule(s.target, s.obj, s.binding).Shares
	s.binding = &v1alpha1.ResourceBinding{Spec: v1alpha1.ResourceBindingSpec{Clusters: shares, ScaledBy: &v1alpha1.Requirer{Kind: interpret.AutoscalerKind().Kind, Name: "web"}}}
	counts := map[string]int32{}
	for _, share := range shares {
		if n := s.counts[share.Name]; *share.Replicas > 0 && n > 0 {
			counts[share.Name] = n
		} else {
			counts[share.Name] = *share.Replicas
		}
	}
	maps.DeleteFunc(s.reports, func(name string, _ map[string]any) bool { _, placed := counts[name]; return !placed })
	s.counts = counts
}

// part returns the bounds of one cluster's autoscaler.
func (s *scaled) part(name string) (least, most int32) {
	share := interpret.Share{Cluster: name, Target: map[string]int32{}}
	for _, c := range s.binding.Spec.Clusters {
		share.Target[c.Name] = *c.Replicas
	}
	return interpret.ScaleBounds(s.autoscaler.PrepareShare(s.bounds, share))
}

// autoscale lets the autoscaler of one cluster act.
func (s *scaled) autoscale(name string) {
	n, placed := s.counts[name]
	if !placed {
		return
	}
	if n > 0 {
		least, most := s.part(name)
		n = min(max(s.load[name], least), most)
	}
	s.counts[name] = n
	s.reports[name] = map[string]any{"currentReplicas": int64(n), "desiredReplicas": int64(n)}
}

// rescale writes the count back.
func (s *scaled) rescale() {
	var clusters []interpret.ScaledCluster
	for _, share := range s.binding.Spec.Clusters {
		clusters = append(clusters, interpret.ScaledCluster{Share: share.Replicas, Status: s.reports[share.Name]})
	}
	if n, changed := s.target.Rescaled(s.obj, s.bounds, clusters); changed {
		s.setReplicas(n)
	}
}

// disturb changes one input, or lets one part act.
func (s *scaled) disturb(rng *rand.Rand) {
	c := &s.clusters[rng.IntN(len(s.clusters))]
	switch rng.IntN(12) {
	case 0:
		s.setBounds(rng)
	case 1: // lost, and its replicas go elsewhere
		c.Leaving = true
	case 2:
		c.Leaving = false
	case 3:
		c.Unschedulable = !c.Unschedulable
	case 4: // as a manifest says that is applied again
		s.setReplicas(1)
	case 5:
		s.setReplicas(1 + rng.Int32N(20))
	case 6, 7:
		s.load[c.Name] = rng.Int32N(12)
	case 8, 9:
		s.autoscale(c.Name)
	case 10:
		s.rescale()
	default:
		s.schedule()
	}
}

// settle lets all parts act once, in any order, and reports whether anything changed.
func (s *scaled) settle(rng *rand.Rand) bool {
	before := s.String()
	parts := []func(){s.schedule, s.rescale}
	for _, name := range slices.Sorted(maps.Keys(s.load)) {
		parts = append(parts, func() { s.autoscale(name) })
	}
	rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	for _, act := range parts {
		act()
	}
	return s.String() != before
}

func (s *scaled) String() string {
	return fmt.Sprintf("%d replicas, shares %s, counts %v, reports %v, bounds %v", s.replicas(), describe(s.binding.Spec.Clusters), s.counts, s.reports, s.bounds.Object["spec"])
}

// TestAutoscalingSettles: whatever autoscalers decide and clusters do, once loads, bounds and clusters
// are steady, shares, bounds and counts are too. The object's count is then the sum of the clusters'.
func TestAutoscalingSettles(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s := newScaled(rng)
		s.schedule()
		for range rng.IntN(40) {
			s.disturb(rng)
		}
		for i := range s.clusters { // one is there
			s.clusters[i].Leaving = s.clusters[i].Leaving && i > 0
		}
		steps := []string{s.String()}
		for s.settle(rng) || len(steps) < 2 {
			if steps = append(steps, s.String()); len(steps) > 12 {
				t.Fatalf("seed %d: it does not settle:\n%q", seed, steps)
			}
		}
		s.check(t, seed)
		shares := describe(s.binding.Spec.Clusters)
		for range 20 { // loads move no shares
			for name := range s.load {
				s.load[name] = rng.Int32N(12)
			}
			s.settle(rng)
		}
		if now := describe(s.binding.Spec.Clusters); now != shares {
			t.Fatalf("seed %d: loads alone changed the shares from %s to %s", seed, shares, now)
		}
		for range 3 {
			s.settle(rng)
		}
		s.check(t, seed)
	}
}

// check checks a state in which nothing changes any more.
func (s *scaled) check(t *testing.T, seed uint64) {
	t.Helper()
	var sum, lows, highs, active int32
	for _, share := range s.binding.Spec.Clusters {
		n := s.counts[share.Name]
		sum += n
		if *share.Replicas == 0 {
			if n != 0 {
				t.Fatalf("seed %d: cluster %s has no share and %d replicas: %s", seed, share.Name, n, s)
			}
			continue
		}
		least, most := s.part(share.Name)
		if n < least || n > most {
			t.Fatalf("seed %d: cluster %s has %d replicas, its bounds are %d to %d: %s", seed, share.Name, n, least, most, s)
		}
		lows, highs, active = lows+least, highs+most, active+1
	}
	least, most := interpret.ScaleBounds(s.bounds)
	if active > 0 && (lows != max(least, active) || highs != max(most, active)) {
		t.Fatalf("seed %d: bounds %d to %d add up to %d to %d: %s", seed, least, most, lows, highs, s)
	}
	if active > 0 && s.replicas() != sum {
		t.Fatalf("seed %d: the spec has %d replicas, the clusters have %d: %s", seed, s.replicas(), sum, s)
	}
}
