package workspaces

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkNeighbour creates objects in one workspace, alone and while clients of another one send requests without a pause. Both share
// the processors and the database's commits, so the neighbour costs something; it must not cost its queue.
func BenchmarkNeighbour(b *testing.B) {
	for _, clients := range []int{0, 32, 256} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			s := newStage(b, "quiet", "flood")
			const path = "/api/v1/namespaces/default/configmaps"
			s.want(201, s.as(admin, "POST", "/clusters/quiet"+path, `{"metadata":{"name":"first"}}`))
			var flood sync.WaitGroup
			var stop atomic.Bool
			var n atomic.Int64
			for range clients {
				flood.Go(func() {
					for !stop.Load() {
						s.as(admin, "POST", "/clusters/flood"+path, fmt.Sprintf(`{"metadata":{"name":"c%d"}}`, n.Add(1)))
					}
				})
			}
			i := 0
			for b.Loop() {
				i++
				s.want(201, s.as(admin, "POST", "/clusters/quiet"+path, fmt.Sprintf(`{"metadata":{"name":"c%d"}}`, i)))
			}
			stop.Store(true)
			flood.Wait()
			b.ReportMetric(float64(n.Load())/float64(b.N), "neighbour/op")
		})
	}
}
