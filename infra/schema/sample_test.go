package schema

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// server is a type with every feature of schemas.
func server() *providerapi.Schema {
	return &providerapi.Schema{Block: providerapi.Block{
		Description: "A server.",
		Attributes: attributes(
			providerapi.Attribute{Name: "name", Type: cty.String, Required: true, Description: "What it is called. See `man hostname`."},
			providerapi.Attribute{Name: "id", Type: cty.String, Computed: true, Optional: true},
			providerapi.Attribute{Name: "address", Type: cty.String, Computed: true, Description: "Where it is."},
			providerapi.Attribute{Name: "cpus", Type: cty.Number, Optional: true},
			providerapi.Attribute{Name: "enabled", Type: cty.Bool, Optional: true, Computed: true},
			providerapi.Attribute{Name: "old", Type: cty.Bool, Optional: true, Deprecated: true, Description: "Use `enabled`."},
			providerapi.Attribute{Name: "groups", Type: cty.Set(cty.String), Optional: true},
			providerapi.Attribute{Name: "dns", Type: cty.List(cty.String), Optional: true},
			providerapi.Attribute{Name: "tags", Type: cty.Map(cty.String), Optional: true},
			providerapi.Attribute{Name: "size", Type: cty.Object(map[string]cty.Type{"width": cty.Number, "roles": cty.Set(cty.String)}), Optional: true},
			providerapi.Attribute{Name: "extra", Type: cty.DynamicPseudoType, Optional: true},
			providerapi.Attribute{Name: "password", Type: cty.String, Optional: true, Sensitive: true},
			providerapi.Attribute{Name: "keys", Type: cty.Map(cty.String), Optional: true, Sensitive: true},
			providerapi.Attribute{Name: "boot_token", Type: cty.String, Optional: true, WriteOnly: true},
			providerapi.Attribute{Name: "root_password", Type: cty.String, Computed: true, Sensitive: true},
			nested("login", providerapi.NestingList,
				providerapi.Attribute{Name: "user", Type: cty.String, Required: true},
				providerapi.Attribute{Name: "secret", Type: cty.String, Optional: true, Sensitive: true},
				providerapi.Attribute{Name: "uid", Type: cty.Number, Computed: true}),
		),
		Blocks: []providerapi.NestedBlock{
			block("disk", providerapi.NestingList, 0, 3,
				providerapi.Attribute{Name: "gigabytes", Type: cty.Number, Required: true},
				providerapi.Attribute{Name: "serial", Type: cty.String, Computed: true},
				providerapi.Attribute{Name: "key", Type: cty.String, Optional: true, Sensitive: true}),
			block("label", providerapi.NestingMap, 0, 0, providerapi.Attribute{Name: "value", Type: cty.String, Optional: true}),
			block("network", providerapi.NestingList, 1, 1,
				providerapi.Attribute{Name: "cidrs", Type: cty.Set(cty.String), Optional: true}),
			block("rule", providerapi.NestingSet, 0, 0,
				providerapi.Attribute{Name: "port", Type: cty.Number, Required: true},
				providerapi.Attribute{Name: "token", Type: cty.String, Optional: true, Sensitive: true}),
			block("timeouts", providerapi.NestingSingle, 0, 0, providerapi.Attribute{Name: "create", Type: cty.String, Optional: true}),
			block("tuning", providerapi.NestingGroup, 0, 0, providerapi.Attribute{Name: "level", Type: cty.Number, Optional: true}),
			block("variant", providerapi.NestingList, 0, 0, providerapi.Attribute{Name: "value", Type: cty.DynamicPseudoType, Optional: true}),
		},
	}}
}

func serverKind() Kind {
	return Kind{Name: Names([]string{"demo_server"}, nil)[0], Group: Group("demo"), Schema: server()}
}

func attributes(all ...providerapi.Attribute) []providerapi.Attribute {
	slices.SortFunc(all, func(a, b providerapi.Attribute) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func nested(name string, nesting providerapi.Nesting, inner ...providerapi.Attribute) providerapi.Attribute {
	o := &providerapi.Object{Nesting: nesting, Attributes: attributes(inner...)}
	return providerapi.Attribute{Name: name, Nested: o, Type: o.ImpliedType(), Optional: true}
}

func block(name string, nesting providerapi.Nesting, least, most int64, inner ...providerapi.Attribute) providerapi.NestedBlock {
	return providerapi.NestedBlock{Name: name, Nesting: nesting, Min: least, Max: most, Block: providerapi.Block{Attributes: attributes(inner...)}}
}

// object decodes YAML like the API.
func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return apiNumbers(o).(map[string]any)
}

// apiNumbers converts floats to integers where possible, like the API's decoder.
func apiNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			v[key] = apiNumbers(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = apiNumbers(inner)
		}
	case float64:
		if i, err := strconv.ParseInt(strconv.FormatFloat(v, 'f', -1, 64), 10, 64); err == nil && v < exactFloat {
			return i
		}
	}
	return v
}

