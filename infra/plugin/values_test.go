package plugin

import (
	"bytes"
	"errors"
	"maps"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// randomType and randomValue generate what schemas and providers can contain.
func randomType(r *rand.Rand, depth int) cty.Type {
	simple := []cty.Type{cty.String, cty.Number, cty.Bool, cty.DynamicPseudoType}
	if depth == 0 || r.IntN(3) == 0 {
		return simple[r.IntN(len(simple))]
	}
	element := func() cty.Type {
		for {
			if t := randomType(r, depth-1); !t.HasDynamicTypes() {
				return t // schemas have no collections of dynamic type
			}
		}
	}
	switch r.IntN(5) {
	case 0:
		return cty.List(element())
	case 1:
		return cty.Set(element())
	case 2:
		return cty.Map(element())
	case 3:
		return cty.Tuple([]cty.Type{randomType(r, depth-1), randomType(r, depth-1)})
	}
	of := map[string]cty.Type{}
	for range []int{0, 1, 3, 17}[r.IntN(4)] {
		of[string(rune('a'+r.IntN(26)))] = randomType(r, depth-1)
	}
	return cty.Object(of)
}

func randomValue(r *rand.Rand, t cty.Type) cty.Value {
	switch n := r.IntN(20); {
	case n == 0:
		return cty.NullVal(t)
	case n == 1:
		return cty.UnknownVal(t)
	case n == 2 && t == cty.String:
		return cty.UnknownVal(t).Refine().NotNull().StringPrefix("arn:").NewValue()
	case n == 3 && t == cty.Number:
		return cty.UnknownVal(t).Refine().NumberRangeLowerBound(cty.Zero, true).NewValue()
	}
	switch {
	case t == cty.DynamicPseudoType:
		for {
			if of := randomType(r, 1); of != cty.DynamicPseudoType {
				return randomValue(r, of)
			}
		}
	case t == cty.String:
		return cty.StringVal(strings.Repeat("ä", []int{0, 3, 20, 200}[r.IntN(4)]))
	case t == cty.Bool:
		return cty.BoolVal(r.IntN(2) == 0)
	case t == cty.Number:
		return randomNumber(r)
	case t.IsObjectType():
		attributes := map[string]cty.Value{}
		for name, of := range t.AttributeTypes() {
			attributes[name] = randomValue(r, of)
		}
		return cty.ObjectVal(attributes)
	case t.IsTupleType():
		var elements []cty.Value
		for _, of := range t.TupleElementTypes() {
			elements = append(elements, randomValue(r, of))
		}
		return cty.TupleVal(elements)
	}
	return randomCollection(r, t)
}

func randomNumber(r *rand.Rand) cty.Value {
	switch r.IntN(4) {
	case 0:
		return cty.NumberIntVal(r.Int64() >> r.IntN(64))
	case 1:
		return cty.NumberFloatVal(r.NormFloat64())
	case 2:
		return cty.NumberUIntVal(r.Uint64())
	}
	huge, _ := new(big.Int).SetString(strings.Repeat("9", 100), 10)
	return cty.NumberVal(new(big.Float).SetPrec(512).SetInt(huge))
}

func randomCollection(r *rand.Rand, t cty.Type) cty.Value {
	elements := map[string]cty.Value{}
	var list []cty.Value
	for range []int{0, 1, 3, 17}[r.IntN(4)] {
		v := randomValue(r, t.ElementType())
		list, elements[string(rune('a'+r.IntN(26)))] = append(list, v), v
	}
	switch {
	case t.IsMapType() && len(list) == 0:
		return cty.MapValEmpty(t.ElementType())
	case t.IsMapType():
		return cty.MapVal(elements)
	case t.IsSetType() && len(list) == 0:
		return cty.SetValEmpty(t.ElementType())
	case t.IsSetType():
		return cty.SetVal(list)
	case len(list) == 0:
		return cty.ListValEmpty(t.ElementType())
	}
	return cty.ListVal(list)
}

// TestValueRoundTrip: an encoded value decodes to the original, and a truncated one does not
// decode.
func TestValueRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		of := randomType(r, 2)
		v := randomValue(r, of)
		sent, err := encode(v, of)
		if err != nil {
			t.Fatalf("%#v: %v", v, err)
		}
		if _, err := checkMsgpack(sent.Msgpack); err != nil {
			t.Fatalf("%#v is sent as %x: %v", v, sent.Msgpack, err)
		}
		if got, err := decode(sent, of); err != nil || !got.RawEquals(v) {
			t.Fatalf("%#v is decoded as %#v, %v", v, got, err)
		}
		part := sent.Msgpack[:r.IntN(len(sent.Msgpack))]
		if _, err := checkMsgpack(part); !errors.Is(err, errShort) {
			t.Fatalf("%x of %x: %v", part, sent.Msgpack, err)
		}
		if len(part) > 0 {
			if got, err := decode(&tfplugin6.DynamicValue{Msgpack: part}, of); err == nil {
				t.Fatalf("%x of %x is %#v", part, sent.Msgpack, got)
			}
		}
	}
}

