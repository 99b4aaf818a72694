package placement

import (
	"fmt"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// The size of the fleet in the performance goals.
const (
	benchClusters = 1000
	benchObjects  = 100_000
)

func benchFleet() []Cluster {
	out := make([]Cluster, benchClusters)
	for i := range out {
		out[i] = Cluster{Name: fmt.Sprintf("cluster-%04d", i), Joined: start.Add(time.Duration(i) * time.Second), Ready: true, Confirmed: true,
			Since: start, EvictAfter: 5 * time.Minute, Allocatable: &Resources{CPU: 64000, Memory: 256 << 30, Pods: 1000},
			Labels: map[string]string{"tier": []string{"gold", "iron"}[i%2], v1alpha1.TopologyRegion: fmt.Sprint("region-", i%20), v1alpha1.TopologyZone: fmt.Sprint("zone-", i%60)}}
	}
	return out
}

// benchPolicies are typical policies, which the objects use in turn.
func benchPolicies(b *testing.B) []*Policy {
	return []*Policy{
		policy(b, `{mode: Single, clusters: {labelSelector: {matchLabels: {tier: gold}}}}`),
		policy(b, `{clusterCount: {max: 3}, spread: [{topologyKey: region, minGroups: 3, maxGroups: 3}]}`),
		policy(b, `{clusterCount: {max: 5}, affinity: [{weight: 50, clusters: {labelSelector: {matchLabels: {tier: iron}}}}], division: {by: Weighted, weights: [{clusters: {labelSelector: {matchLabels: {tier: iron}}}, weight: 3}, {clusters: {labelSelector: {matchLabels: {tier: gold}}}, weight: 1}]}}`),
		policy(b, `{clusters: {names: [cluster-0001, cluster-0500, cluster-0999]}}`),
	}
}

func benchObject(i int) Object {
	return Object{Key: fmt.Sprint("shop-", i%1000, "/app-", i), Mode: divided, Divisible: true, Replicas: int32(3 + i%8), Needs: Resources{CPU: 100, Memory: 1 << 28, Pods: 1}}
}

// decideAll decides about all objects from scratch.
func decideAll(policies []*Policy, f *Fleet) [][]Share {
	out := make([][]Share, benchObjects)
	for i := range out {
		out[i] = Decide(Request{Object: benchObject(i), Fleet: f, Policy: policies[i%len(policies)], Now: start}).Shares()
	}
	return out
}

func BenchmarkFromScratch(b *testing.B) {
	policies := benchPolicies(b)
	for b.Loop() {
		decideAll(policies, NewFleet(benchFleet()))
	}
}

// BenchmarkOneObjectEverywhere makes one decision for an object that runs in all of a thousand
// clusters.
func BenchmarkOneObjectEverywhere(b *testing.B) {
	r := Request{Object: Object{Key: "shop/web", Mode: divided, Divisible: true, Replicas: 3000}, Fleet: NewFleet(benchFleet()), Now: start}
	r.Previous = Decide(r).Shares()
	for b.Loop() {
		Decide(r)
	}
}

func BenchmarkOneObject(b *testing.B) {
	policies, f := benchPolicies(b), NewFleet(benchFleet())
	for i := range policies {
		b.Run(fmt.Sprint(i), func(b *testing.B) {
			r := Request{Object: benchObject(7), Fleet: f, Policy: policies[i], Now: start}
			for b.Loop() {
				Decide(r)
			}
		})
	}
}

// BenchmarkLostCluster does the scheduler's work when a cluster's toleration expires: it builds a
// new fleet, finds the affected objects, and decides about them.
func BenchmarkLostCluster(b *testing.B) {
	policies, clusters := benchPolicies(b), benchFleet()
	f := NewFleet(clusters)
	all := decideAll(policies, f)
	lost := clusters[1]
	lost.Ready, lost.Why, lost.Since = false, v1alpha1.ReasonClusterUnreachable, start
	for b.Loop() {
		after := f.With(lost)
		moved := 0
		for i, previous := range all {
			p := policies[i%len(policies)]
			if p.ChangeImpact(&clusters[1], &lost) == ImpactNone || !holds(previous, lost.Name) {
				continue
			}
			d := Decide(Request{Object: benchObject(i), Fleet: after, Policy: p, Previous: previous, Now: start.Add(time.Hour)})
			if !holds(d.Shares(), lost.Name) {
				moved++
			}
		}
		if moved == 0 {
			b.Fatal("no object has moved")
		}
	}
}

func holds(shares []Share, cluster string) bool {
	for _, s := range shares {
		if s.Cluster == cluster {
			return true
		}
	}
	return false
}

// BenchmarkDrainPreview decides about all objects again without one cluster.
func BenchmarkDrainPreview(b *testing.B) {
	policies, clusters := benchPolicies(b), benchFleet()
	f := NewFleet(clusters)
	all := decideAll(policies, f)
	drained := clusters[1]
	drained.Taints = []v1alpha1.Taint{{Key: "drain", Effect: v1alpha1.TaintNoExecute}}
	for b.Loop() {
		after := f.With(drained)
		for i, previous := range all {
			Decide(Request{Object: benchObject(i), Fleet: after, Policy: policies[i%len(policies)], Previous: previous, Now: start})
		}
	}
}