// A tableResolver resolves from tables.
type tableResolver struct {
	expressions map[string]cty.Value
	secrets     map[SecretKeyRef]string
}

func (r tableResolver) Expression(_ *field.Path, text string) (cty.Value, error) {
	if v, ok := r.expressions[text]; ok {
		return v, nil
	}
	return cty.NilVal, errors.New("there is no such reference")
}

func (r tableResolver) Secret(_ *field.Path, ref SecretKeyRef) (cty.Value, error) {
	if text, ok := r.secrets[ref]; ok {
		return cty.StringVal(text), nil
	}
	return cty.NilVal, fmt.Errorf("there is no key %q in Secret %q", ref.Key, ref.Name)
}

// A maker generates random schemas, values and JSON.
type maker struct{ *rand.Rand }

func newMaker(seed uint64) maker { return maker{rand.New(rand.NewPCG(seed, 7))} }

func (m maker) schema() *providerapi.Schema { return &providerapi.Schema{Block: m.block(2)} }

func (m maker) block(depth int) providerapi.Block {
	var b providerapi.Block
	for i := range m.IntN(5) {
		b.Attributes = append(b.Attributes, m.attribute(fmt.Sprintf("a%d", i), depth))
	}
	for i := range m.IntN(3) {
		if depth == 0 {
			break
		}
		all := []providerapi.Nesting{providerapi.NestingSingle, providerapi.NestingGroup, providerapi.NestingList, providerapi.NestingSet, providerapi.NestingMap}
		n := providerapi.NestedBlock{Name: fmt.Sprintf("b%d", i), Nesting: all[m.IntN(len(all))], Block: m.block(depth - 1)}
		if n.Nesting == providerapi.NestingList || n.Nesting == providerapi.NestingSet {
			n.Max = int64(m.IntN(3))
		}
		if n.Nesting == providerapi.NestingSet && n.Block.ImpliedType().HasDynamicTypes() {
			n.Nesting = providerapi.NestingList // provider SDKs reject such sets
		}
		b.Blocks = append(b.Blocks, n)
	}
	return b
}

func (m maker) attribute(name string, depth int) providerapi.Attribute {
	a := providerapi.Attribute{Name: name, Sensitive: m.IntN(6) == 0}
	switch m.IntN(5) {
	case 0:
		a.Required = true
	case 1:
		a.Computed = true
	case 2:
		a.Optional, a.Computed = true, true
	default:
		a.Optional = true
	}
	if depth > 0 && m.IntN(4) == 0 {
		all := []providerapi.Nesting{providerapi.NestingSingle, providerapi.NestingList, providerapi.NestingSet, providerapi.NestingMap}
		a.Nested = &providerapi.Object{Nesting: all[m.IntN(len(all))]}
		for i := range m.IntN(3) + 1 {
			inner := m.attribute(fmt.Sprintf("n%d", i), depth-1)
			if inner.Type.HasDynamicTypes() {
				inner.Type, inner.Nested = cty.String, nil // only allowed outside of collections
			}
			a.Nested.Attributes = append(a.Nested.Attributes, inner)
		}
		a.Type = a.Nested.ImpliedType()
		return a
	}
	a.Type = m.valueType(depth, true)
	return a
}

func (m maker) valueType(depth int, dynamic bool) cty.Type {
	if depth == 0 {
		return []cty.Type{cty.String, cty.Number, cty.Bool}[m.IntN(3)]
	}
	switch m.IntN(9) {
	case 0:
		return cty.List(m.valueType(depth-1, false))
	case 1:
		return cty.Set(m.valueType(depth-1, false))
	case 2:
		return cty.Map(m.valueType(depth-1, false))
	case 3:
		return cty.Object(map[string]cty.Type{"x": m.valueType(depth-1, false), "y": m.valueType(depth-1, false)})
	case 4:
		return cty.Tuple([]cty.Type{m.valueType(depth-1, false), m.valueType(depth-1, false)})
	case 5:
		if dynamic {
			return cty.DynamicPseudoType
		}
	}
	return m.valueType(0, false)
}

// value generates a value that conforms to the block. Computed attributes are null, as in a
// configuration.
func (m maker) value(b *providerapi.Block) cty.Value {
	fields := map[string]cty.Value{}
	for i := range b.Attributes {
		fields[b.Attributes[i].Name] = m.attributeValue(&b.Attributes[i])
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		fields[n.Name] = m.blocks(n)
	}
	return cty.ObjectVal(fields)
}

