package decide

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// random generates schemas and values.
type random struct {
	*rand.Rand
	// simple excludes schemas in which elements of sets look alike or cannot be matched. The
	// scripts cover those.
	simple bool
}

func newRandom(seed uint64) random { return random{Rand: rand.New(rand.NewPCG(seed, 1))} }

func (r random) chance(percent int) bool { return r.IntN(100) < percent }

func (r random) block(depth int, inSet bool) providerapi.Block {
	b := providerapi.Block{Attributes: r.attributes(depth, inSet)}
	for i := range r.IntN(3) {
		if depth == 0 {
			break
		}
		n := providerapi.NestedBlock{Name: fmt.Sprintf("b%d", i), Nesting: r.nesting(true)}
		n.Block = r.within(depth-1, inSet || n.Nesting == providerapi.NestingSet)
		b.Blocks = append(b.Blocks, n)
	}
	return b
}

func (r random) within(depth int, inSet bool) providerapi.Block {
	if inSet && r.simple {
		depth = 0
	}
	return r.block(depth, inSet)
}

func (r random) nesting(block bool) providerapi.Nesting {
	all := []providerapi.Nesting{providerapi.NestingSingle, providerapi.NestingList, providerapi.NestingMap, providerapi.NestingSet, providerapi.NestingGroup}
	if !block {
		all = all[:4]
	}
	return all[r.IntN(len(all))]
}

func (r random) attributes(depth int, inSet bool) []providerapi.Attribute {
	var all []providerapi.Attribute
	for i := range 1 + r.IntN(4) {
		a := providerapi.Attribute{Name: fmt.Sprintf("a%d", i), Sensitive: r.chance(15)}
		switch r.IntN(4) {
		case 0:
			a.Required = true
		case 1:
			a.Optional = true
		case 2:
			a.Optional, a.Computed = true, true
		case 3:
			a.Computed = true
		}
		if inSet && r.simple && a.Optional {
			a.Computed = false // two elements can become equal when it is filled in
		}
		if depth > 0 && r.chance(25) {
			a.Nested = &providerapi.Object{Nesting: r.nesting(false)}
			a.Nested.Attributes = r.within(depth-1, inSet || a.Nested.Nesting == providerapi.NestingSet).Attributes
			a.Type = a.Nested.ImpliedType()
		} else {
			a.Type = r.typ(depth)
		}
		if inSet && r.simple && a.Computed && !a.Type.IsPrimitiveType() {
			a.Type, a.Nested = cty.String, nil
		}
		all = append(all, a)
	}
	return all
}

func (r random) typ(depth int) cty.Type {
	if depth == 0 || r.chance(50) {
		return []cty.Type{cty.String, cty.Number, cty.Bool}[r.IntN(3)]
	}
	switch of := r.typ(depth - 1); r.IntN(4) {
	case 0:
		return cty.List(of)
	case 1:
		return cty.Set(of)
	case 2:
		return cty.Map(of)
	default:
		return cty.Object(map[string]cty.Type{"x": of, "y": cty.String})
	}
}

// value returns a value of the type. unknown is the probability of an unknown value in percent.
func (r random) value(ty cty.Type, unknown int) cty.Value {
	switch {
	case r.chance(unknown):
		return cty.UnknownVal(ty)
	case r.chance(8):
		return cty.NullVal(ty)
	case ty == cty.String:
		return cty.StringVal([]string{"", "a", "b", "c\nd", "é"}[r.IntN(5)])
	case ty == cty.Number:
		return cty.MustParseNumberVal([]string{"0", "1", "-2.5", "123456789012345678901234567890"}[r.IntN(4)])
	case ty == cty.Bool:
		return cty.BoolVal(r.chance(50))
	case ty.IsObjectType():
		of := map[string]cty.Value{}
		for _, name := range sortedNames(ty) {
			of[name] = r.value(ty.AttributeType(name), unknown)
		}
		return cty.ObjectVal(of)
	}
	var all []cty.Value
	for range r.IntN(4) {
		all = append(all, r.value(ty.ElementType(), unknown))
	}
	switch {
	case ty.IsListType() && len(all) == 0:
		return cty.ListValEmpty(ty.ElementType())
	case ty.IsSetType() && len(all) == 0:
		return cty.SetValEmpty(ty.ElementType())
	case ty.IsMapType() && len(all) == 0:
		return cty.MapValEmpty(ty.ElementType())
	}
	return r.collect(ty.IsSetType(), ty.IsMapType(), all)
}