// FuzzDecode decodes arbitrary bytes as values of arbitrary types. The result must be a value of
// the type or an error.
func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for seed := range uint64(50) {
		of := randomType(rand.New(rand.NewPCG(seed, 0)), 2)
		sent, err := encode(randomValue(r, of), of)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed, sent.Msgpack)
	}
	f.Fuzz(func(t *testing.T, seed uint64, b []byte) {
		of := randomType(rand.New(rand.NewPCG(seed, 0)), 2)
		v, err := decode(&tfplugin6.DynamicValue{Msgpack: b}, of)
		if err == nil && len(v.Type().TestConformance(of)) > 0 {
			t.Errorf("%x is decoded as %#v, which is not of type %#v", b, v, of)
		}
	})
}

// TestDecodeRejectsOtherTypes decodes values that do not conform to the type, and checks the
// errors.
func TestDecodeRejectsOtherTypes(t *testing.T) {
	of := cty.Object(map[string]cty.Type{
		"name": cty.String, "rules": cty.List(cty.Object(map[string]cty.Type{"port": cty.Number})), "tags": cty.Map(cty.Bool), "any": cty.DynamicPseudoType,
	})
	good := map[string]cty.Value{
		"name": cty.StringVal("a"), "tags": cty.MapValEmpty(cty.Bool), "any": cty.True,
		"rules": cty.ListVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"port": cty.Zero})}),
	}
	lie := func(name string, v cty.Value) *tfplugin6.DynamicValue {
		attributes := map[string]cty.Value{name: v}
		for other, v := range good {
			if other != name {
				attributes[other] = v
			}
		}
		types := maps.Clone(of.AttributeTypes())
		types[name] = v.Type()
		return fakeEncode(cty.ObjectVal(attributes), cty.Object(types))
	}
	secret := cty.StringVal("is a secret")
	for name, row := range map[string]struct {
		sent *tfplugin6.DynamicValue
		says string
	}{
		"another type": {lie("name", cty.ListVal([]cty.Value{secret})), "name: string is required"},
		"deep within": {lie("rules", cty.TupleVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"port": cty.Zero}), cty.ObjectVal(map[string]cty.Value{"port": secret})})),
			"rules[1].port: number is required"},
		"in a map":             {lie("tags", cty.ObjectVal(map[string]cty.Value{"a b": secret})), `tags["a b"]: bool is required`},
		"another attribute":    {lie("rules", cty.TupleVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"path": secret})})), "rules[0].path: unsupported attribute"},
		"no attributes":        {lie("rules", cty.TupleVal([]cty.Value{cty.EmptyObjectVal})), `rules[?]: missing required attribute "port"`},
		"nothing at all":       {&tfplugin6.DynamicValue{Msgpack: []byte{0x80}}, "missing required attribute"},
		"a list for all":       {fakeEncode(cty.ListVal([]cty.Value{secret}), cty.List(cty.String)), "an object is required"},
		"JSON of another type": {&tfplugin6.DynamicValue{Json: []byte(`{"name":["is a secret"],"any":null,"rules":[],"tags":{}}`)}, "name: string is required"},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := decode(row.sent, of)
			if err == nil || !strings.Contains(err.Error(), row.says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%#v, %v", v, err)
			}
		})
	}
	for what, sent := range map[string]*tfplugin6.DynamicValue{"none": nil, "empty": {}, "null": {Msgpack: []byte{0xc0}}, "null as JSON": {Json: []byte("null")}} {
		if v, err := decode(sent, of); err != nil || !v.RawEquals(cty.NullVal(of)) {
			t.Errorf("%s is %#v, %v", what, v, err)
		}
	}
	encoded, err := ctyjson.Marshal(cty.ObjectVal(good), of)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := decode(&tfplugin6.DynamicValue{Json: encoded}, of); err != nil || !v.RawEquals(cty.ObjectVal(good)) {
		t.Errorf("JSON is %#v, %v", v, err)
	}
	// The elements of the list differ in a nested type, which the decoder does not check.
	mixed := cty.TupleVal([]cty.Value{cty.TupleVal([]cty.Value{cty.True}), cty.TupleVal([]cty.Value{secret})})
	if v, err := decode(fakeEncode(mixed, cty.Tuple([]cty.Type{cty.DynamicPseudoType, cty.DynamicPseudoType})), cty.List(cty.DynamicPseudoType)); err == nil {
		t.Errorf("a list of different types is %#v", v)
	}
}