func (m maker) blocks(n *providerapi.NestedBlock) cty.Value {
	switch n.Nesting {
	case providerapi.NestingGroup:
		return m.value(&n.Block)
	case providerapi.NestingSingle:
		if m.IntN(2) == 0 {
			return cty.NullVal(n.Block.ImpliedType())
		}
		return m.value(&n.Block)
	}
	count := m.IntN(3)
	if n.Max > 0 {
		count = m.IntN(int(n.Max) + 1)
	}
	var keys []string
	var elements []cty.Value
	for i := range count {
		keys = append(keys, fmt.Sprintf("k%d", i))
		elements = append(elements, m.value(&n.Block))
	}
	return assemble(n, keys, elements)
}

func (m maker) attributeValue(a *providerapi.Attribute) cty.Value {
	if !settable(a) || !a.Required && m.IntN(3) == 0 {
		return cty.NullVal(a.Type)
	}
	if a.Nested == nil {
		return m.of(a.Type)
	}
	one := func() cty.Value {
		fields := map[string]cty.Value{}
		for i := range a.Nested.Attributes {
			inner := &a.Nested.Attributes[i]
			fields[inner.Name] = m.attributeValue(inner)
		}
		return cty.ObjectVal(fields)
	}
	if a.Nested.Nesting == providerapi.NestingSingle {
		return one()
	}
	return m.collection(a.Type, one)
}

func (m maker) collection(ty cty.Type, one func() cty.Value) cty.Value {
	count := m.IntN(3)
	var list []cty.Value
	entries := map[string]cty.Value{}
	for i := range count {
		list = append(list, one())
		entries[fmt.Sprintf("k.%d", i)] = list[i]
	}
	switch {
	case ty.IsMapType() && count > 0:
		return cty.MapVal(entries)
	case ty.IsMapType():
		return cty.MapValEmpty(ty.ElementType())
	case ty.IsSetType() && count > 0:
		return cty.SetVal(list)
	case ty.IsSetType():
		return cty.SetValEmpty(ty.ElementType())
	case count > 0:
		return cty.ListVal(list)
	}
	return cty.ListValEmpty(ty.ElementType())
}

func (m maker) of(ty cty.Type) cty.Value {
	switch {
	case ty == cty.String:
		return cty.StringVal([]string{"", "text", "${not.an.expression}", "$", "$${", "ünïcode\n", "5"}[m.IntN(7)])
	case ty == cty.Number:
		huge, _ := new(big.Float).SetPrec(512).SetString("123456789012345678901234567890.5")
		return []cty.Value{cty.Zero, cty.NumberIntVal(-7), cty.NumberFloatVal(0.25), cty.MustParseNumberVal("0.1"),
			cty.NumberUIntVal(1 << 63), cty.NumberIntVal(1<<53 + 1), cty.NumberVal(huge)}[m.IntN(7)]
	case ty == cty.Bool:
		return cty.BoolVal(m.IntN(2) == 0)
	case ty == cty.DynamicPseudoType:
		return []cty.Value{cty.StringVal("x"), cty.NumberIntVal(3), cty.True, cty.EmptyTupleVal, cty.EmptyObjectVal,
			cty.TupleVal([]cty.Value{cty.Zero, cty.StringVal("${y}")}), cty.ObjectVal(map[string]cty.Value{"z": cty.False})}[m.IntN(7)]
	case ty.IsObjectType():
		fields := map[string]cty.Value{}
		for name, inner := range ty.AttributeTypes() {
			fields[name] = m.of(inner)
		}
		return cty.ObjectVal(fields)
	case ty.IsTupleType():
		var list []cty.Value
		for _, inner := range ty.TupleElementTypes() {
			list = append(list, m.of(inner))
		}
		return cty.TupleVal(list)
	}
	return m.collection(ty, func() cty.Value { return m.of(ty.ElementType()) })
}

// json generates any JSON, with some of the names in schemas.
func (m maker) json(depth int) any {
	if depth == 0 || m.IntN(3) == 0 {
		return []any{nil, "text", "${x}", "a${x}b", "$${x}", int64(5), 0.5, 1e300, true, map[string]any{}, []any{},
			map[string]any{secretKeyRef: map[string]any{"name": "s", "key": "k"}}, map[string]any{secretKeyRef: "s"}}[m.IntN(13)]
	}
	if m.IntN(2) == 0 {
		list := []any{}
		for range m.IntN(3) {
			list = append(list, m.json(depth-1))
		}
		return list
	}
	object := map[string]any{}
	for range m.IntN(5) {
		object[[]string{"a0", "a1", "a2", "a3", "b0", "b1", "n0", "n1", "x", "y", "k"}[m.IntN(11)]] = m.json(depth - 1)
	}
	return object
}
