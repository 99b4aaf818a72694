package planner

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
)

// benchShapes are the reference graphs of the benchmarks.
var benchShapes = []struct {
	name string
	uses func(i, n int) []int
}{
	{"flat", func(int, int) []int { return nil }},
	{"chains", func(i, _ int) []int { // 100 of them
		if i < 100 {
			return nil
		}
		return []int{i - 100}
	}},
	{"crosswise", func(i, n int) []int { // half refers to three each of the other half
		if i < n/2 {
			return nil
		}
		return []int{i - n/2, (i * 7) % (n / 2), (i * 13) % (n / 2)}
	}},
}

func benchObject(i int, uses []int, content string, generation int64) *infra.Object {
	spec := fmt.Sprintf(`{"content":%q,"zone":"a","labels":{"app":"shop","tier":"web"}`, content)
	for k, u := range uses {
		if k == 0 {
			spec += fmt.Sprintf(`,"wo":"${demo_thing[\"n-%06d\"].id}"`, u)
		} else {
			spec += fmt.Sprintf(`,"depends_on":["demo_thing[\"n-%06d\"]","demo_thing[\"n-%06d\"]"]`, uses[1], uses[2])
			break
		}
	}
	o := enginetest.NewObject(enginetest.ThingRef(fmt.Sprintf("n-%06d", i)), generation, spec+"}")
	o.UID = fmt.Sprintf("5f0c1b1e-8a52-4be1-9d2f-%012d", i)
	return o
}

// BenchmarkPlan measures four plans: the first; one without changes in a new process, which
// evaluates each spec but calls no provider; another one right after it; and one with a single
// change.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		for _, shape := range benchShapes {
			b.Run(fmt.Sprintf("%s/%d", shape.name, n), func(b *testing.B) { benchPlan(b, n, shape.uses) })
		}
	}
}

func benchPlan(b *testing.B, n int, uses func(i, n int) []int) {
	s := enginetest.NewEnv()
	s.NoLog = true
	e := newPlanner(b, s, nil)
	before := heap()
	// The loop at the end resets metrics reported before it.
	var report []func()
	metric := func(value float64, unit string) { report = append(report, func() { b.ReportMetric(value, unit) }) }
	for i := range n {
		e.Inventory.SetObject(benchObject(i, uses(i, n), "text", 1))
	}
	run := func(name string) {
		began := e.Clock.Now()
		planned, _ := mustPlan(b, e, Options{})
		metric(e.Clock.Since(began).Seconds()*1000, name+"-ms")
		if len(planned.Problems) > 0 {
			b.Fatal(planned.Problems[0])
		}
	}
	run("first")
	value := func(i int) cty.Value {
		return cty.ObjectVal(map[string]cty.Value{
			"content": cty.StringVal("text"), "id": cty.StringVal(fmt.Sprint("id-", i)), "password": cty.NullVal(cty.String), "size": cty.NumberIntVal(7),
			"labels": cty.MapVal(map[string]cty.Value{"app": cty.StringVal("shop"), "tier": cty.StringVal("web")}),
			"token":  cty.StringVal("t"), "wo": cty.NullVal(cty.String), "zone": cty.StringVal("a"),
		})
	}
	kind, _ := s.Kind(enginetest.ThingRef("x"))
	for i := range n {
		o := e.Inventory.Object(enginetest.ThingRef(fmt.Sprintf("n-%06d", i)))
		evaluated, errs := e.Evaluator.Evaluate(b.Context(), o, &kind.Kind, expr.Scope{Lookup: func(ref expr.Ref) (cty.Value, error) {
			var of int
			_, err := fmt.Sscanf(ref.Name, "n-%d", &of)
			return evaluate.Mark(&kind.Schema.Block, value(of), nil), err
		}})
		if len(errs) > 0 {
			b.Fatal(errs)
		}
		state := enginetest.NewState(b, o.Ref, 1, value(i), nil)
		state.Spec.Settled = evaluated.Fingerprint(o, kind, s.ConfigRevision)
		e.Inventory.SetState(state)
	}
	metric(float64(heap()-before)/1e6, "world-MB")
	run("began")
	metric(float64(heap()-before)/1e6, "planned-MB")
	run("nothing")
	e.Inventory.SetObject(benchObject(n/3, uses(n/3, n), "another", 2))
	run("one")
	if planned, _ := mustPlan(b, e, Options{}); planned.Contents.Counts.Update != 1 || planned.Contents.Counts.NoOp != n-1 {
		b.Fatalf("%+v", planned.Contents.Counts)
	}
	for b.Loop() {
		mustPlan(b, e, Options{Mode: change.Normal})
	}
	for _, tell := range report {
		tell()
	}
	runtime.KeepAlive(e)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
