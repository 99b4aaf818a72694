package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/capacity"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// The fleet size of the project's goals.
const (
	placedClusters = 1000
	placedObjects  = 100_000
)

// benchPlacement measures placement decisions for a large fleet, without I/O and with one
// worker per CPU.
func benchPlacement(out io.Writer, scale float64) error {
	policies, err := placedPolicies()
	if err != nil {
		return err
	}
	objects := max(1, int(placedObjects*scale))
	clusters := placedFleet()
	begin := time.Now()
	fleet := placement.NewFleet(clusters)
	previous := decideEach(objects, func(i int) placement.Request {
		return placement.Request{Object: placedObject(i), Fleet: fleet, Policy: policies[i%len(policies)], Now: begin}
	})
	scratch := time.Since(begin)

	one := make([]time.Duration, 0, 1000)
	for i := range 1000 {
		at := time.Now()
		o := placedObject(i % objects)
		o.Replicas++
		placement.Decide(placement.Request{Object: o, Fleet: fleet, Policy: policies[i%len(policies)], Previous: previous[i%objects], Now: begin})
		one = append(one, time.Since(at))
	}
	slices.Sort(one)

	lost := clusters[1]
	lost.Ready, lost.Why, lost.Since = false, v1alpha1.ReasonClusterUnreachable, begin.Add(-time.Hour)
	at := time.Now()
	after := fleet.With(lost)
	var concerned []int
	for i, shares := range previous {
		if slices.ContainsFunc(shares, func(s placement.Share) bool { return s.Cluster == lost.Name }) {
			concerned = append(concerned, i)
		}
	}
	decideEach(len(concerned), func(n int) placement.Request {
		i := concerned[n]
		return placement.Request{Object: placedObject(i), Fleet: after, Policy: policies[i%len(policies)], Previous: previous[i], Now: begin}
	})
	gone := time.Since(at)

	drained := clusters[1]
	drained.Draining = true
	at = time.Now()
	after = fleet.With(drained)
	decideEach(objects, func(i int) placement.Request {
		return placement.Request{Object: placedObject(i), Fleet: after, Policy: policies[i%len(policies)], Previous: previous[i], Now: begin}
	})
	preview := time.Since(at)

	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	fmt.Fprintf(out, "%d clusters, %d objects, %d policies, %d workers\n", len(clusters), objects, len(policies), runtime.GOMAXPROCS(0))
	fmt.Fprintf(out, "everything from scratch      %8.2f s   goal 30 s\n", scratch.Seconds())
	fmt.Fprintf(out, "one changed object, median   %8.3f ms  goal 5 ms\n", ms(one[len(one)/2]))
	fmt.Fprintf(out, "one changed object, p99      %8.3f ms\n", ms(one[len(one)*99/100]))
	fmt.Fprintf(out, "one lost cluster             %8.3f s   goal 3 s (%d objects)\n", gone.Seconds(), len(concerned))
	fmt.Fprintf(out, "preview of a drain           %8.2f s   goal 10 s\n", preview.Seconds())
	fmt.Fprintf(out, "heap in use                  %8d MiB\n", memory.HeapInuse>>20)
	benchRooms(out, fleet, policies, max(1, objects/5))
	return benchGroups(out, objects)
}

// benchRooms measures decisions that count the room of each cluster's nodes, beside the same decisions with unknown
// nodes. The two take turns. Each decision uses up room, and one cluster reports before each.
func benchRooms(out io.Writer, fleet *placement.Fleet, policies []*placement.Policy, objects int) {
	const rounds = 5
	var reports []*capacity.Nodes
	for busy := range 10 {
		var nodes []capacity.Node
		for i := range 20 {
			nodes = append(nodes, capacity.Node{Labels: map[string]string{"zone": fmt.Sprint(i % 3)},
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110")},
				Requested:   corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64((busy+i%10)*100), resource.DecimalSI)}})
		}
		reports = append(reports, capacity.Prepare(capacity.Summarize(nodes, nil)))
	}
	decide := func(known bool) time.Duration {
		rooms, now := placement.NewRooms(), time.Now()
		for i := range placedClusters {
			rooms.Report(placedName(i), reports[0], now)
		}
		runtime.GC()
		begin := time.Now()
		for i := range objects {
			now = now.Add(20 * time.Millisecond)
			o := placedObject(i)
			o.Pods = []placement.Pods{{Count: 1, Spec: map[string]any{"containers": []any{map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": fmt.Sprint(100+i%5, "m"), "memory": "256Mi"}}}}}}}
			r := placement.Request{Object: o, Fleet: fleet, Policy: policies[i%len(policies)], Now: now}
			if !known {
				placement.Decide(r)
				continue
			}
			if i%50 == 0 {
				rooms.Expire(now)
			}
			rooms.Report(placedName(i%placedClusters), reports[i%10], now)
			r.Room = rooms.For(fleet, &o, nil, nil)
			rooms.Grant(&o, nil, placement.Decide(r).Shares(), now)
		}
		return time.Since(begin)
	}
	var ratios, each []float64
	for range rounds {
		unknown, known := decide(false), decide(true)
		each = append(each, ms(known)/float64(objects))
		ratios = append(ratios, known.Seconds()/unknown.Seconds())
	}
	slices.Sort(ratios)
	slices.Sort(each)
	fmt.Fprintf(out, "one object, nodes known      %8.3f ms  one worker\n", each[rounds/2])
	fmt.Fprintf(out, "ratio to unknown nodes       %8.2f  median of %d pairs, %.2f to %.2f\n", ratios[rounds/2], rounds, ratios[0], ratios[rounds-1])
}

// benchGroups measures the scheduler's decisions about Pods that belong together, beside the same Pods
// without owners. The two take turns.
func benchGroups(out io.Writer, objects int) error {
	const size, rounds = 3, 5
	pods, known := interpret.Find(schema.GroupKind{Kind: "Pod"})
	if !known {
		return errors.New("Pods are not in the table of kinds")
	}
	var clusters []*v1alpha1.Cluster
	for _, c := range placedFleet() {
		clusters = append(clusters, &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: c.Labels, CreationTimestamp: metav1.NewTime(c.Joined)},
			Status: v1alpha1.ClusterStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.Since)}}}})
	}
	decide := func(grouped bool) time.Duration {
		s := &scheduler.State{At: time.Now(), Clusters: clusters}
		for i := range objects {
			s.Placed = append(s.Placed, scheduler.Placed{Kind: pods, Object: placedPod(i, i/size, grouped)})
		}
		runtime.GC()
		begin := time.Now()
		s.Moves(s.Snapshot())
		return time.Since(begin)
	}
	var ratios, alone []float64
	for range rounds {
		single := decide(false)
		alone = append(alone, single.Seconds())
		ratios = append(ratios, decide(true).Seconds()/single.Seconds())
	}
	slices.Sort(ratios)
	slices.Sort(alone)
	fmt.Fprintf(out, "%d Pods one by one       %8.2f s   with the graph of groups, one worker\n", objects, alone[rounds/2])
	fmt.Fprintf(out, "the same in groups of %d      %8.2f times as long, median of %d pairs, %.2f to %.2f; goal 1.10\n", size, ratios[rounds/2], rounds, ratios[0], ratios[rounds-1])
	return nil
}

