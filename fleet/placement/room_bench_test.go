package placement

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-dev/atoll/fleet/capacity"
)

// BenchmarkRoom is a decision among 1,000 clusters, and the same with their nodes known. Each decision uses up some
// room, and a cluster reports after each.
func BenchmarkRoom(b *testing.B) {
	const clusters = 1000
	list := make([]Cluster, clusters)
	shapes := func(free int) *capacity.Nodes {
		var nodes []capacity.Node
		for i := range 20 {
			all := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110")}
			nodes = append(nodes, capacity.Node{Labels: map[string]string{"zone": fmt.Sprint(i % 3)}, Allocatable: all,
				Requested: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64((free+i%10)*100), resource.DecimalSI)}})
		}
		return capacity.Prepare(capacity.Summarize(nodes, nil))
	}
	for i := range list {
		list[i] = Cluster{Name: fmt.Sprint("c", i), Joined: start.Add(time.Duration(i) * time.Second), Ready: true, Confirmed: true, Since: start,
			Allocatable: &Resources{CPU: 64000, Memory: 1 << 40, Pods: 1000}}
	}
	fleet := NewFleet(list)
	p := policy(b, `{clusterCount: {max: 3}}`)
	object := func(i int) Object {
		return Object{Key: fmt.Sprint("o", i), Together: fmt.Sprint("namespace/n", i%1000), Mode: divided, Divisible: true, Replicas: int32(3 + i%8), Needs: Resources{CPU: 100, Pods: 1},
			Pods: []Pods{{Count: 1, Spec: map[string]any{"containers": []any{map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": fmt.Sprint(100+i%5, "m")}}}}}}}}
	}
	b.Run("unknown", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			Decide(Request{Object: object(i), Fleet: fleet, Policy: p, Now: start})
		}
	})
	b.Run("known", func(b *testing.B) {
		rooms := NewRooms()
		var reports []*capacity.Nodes
		for free := range 10 {
			reports = append(reports, shapes(free))
		}
		for i := range list {
			rooms.Report(list[i].Name, reports[0], start)
		}
		now := start
		for i := 0; b.Loop(); i++ {
			now = now.Add(20 * time.Millisecond)
			o := object(i)
			if i%50 == 0 {
				rooms.Expire(now)
			}
			rooms.Report(list[i%clusters].Name, reports[i%10], now)
			d := Decide(Request{Object: o, Fleet: fleet, Policy: p, Now: now, Room: rooms.For(fleet, &o, nil, nil)})
			rooms.Grant(&o, nil, d.Shares(), now)
		}
	})
}
