package decide

import (
	"context"
	"fmt"
	"testing"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// noOpProvider answers at once and records nothing.
type noOpProvider struct{ fake }

func (q *noOpProvider) ValidateResource(context.Context, string, *providerapi.Configuration) (providerapi.Diagnostics, error) {
	return nil, nil
}

func (q *noOpProvider) Plan(_ context.Context, request providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	return providerapi.PlanAnswer{Planned: request.Proposed, Private: request.Private}, nil
}

func noOpInput(b *testing.B) Input {
	schema := testSchema()
	return Input{
		Address: change.Address{Namespace: "shop", Type: "demo_thing", Name: "main"}, Schema: schema, Provider: &noOpProvider{fake{schema: schema}},
		Prior: Prior{State: providerapi.State{Value: value(b, &schema.Block,
			`{"name":"a","id":"i","size":5,"token":"t","limits":[],"labels":{"a":"1","b":"2"},"rule":[{"port":1,"uid":"u"}],"disk":[{"path":"/a","id":"d"}]}`)}},
		Config: value(b, &schema.Block, `{"name":"a","labels":{"a":"1","b":"2"},"rule":[{"port":1}],"disk":[{"path":"/a"}]}`),
	}
}

// BenchmarkDecideNoOp decides 100,000 no-ops. It measures Atoll's own share of the work.
func BenchmarkDecideNoOp(b *testing.B) {
	in := noOpInput(b)
	b.ReportAllocs()
	for b.Loop() {
		for range 100_000 {
			if d, err := Decide(context.Background(), in); err != nil || d.Action != change.NoOp {
				b.Fatal(d, err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/decision")
}

func BenchmarkProposedNew(b *testing.B) {
	in := noOpInput(b)
	b.ReportAllocs()
	for b.Loop() {
		ProposedNew(&in.Schema.Block, in.Prior.State.Value, in.Config)
	}
}

// BenchmarkChange renders and seals an update.
func BenchmarkChange(b *testing.B) {
	d, schema := decided(b, `{"name":"a","id":"i","size":5,"token":"t","limits":[],"labels":{"a":"1","b":"2"}}`, `{"name":"a","labels":{"a":"1","b":"3"}}`)
	b.ReportAllocs()
	for b.Loop() {
		sealed, err := d.Seal(schema)
		if err != nil {
			b.Fatal(err)
		}
		c, err := d.Change(schema, ChangeOptions{Salt: testSalt, Sealed: sealed})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Digest(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkChunkWriter writes 100,000 changes, four of five of them no-ops.
func BenchmarkChunkWriter(b *testing.B) {
	changes := make([]*change.Change, 100_000)
	d, schema := decided(b, "", `{"name":"a","labels":{"a":"1","b":"3"}}`)
	for i := range changes {
		changes[i] = &change.Change{Action: change.NoOp}
		if i%5 == 0 {
			changes[i] = changeOf(b, d, schema, ChangeOptions{Salt: testSalt})
		}
		changes[i].Address = change.Address{Namespace: "shop", Type: "demo_thing", Name: fmt.Sprintf("n%06d", i)}
	}
	b.ReportAllocs()
	for b.Loop() {
		bytes := 0
		chunks := planstore.NewChunkWriter(func(_ int, pieces [][]byte) error {
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
