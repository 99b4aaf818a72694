package expr

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/zclconf/go-cty/cty"
)

// manyExpressions returns a hundred thousand expressions of one shape.
func manyExpressions(shape string) []string {
	out := make([]string, 100_000)
	for i := range out {
		out[i] = fmt.Sprintf(shape, i)
	}
	return out
}

// benchShapes are a single reference, text with two references, and two expressions that need CEL.
var benchShapes = []struct{ name, shape string }{
	{"path", `${net["n-%d"].id}`},
	{"text", `host-${net["n-%[1]d"].id}-${net["n-%[1]d"].zones[0]}`},
	{"cel", `${net["n-%d"].id + "-x"}`},
	{"loop", `${net["n-%d"].zones.map(z, z + "-x")}`},
}

// BenchmarkParse parses a hundred thousand expressions of one shape, and reports the memory that each keeps.
func BenchmarkParse(b *testing.B) {
	for _, s := range benchShapes {
		b.Run(s.name, func(b *testing.B) {
			texts, l := manyExpressions(s.shape), newLanguage(b)
			kept := make([]*Template, len(texts))
			var before, after runtime.MemStats
			for b.Loop() {
				clear(kept)
				runtime.GC()
				runtime.ReadMemStats(&before)
				for i, text := range texts {
					var err error
					if kept[i], err = l.Template(text, "shop"); err != nil {
						b.Fatal(err)
					}
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(texts)), "ns/expression")
			b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/float64(len(texts)), "B-kept/expression")
			runtime.KeepAlive(kept)
		})
	}
}

// BenchmarkEvaluate evaluates a hundred thousand expressions.
func BenchmarkEvaluate(b *testing.B) {
	object := cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal("n-1"), "zones": cty.ListVal([]cty.Value{cty.StringVal("x"), cty.StringVal("y")})})
	from := Scope{Lookup: func(Ref) (cty.Value, error) { return object, nil }}
	for _, s := range benchShapes {
		b.Run(s.name, func(b *testing.B) {
			l := newLanguage(b)
			var texts []*Template
			for _, text := range manyExpressions(s.shape) {
				parsed, err := l.Template(text, "shop")
				if err != nil {
					b.Fatal(err)
				}
				texts = append(texts, parsed)
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, text := range texts {
					if _, err := text.Value(from); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(texts)), "ns/expression")
		})
	}
}

// BenchmarkCompile measures the first expression of a shape, and the memory that its program keeps.
func BenchmarkCompile(b *testing.B) {
	l := newLanguage(b)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	i := 0
	for b.Loop() {
		i++
		if _, err := l.Template(fmt.Sprintf(`${net["a"].id + "%d"}`, i), "shop"); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/float64(len(l.shapes)), "B-kept/shape")
}