func placedPod(i, owner int, owned bool) *unstructured.Unstructured {
	metadata := map[string]any{"name": fmt.Sprint("pod-", i), "namespace": fmt.Sprint("shop-", owner%1000), "uid": fmt.Sprint("pod-", i)}
	if owned {
		metadata["ownerReferences"] = []any{map[string]any{"apiVersion": "example.com/v1", "kind": "Train", "name": fmt.Sprint("train-", owner), "uid": fmt.Sprint("train-", owner), "controller": true}}
	}
	requests := map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "256Mi"}}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
		"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i", "resources": requests}}}}}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func decideEach(n int, request func(int) placement.Request) [][]placement.Share {
	out := make([][]placement.Share, n)
	workers := runtime.GOMAXPROCS(0)
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			for i := w; i < n; i += workers {
				out[i] = placement.Decide(request(i)).Shares()
			}
		})
	}
	done.Wait()
	return out
}

func placedName(i int) string { return fmt.Sprintf("cluster-%04d", i) }

func placedFleet() []placement.Cluster {
	out := make([]placement.Cluster, placedClusters)
	joined := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range out {
		out[i] = placement.Cluster{Name: placedName(i), Joined: joined.Add(time.Duration(i) * time.Second), Ready: true, Confirmed: true,
			Since: joined, EvictAfter: 5 * time.Minute, Allocatable: &placement.Resources{CPU: 64000, Memory: 256 << 30, Pods: 1000},
			Labels: map[string]string{"tier": []string{"gold", "iron"}[i%2], v1alpha1.TopologyRegion: fmt.Sprint("region-", i%20), v1alpha1.TopologyZone: fmt.Sprint("zone-", i%60)}}
	}
	return out
}

func placedObject(i int) placement.Object {
	return placement.Object{Key: fmt.Sprint("shop-", i%1000, "/app-", i), Mode: v1alpha1.ModeDivided, Divisible: true, Replicas: int32(3 + i%8),
		Needs: placement.Resources{CPU: 100, Memory: 1 << 28, Pods: 1}}
}

// placedPolicies returns typical policies, which the objects use in turn.
func placedPolicies() ([]*placement.Policy, error) {
	three, five := int32(3), int32(5)
	tier := func(name string) v1alpha1.ClusterSelector {
		return v1alpha1.ClusterSelector{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": name}}}
	}
	gold, iron := tier("gold"), tier("iron")
	var out []*placement.Policy
	for _, spec := range []v1alpha1.PlacementSpec{
		{Mode: v1alpha1.ModeSingle, Clusters: &gold},
		{ClusterCount: &v1alpha1.CountRange{Max: &three}, Spread: []v1alpha1.SpreadConstraint{{TopologyKey: "region", MinGroups: &three, MaxGroups: &three}}},
		{ClusterCount: &v1alpha1.CountRange{Max: &five}, Affinity: []v1alpha1.ClusterPreference{{Weight: 50, Clusters: iron}},
			Division: &v1alpha1.ReplicaDivision{By: v1alpha1.DivideWeighted, Weights: []v1alpha1.ClusterWeight{{Clusters: iron, Weight: 3}, {Clusters: gold, Weight: 1}}}},
		{Clusters: &v1alpha1.ClusterSelector{Names: []string{"cluster-0001", "cluster-0500", "cluster-0999"}}},
	} {
		p, err := placement.Compile(&spec)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