func sortedNames(ty cty.Type) []string {
	var names []string
	for name := range ty.AttributeTypes() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (r random) collect(set, named bool, all []cty.Value) cty.Value {
	switch {
	case set:
		return cty.SetVal(all)
	case named:
		of := map[string]cty.Value{}
		for i, v := range all {
			of[fmt.Sprintf("k%d", i)] = v
		}
		return cty.MapVal(of)
	}
	return cty.ListVal(all)
}

// config returns a valid configuration.
func (r random) config(l providerapi.Level, unknown int) cty.Value {
	of := map[string]cty.Value{}
	for i := range l.Attributes {
		a := &l.Attributes[i]
		switch {
		case !a.Required && !a.Optional, !a.Required && r.chance(40):
			of[a.Name] = cty.NullVal(a.Type)
		case a.Nested != nil:
			of[a.Name] = r.nestedConfig(a.Nested.Nesting, providerapi.ObjectLevel(a.Nested), a.Type, unknown)
		default:
			for of[a.Name] = r.value(a.Type, unknown); of[a.Name].IsKnown() && of[a.Name].IsNull(); {
				of[a.Name] = r.value(a.Type, unknown)
			}
		}
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		of[n.Name] = n.Absent()
		if n.Nesting == providerapi.NestingGroup || r.chance(60) {
			of[n.Name] = r.nestedConfig(n.Nesting, providerapi.BlockLevel(&n.Block), n.ImpliedType(), unknown)
		}
		if n.Nesting != providerapi.NestingGroup && r.chance(unknown/2) {
			of[n.Name] = cty.UnknownVal(n.ImpliedType())
		}
	}
	return cty.ObjectVal(of)
}

func (r random) nestedConfig(nesting providerapi.Nesting, l providerapi.Level, ty cty.Type, unknown int) cty.Value {
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		return r.config(l, unknown)
	}
	var all []cty.Value
	for range 1 + r.IntN(3) {
		all = append(all, r.config(l, unknown))
	}
	return r.collect(ty.IsSetType(), ty.IsMapType(), all)
}

// applied returns a state that a provider could have made of a configuration: computed attributes
// are filled in, and unknown values are known.
func (r random) applied(l providerapi.Level, config cty.Value) cty.Value {
	if config.IsNull() {
		return config
	}
	of := map[string]cty.Value{}
	for i := range l.Attributes {
		a := &l.Attributes[i]
		c := attributeOf(config, a)
		switch {
		case a.Computed && c.IsKnown() && c.IsNull() && a.Nested != nil:
			of[a.Name] = c // otherwise its contents could have been configured
		case a.Computed && c.IsKnown() && c.IsNull():
			of[a.Name] = r.value(a.Type, 0)
		case a.Nested != nil && c.IsKnown() && !c.IsNull():
			of[a.Name] = r.appliedIn(a.Nested.Nesting, providerapi.ObjectLevel(a.Nested), c)
		default:
			of[a.Name] = r.known(c)
		}
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		c := blockOf(config, n)
		if !c.IsKnown() {
			c = n.Absent()
		}
		of[n.Name] = r.appliedIn(n.Nesting, providerapi.BlockLevel(&n.Block), c)
	}
	return cty.ObjectVal(of)
}

func (r random) appliedIn(nesting providerapi.Nesting, l providerapi.Level, config cty.Value) cty.Value {
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		return r.applied(l, config)
	}
	if length(config) == 0 {
		return config
	}
	var keys, all []cty.Value
	for it := config.ElementIterator(); it.Next(); {
		key, one := it.Element()
		keys, all = append(keys, key), append(all, r.applied(l, one))
	}
	return collectionLike(config, keys, all)
}

// known fills in unknown values.
func (r random) known(v cty.Value) cty.Value {
	out, err := cty.Transform(v, func(_ cty.Path, v cty.Value) (cty.Value, error) {
		if v.IsKnown() {
			return v, nil
		}
		return r.value(v.Type(), 0), nil
	})
	if err != nil {
		panic(err)
	}
	return out
}

// changed replaces one random part with another value, null, or unknown.
func (r random) changed(v cty.Value, unknown int) cty.Value {
	var paths []cty.Path
	_ = cty.Walk(v, func(path cty.Path, v cty.Value) (bool, error) {
		if len(path) > 0 {
			paths = append(paths, path.Copy())
		}
		return !v.Type().IsSetType(), nil
	})
	if len(paths) == 0 {
		return v
	}
	return replaceAt(v, paths[r.IntN(len(paths))], func(old cty.Value) cty.Value { return r.value(old.Type(), unknown) })
}
