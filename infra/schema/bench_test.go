package schema

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// wide is a type with 40 attributes and two blocks; large providers have 1,500 of them.
func wide() *providerapi.Schema {
	types := []cty.Type{cty.String, cty.String, cty.String, cty.Number, cty.Bool, cty.List(cty.String), cty.Map(cty.String), cty.Set(cty.String)}
	var all []providerapi.Attribute
	for i := range 40 {
		a := providerapi.Attribute{Name: fmt.Sprintf("attribute_%d", i), Type: types[i%len(types)], Optional: i%4 != 0, Computed: i%4 < 2,
			Description: "The description of an attribute, which is about as long as this sentence, and often longer."}
		all = append(all, a)
	}
	return &providerapi.Schema{Block: providerapi.Block{Attributes: attributes(all...), Blocks: []providerapi.NestedBlock{
		block("rule", providerapi.NestingList, 0, 0, all[:5]...), block("timeouts", providerapi.NestingSingle, 0, 0, all[1])}}}
}

// BenchmarkNames names 1,500 types, and measures the memory of the names.
func BenchmarkNames(b *testing.B) {
	var types []string
	for i := range 1500 {
		types = append(types, fmt.Sprintf("wide_service_%d_thing", i))
	}
	b.ReportAllocs()
	for b.Loop() {
		Names(types, nil)
	}
	before := heap()
	kept := Names(types, nil)
	b.ReportMetric(float64(heap()-before)/1500, "B/type")
	runtime.KeepAlive(kept)
}

func BenchmarkOpenAPI(b *testing.B) {
	k := Kind{Schema: wide()}
	text, err := json.Marshal(k.OpenAPI())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		k.OpenAPI()
	}
	b.ReportMetric(float64(len(text)), "JSON-B")
}

func BenchmarkMergeType(b *testing.B) {
	s := wide()
	m := NewMergeTypes()
	b.ReportAllocs()
	for b.Loop() {
		m.Of(&s.Block)
	}
}

// BenchmarkMergeTypesKept measures the memory of the merge types of 1,500 used kinds.
func BenchmarkMergeTypesKept(b *testing.B) {
	s := wide()
	o := map[string]any{"spec": map[string]any{"attribute_7": []any{"x"}}}
	for b.Loop() {
		m := NewMergeTypes()
		before := heap()
		kept := make([]typed.ParseableType, 1500)
		for i := range kept {
			kept[i] = m.Of(&s.Block)
			if _, err := kept[i].FromUnstructured(o); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(heap()-before)/1500, "B/type")
		runtime.KeepAlive(kept)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func wideSpec() map[string]any {
	spec := map[string]any{"rule": []any{map[string]any{"attribute_1": "x"}, map[string]any{"attribute_10": "y"}}}
	s := wide()
	for i := range s.Block.Attributes {
		a := &s.Block.Attributes[i]
		if !settable(a) {
			continue
		}
		switch {
		case a.Type == cty.String:
			spec[a.Name] = "text"
		case a.Type == cty.Number:
			spec[a.Name] = int64(5)
		case a.Type == cty.Bool:
			spec[a.Name] = true
		case a.Type.IsMapType():
			spec[a.Name] = map[string]any{"a": "b"}
		default:
			spec[a.Name] = []any{"x", "y"}
		}
	}
	return spec
}

func BenchmarkConfig(b *testing.B) {
	k, spec := Kind{Schema: wide()}, wideSpec()
	b.ReportAllocs()
	for b.Loop() {
		if _, errs := k.Config(spec, tableResolver{}); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}

func BenchmarkAttributes(b *testing.B) {
	k := Kind{Schema: wide()}
	v, errs := k.Config(wideSpec(), tableResolver{})
	if len(errs) > 0 {
		b.Fatal(errs)
	}
	b.ReportAllocs()
	for b.Loop() {
		k.Attributes(v, nil)
	}
}
