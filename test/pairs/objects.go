package pairs

import (
	"encoding/json"
	"maps"
	"math"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Object generates an object that a schema probably accepts. On average, wild of a hundred
// values do not fit the schema.
func (r Generator) Object(p *Props, wild int) map[string]any {
	o, ok := r.valueFor(p, wild).(map[string]any)
	if !ok {
		o = map[string]any{}
	}
	o["apiVersion"], o["kind"] = "example.com/v1", "Thing"
	o["metadata"] = map[string]any{"name": pick(r, "n", "name", "a-long-name")}
	if r.chance(50) {
		return asServed(o)
	}
	return o
}

// asServed returns an object as it is read back after a write: 5.0, which a validator
// distinguishes from 5, has become 5.
func asServed(o map[string]any) map[string]any {
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	var out map[string]any
	if err := utiljson.Unmarshal(raw, &out); err != nil {
		panic(err)
	}
	return out
}

// valueFor generates a value for a schema. With a probability of wild percent it does not
// fit the schema.
func (r Generator) valueFor(p *Props, wild int) any {
	if r.chance(wild) {
		return r.anyValue(2)
	}
	if p.Nullable && r.chance(15) {
		return nil
	}
	if v, ok := nearby(r, 3, r.near.values); ok {
		return runtime.DeepCopyJSONValue(v)
	}
	if len(p.Enum) > 0 && r.chance(90) {
		var v any
		if err := utiljson.Unmarshal(p.Enum[r.IntN(len(p.Enum))].Raw, &v); err != nil {
			panic(err)
		}
		return v
	}
	switch {
	case p.XIntOrString && r.chance(50), p.Type == "integer", p.Type == "number":
		return r.numberFor(p)
	case p.XIntOrString, p.Type == "string":
		if r.chance(4) {
			return []any{"a"} // a string with a format may be one
		}
		return r.stringFor(p)
	case p.Type == "boolean":
		return r.chance(50)
	case p.Type == "array":
		return r.listFor(p, wild)
	case p.Type == "object":
		return r.mapFor(p, wild)
	}
	return r.anyValue(2)
}

func (r Generator) stringFor(p *Props) string {
	pool := []string{"", "a", "ab", "abc", "be", "red", "green", "blue", "A", "10s", "10.0.0.1", "2024-01-02", "a@b.co", "YWJj", "x-1",
		"abcdefghij", "123e4567-e89b-12d3-a456-426614174000", "2024-01-02T03:04:05Z"}
	fit := slices.DeleteFunc(slices.Clone(pool), func(s string) bool {
		if p.MinLength != nil && int64(len(s)) < *p.MinLength || p.MaxLength != nil && int64(len(s)) > *p.MaxLength {
			return true
		}
		if p.Pattern != "" && !regexp.MustCompile(p.Pattern).MatchString(s) {
			return true
		}
		for _, q := range p.AllOf {
			if q.Pattern != "" && !regexp.MustCompile(q.Pattern).MatchString(s) {
				return true
			}
		}
		return false
	})
	if s, ok := nearby(r, 30, r.near.strings); ok {
		return s
	}
	format := p.Format
	for _, q := range p.AllOf {
		if q.Format != "" {
			format = q.Format
		}
	}
	example := map[string]string{"date": "2024-01-02", "ipv4": "10.0.0.1", "uuid": "123e4567-e89b-12d3-a456-426614174000",
		"email": "a@b.co", "duration": "10s", "byte": "YWJj", "date-time": "2024-01-02T03:04:05Z"}[format]
	if example != "" && r.chance(80) {
		return example
	}
	if len(fit) == 0 || r.chance(5) {
		fit = pool
	}
	return fit[r.IntN(len(fit))]
}

func (r Generator) numberFor(p *Props) any {
	if v, ok := nearby(r, 40, r.near.numbers); ok {
		if f, isFloat := v.(float64); p.Type == "integer" && isFloat {
			return int64(f)
		}
		return v
	}
	var pool []any
	for _, n := range []int64{-3, -2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65, math.MaxInt32 + 1} {
		pool = append(pool, n)
	}
	if p.Type == "number" || r.chance(20) {
		pool = append(pool, -2.0, 0.5, 1.5, 2.5, 5.0, 5.2, 5.5, 5.6, 6.0, 1e20, 1e300)
	}
	fit := slices.DeleteFunc(slices.Clone(pool), func(v any) bool {
		f, ok := v.(float64)
		if n, isInt := v.(int64); isInt {
			f, ok = float64(n), true
		}
		return !ok || p.Minimum != nil && f < *p.Minimum-1 || p.Maximum != nil && f > *p.Maximum+1 ||
			p.MultipleOf != nil && math.Mod(f, *p.MultipleOf) != 0
	})
	if len(fit) == 0 || r.chance(5) {
		fit = pool
	}
	return fit[r.IntN(len(fit))]
}

func (r Generator) listFor(p *Props, wild int) []any {
	n := r.IntN(4)
	if p.MinItems != nil && int64(n) < *p.MinItems {
		n = int(*p.MinItems)
	}
	if p.MaxItems != nil && int64(n) > *p.MaxItems {
		n = int(*p.MaxItems)
	}
	list := []any{}
	for range n {
		switch {
		case r.chance(5):
			list = append(list, nil)
		case len(list) > 0 && r.chance(25):
			list = append(list, r.likeness(list[r.IntN(len(list))]))
		case p.Items == nil || p.Items.Schema == nil:
			list = append(list, r.anyValue(1))
		default:
			list = append(list, r.valueFor(p.Items.Schema, wild))
		}
	}
	return list
}

// likeness returns a copy of a list entry. In an object, one field differs, which may be one
// of the list's keys.
func (r Generator) likeness(v any) any {
	o, ok := runtime.DeepCopyJSONValue(v).(map[string]any)
	if !ok || len(o) == 0 {
		return v
	}
	names := slices.Sorted(maps.Keys(o))
	if name := names[r.IntN(len(names))]; r.chance(70) {
		o[name] = r.anyOther(o[name])
	}
	return o
}

// anyOther returns another value of the same type, if that is simple.
func (r Generator) anyOther(v any) any {
	switch v.(type) {
	case string:
		return r.stringFor(&Props{})
	case int64:
		return int64(r.IntN(9))
	}
	return v
}

func (r Generator) mapFor(p *Props, wild int) map[string]any {
	o := map[string]any{}
	often := 60
	if p.MinProperties != nil {
		often = 90
	}
	for _, name := range sorted(p.Properties) {
		f := p.Properties[name]
		if slices.Contains(p.Required, name) && r.chance(97) || r.chance(often) {
			o[name] = r.valueFor(&f, wild)
		}
	}
	extra := p.AdditionalProperties
	preserves := p.XPreserveUnknownFields != nil
	for range r.IntN(3) {
		name := r.name()
		if _, listed := p.Properties[name]; listed {
			continue
		}
		switch {
		case extra != nil && extra.Schema != nil:
			o[name] = r.valueFor(extra.Schema, wild)
		case extra != nil || preserves || r.chance(wild):
			o[name] = r.anyValue(2)
		}
	}
	if p.XEmbeddedResource && r.chance(95) {
		o["apiVersion"], o["kind"] = "v1", "Pod"
		if r.chance(60) {
			o["metadata"] = map[string]any{"name": "x", "labels": map[string]any{"a": "b"}}
		}
	}
	return o
}

func (r Generator) anyValue(depth int) any {
	n := r.IntN(10)
	if depth == 0 && n >= 7 {
		n = r.IntN(7)
	}
	switch n {
	case 0:
		return nil
	case 1:
		return r.chance(50)
	case 2, 3:
		return r.numberFor(&Props{Type: "number"})
	case 4, 5, 6:
		return r.stringFor(&Props{})
	case 7, 8:
		o := map[string]any{}
		for range r.IntN(3) {
			o[r.name()] = r.anyValue(depth - 1)
		}
		return o
	}
	list := []any{}
	for range r.IntN(3) {
		list = append(list, r.anyValue(depth-1))
	}
	return list
}
