package plugin

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// BenchmarkCalls measures the cost of a call, ten at a time: direct, through a keeper, and named,
// which is recorded in the journal before and after.
func BenchmarkCalls(b *testing.B) {
	for _, row := range []struct {
		name  string
		way   way
		apply bool
		named bool
	}{
		{name: "read/direct"},
		{name: "read/supervised", way: way{true}},
		{name: "apply/direct", apply: true},
		{name: "apply/supervised", way: way{true}, apply: true},
		{name: "apply/supervised by name", way: way{true}, apply: true, named: true},
	} {
		b.Run(row.name, func(b *testing.B) {
			h := row.way.host(b, Config{RecycleAfter: 1 << 30})
			settings := fakeSettings("6")
			settings.Limits.Parallel = 10
			i := openFake(b, h, settings)
			var n atomic.Int64
			call := func() error {
				if !row.apply {
					_, err := read(context.Background(), i, "")
					return err
				}
				request := providerapi.ApplyRequest{Type: "fake_thing", Planned: thing("name", "a")}
				if !row.named {
					_, err := i.Apply(context.Background(), request)
					return err
				}
				request.Call = strconv.FormatInt(n.Add(1), 10)
				if _, err := i.Apply(context.Background(), request); err != nil {
					return err
				}
				return h.Acknowledge(request.Call)
			}
			b.SetParallelism(5) // of two processors, ten callers
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := call(); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
