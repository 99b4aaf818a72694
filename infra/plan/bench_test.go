package plan

import (
	"context"
	"fmt"
	"testing"

	"github.com/atoll-dev/atoll/infra/contract"
)

// quiet is a provider that answers at once, and remembers nothing.
type quiet struct{ fake }

func (q *quiet) ValidateResource(context.Context, string, *contract.Configuration) (contract.Diagnostics, error) {
	return nil, nil
}

func (q *quiet) Plan(_ context.Context, request contract.PlanRequest) (contract.PlanAnswer, error) {
	return contract.PlanAnswer{Planned: request.Proposed, Private: request.Private}, nil
}

func unchanged(b *testing.B) Input {
	schema := thing()
	return Input{
		Address: Address{Namespace: "shop", Type: "demo_thing", Name: "main"}, Schema: schema, Provider: &quiet{fake{schema: schema}},
		Prior: Prior{State: contract.State{Value: value(b, &schema.Block,
			`{"name":"a","id":"i","size":5,"token":"t","limits":[],"labels":{"a":"1","b":"2"},"rule":[{"port":1,"uid":"u"}],"disk":[{"path":"/a","id":"d"}]}`)}},
		Config: value(b, &schema.Block, `{"name":"a","labels":{"a":"1","b":"2"},"rule":[{"port":1}],"disk":[{"path":"/a"}]}`),
	}
}

// BenchmarkNothingToDo decides for 100,000 resources that nothing is to be done: the part of it that is ours.
func BenchmarkNothingToDo(b *testing.B) {
	in := unchanged(b)
	b.ReportAllocs()
	for b.Loop() {
		for range 100_000 {
			if d, err := Decide(context.Background(), in); err != nil || d.Action != NoOp {
				b.Fatal(d, err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/decision")
}

func BenchmarkProposed(b *testing.B) {
	in := unchanged(b)
	b.ReportAllocs()
	for b.Loop() {
		Proposed(&in.Schema.Block, in.Prior.State.Value, in.Config)
	}
}

// BenchmarkChange is what it takes to show an update, and to seal it.
func BenchmarkChange(b *testing.B) {
	d, schema := decided(b, `{"name":"a","id":"i","size":5,"token":"t","limits":[],"labels":{"a":"1","b":"2"}}`, `{"name":"a","labels":{"a":"1","b":"3"}}`)
	b.ReportAllocs()
	for b.Loop() {
		sealed, err := d.Seal(schema)
		if err != nil {
			b.Fatal(err)
		}
		c, err := d.Change(schema, Showing{Salt: testSalt, Sealed: sealed})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Digest(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkChunks puts 100,000 changes into chunks: four of five with nothing to do.
func BenchmarkChunks(b *testing.B) {
	changes := make([]*Change, 100_000)
	d, schema := decided(b, "", `{"name":"a","labels":{"a":"1","b":"3"}}`)
	for i := range changes {
		changes[i] = &Change{Action: NoOp}
		if i%5 == 0 {
			changes[i] = changeOf(b, d, schema, Showing{Salt: testSalt})
		}
		changes[i].Address = Address{Namespace: "shop", Type: "demo_thing", Name: fmt.Sprintf("n%06d", i)}
	}
	b.ReportAllocs()
	for b.Loop() {
		bytes := 0
		chunks := NewChunks(func(_ int, pieces [][]byte) error {
			for _, p := range pieces {
				bytes += len(p)
			}
			return nil
		})
		for _, c := range changes {
			if err := chunks.Add(c); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := chunks.Finish(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(bytes), "stored-bytes")
	}
}