// TestDecodeBoundsMemory decodes small inputs that announce more memory or stack than there is.
func TestDecodeBoundsMemory(t *testing.T) {
	nest := func(open string, n int) []byte { return []byte(strings.Repeat(open, n) + "\xc0") }
	for name, row := range map[string]struct {
		sent []byte
		want error
	}{
		"an array that announces 4 billion":   {[]byte("\xdd\xff\xff\xff\xff"), errShort},
		"a map that announces 4 billion":      {[]byte("\xdf\xff\xff\xff\xff"), errShort},
		"a string that announces 4 billion":   {[]byte("\xdb\xff\xff\xff\xff"), errShort},
		"an unknown that announces 4 billion": {[]byte("\xc9\xff\xff\xff\xff\x0c"), errShort},
		"arrays in arrays":                    {nest("\x91", 1<<20), errDeep},
		"values of any type in one another":   {nest("\x92\xc4\x09\"dynamic\"", 1<<16), errDeep},
		"a million nulls":                     {append([]byte("\xdd\x00\x10\x00\x01"), bytes.Repeat([]byte{0xc0}, 1<<20+1)...), errElements},
		"nothing":                             {nil, errShort},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := checkMsgpack(row.sent); !errors.Is(err, row.want) {
				t.Error(err)
			}
			if len(row.sent) == 0 {
				return // an absent value is null
			}
			if v, err := decode(&tfplugin6.DynamicValue{Msgpack: row.sent}, cty.List(cty.String)); !errors.Is(err, row.want) {
				t.Errorf("%#v, %v", v, err)
			}
		})
	}
	if v, err := decode(&tfplugin6.DynamicValue{Json: bytes.Repeat([]byte("["), maxJSON+1)}, cty.DynamicPseudoType); err == nil {
		t.Errorf("JSON without end is %#v", v)
	}
}

// TestSecrets: sensitive values are found at any depth and masked in texts.
func TestSecrets(t *testing.T) {
	text := func(name string, sensitive bool) providerapi.Attribute {
		return providerapi.Attribute{Name: name, Type: cty.String, Sensitive: sensitive}
	}
	nested := &providerapi.Object{Nesting: providerapi.NestingMap, Attributes: []providerapi.Attribute{text("key", true), text("user", false)}}
	block := providerapi.Block{
		Attributes: []providerapi.Attribute{
			{Name: "list", Type: cty.List(cty.String), Sensitive: true}, {Name: "nested", Type: nested.ImpliedType(), Nested: nested},
			{Name: "once", Type: cty.String, WriteOnly: true}, text("plain", false),
		},
		Blocks: []providerapi.NestedBlock{{Name: "login", Nesting: providerapi.NestingList, Block: providerapi.Block{Attributes: []providerapi.Attribute{text("password", true)}}}},
	}
	config := cty.ObjectVal(map[string]cty.Value{
		"list":   cty.ListVal([]cty.Value{cty.StringVal("listed-1"), cty.StringVal("listed-12")}),
		"nested": cty.MapVal(map[string]cty.Value{"a": cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal("the-key"), "user": cty.StringVal("joe")})}),
		"once":   cty.StringVal("only-once"), "plain": cty.StringVal("plain"),
		"login": cty.ListVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"password": cty.StringVal("pass")})}),
	})
	m := newMask(append(secretsOf(&block, config), "abc"))
	const said = "listed-12, listed-1, the-key of joe, only-once, plain, pass, abc"
	const want = "(sensitive), (sensitive), (sensitive) of joe, (sensitive), plain, (sensitive), abc"
	if got := m.text(said); got != want {
		t.Errorf("%s", got)
	}
	if secrets := secretsOf(&block, cty.NilVal); secrets != nil {
		t.Errorf("secrets of a null configuration: %q", secrets)
	}
}

// TestPlanKeepsEncoding: a planned value keeps the provider's encoding, unless that contains
// anything that the decoded value lacks.
func TestPlanKeepsEncoding(t *testing.T) {
	of := cty.Object(map[string]cty.Type{"id": cty.String, "name": cty.String})
	v := cty.ObjectVal(map[string]cty.Value{"id": cty.UnknownVal(cty.String), "name": cty.StringVal("a")})
	sent, err := encode(v, of)
	if err != nil {
		t.Fatal(err)
	}
	plain := &typeSchema{name: "fake_thing", implied: of}
	for what, row := range map[string]struct {
		typeSchema *typeSchema
		sent       *tfplugin6.DynamicValue
		want       []byte
	}{
		"exact":                      {plain, sent, sent.Msgpack},
		"with trailing bytes":        {plain, &tfplugin6.DynamicValue{Msgpack: append(bytes.Clone(sent.Msgpack), 0xc0)}, nil},
		"in JSON":                    {plain, &tfplugin6.DynamicValue{Json: []byte(`{"id":"i","name":"a"}`)}, nil},
		"nothing":                    {plain, nil, nil},
		"with write-only attributes": {&typeSchema{name: "fake_thing", implied: of, writeOnly: true, schema: &providerapi.Schema{}}, sent, nil},
	} {
		t.Run(what, func(t *testing.T) {
			answer, err := (&Instance{}).planned(row.typeSchema, &tfplugin6.PlanResourceChange_Response{PlannedState: row.sent})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(answer.Encoded, row.want) {
				t.Errorf("%#v is encoded as %x, want %x", answer.Planned, answer.Encoded, row.want)
			}
		})
	}
}
