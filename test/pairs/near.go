package pairs

import (
	"math"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// near holds the values at which a pair of schemas may differ: bounds with their
// neighbours, enum values and defaults.
type near struct {
	numbers []any
	strings []string
	values  []any
}

// to adds the values of a schema and its subschemas.
func (n *near) to(p *Props) {
	for _, v := range []*float64{p.Minimum, p.Maximum, p.MultipleOf} {
		if v != nil {
			n.bound(*v)
		}
	}
	for _, v := range []*int64{p.MinLength, p.MaxLength} {
		if v != nil && *v < 20 {
			n.strings = append(n.strings, strings.Repeat("a", int(*v)), strings.Repeat("b", int(*v+1)), strings.Repeat("1", int(max(*v-1, 0))))
		}
	}
	for _, v := range p.Enum {
		n.value(v)
	}
	if p.Default != nil {
		n.value(*p.Default)
	}
	n.below(p)
}

func (n *near) bound(v float64) {
	if whole := math.Trunc(v); math.Abs(whole) < math.MaxInt32 {
		n.numbers = append(n.numbers, int64(whole)-1, int64(whole), int64(whole)+1)
	}
	n.numbers = append(n.numbers, v, v-0.1, v+0.1, v*2)
}

func (n *near) value(raw apiextensionsv1.JSON) {
	var v any
	if err := utiljson.Unmarshal(raw.Raw, &v); err != nil {
		panic(err)
	}
	switch v := v.(type) {
	case string:
		n.strings = append(n.strings, v)
	case int64, float64:
		n.numbers = append(n.numbers, v)
	}
	n.values = append(n.values, v)
}

func (n *near) below(p *Props) {
	for _, list := range [][]Props{p.AllOf, p.AnyOf, p.OneOf} {
		for i := range list {
			n.to(&list[i])
		}
	}
	for _, q := range sub(p) {
		n.to(q)
	}
}

// sub returns the direct subschemas of p, in a fixed order.
func sub(p *Props) []*Props {
	var all []*Props
	for _, name := range sorted(p.Properties) {
		q := p.Properties[name]
		all = append(all, &q)
	}
	if p.Not != nil {
		all = append(all, p.Not)
	}
	if p.Items != nil && p.Items.Schema != nil {
		all = append(all, p.Items.Schema)
	}
	if p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil {
		all = append(all, p.AdditionalProperties.Schema)
	}
	return all
}

// nearby returns one of the near values, often percent of the time and if there are any.
func nearby[T any](r Generator, often int, from []T) (v T, ok bool) {
	if len(from) == 0 || !r.chance(often) {
		return v, false
	}
	return from[r.IntN(len(from))], true
}
