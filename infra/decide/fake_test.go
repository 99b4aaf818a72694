package decide

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// testSchema returns a type with every feature of a schema.
func testSchema() *providerapi.Schema {
	str := func(name string, flags string) providerapi.Attribute { return attribute(name, cty.String, flags) }
	limits := &providerapi.Object{Nesting: providerapi.NestingList, Attributes: []providerapi.Attribute{str("cpu", "optional"), str("used", "computed")}}
	place := &providerapi.Object{Nesting: providerapi.NestingSingle, Attributes: []providerapi.Attribute{str("rack", "computed"), str("room", "optional")}}
	limitsAttribute := attribute("limits", limits.ImpliedType(), "optional computed")
	limitsAttribute.Nested = limits
	placeAttribute := attribute("place", place.ImpliedType(), "optional")
	placeAttribute.Nested = place
	return &providerapi.Schema{Version: 2, Block: providerapi.Block{
		Attributes: []providerapi.Attribute{
			attribute("any", cty.DynamicPseudoType, "optional"),
			str("content", "optional"),
			str("id", "computed"),
			attribute("labels", cty.Map(cty.String), "optional"),
			limitsAttribute,
			attribute("list", cty.List(cty.String), "optional"),
			str("name", "required"),
			str("password", "optional sensitive"),
			placeAttribute,
			attribute("size", cty.Number, "optional computed"),
			attribute("tags", cty.Set(cty.String), "optional"),
			str("token", "computed sensitive"),
			str("wo", "optional writeonly"),
			str("zone", "optional"),
		},
		Blocks: []providerapi.NestedBlock{
			{Name: "disk", Nesting: providerapi.NestingSet, Block: providerapi.Block{Attributes: []providerapi.Attribute{str("id", "computed"), str("path", "required")}}},
			{Name: "env", Nesting: providerapi.NestingMap, Block: providerapi.Block{Attributes: []providerapi.Attribute{str("value", "optional")}}},
			{Name: "network", Nesting: providerapi.NestingSingle, Block: providerapi.Block{Attributes: []providerapi.Attribute{str("cidr", "optional"), str("gateway", "computed")}}},
			{Name: "rule", Nesting: providerapi.NestingList, Block: providerapi.Block{Attributes: []providerapi.Attribute{
				attribute("port", cty.Number, "optional"), str("secret", "optional sensitive"), str("uid", "computed")}}},
			{Name: "timeouts", Nesting: providerapi.NestingGroup, Block: providerapi.Block{Attributes: []providerapi.Attribute{str("create", "optional")}}},
		},
	}}
}

func attribute(name string, ty cty.Type, flags string) providerapi.Attribute {
	has := func(flag string) bool { return strings.Contains(" "+flags+" ", " "+flag+" ") }
	return providerapi.Attribute{Name: name, Type: ty, Required: has("required"), Optional: has("optional"), Computed: has("computed"),
		Sensitive: has("sensitive"), WriteOnly: has("writeonly")}
}

// fake is a provider with scripted answers. Without a script it behaves like a good provider:
// computed attributes are planned as unknown, a change of zone forces a replacement, and the plan
// is applied exactly.
type fake struct {
	schema *providerapi.Schema

	mu  sync.Mutex
	log []string

	read        *providerapi.ReadAnswer
	plan        func(providerapi.PlanRequest) providerapi.PlanAnswer
	apply       func(providerapi.ApplyRequest) (providerapi.ApplyAnswer, error)
	validate    providerapi.Diagnostics
	moved       *providerapi.MoveAnswer
	imports     *providerapi.ImportAnswer
	data        *providerapi.DataAnswer
	upgrade     *providerapi.UpgradeAnswer
	replace     []cty.Path
	lenient     bool
	unavailable bool
}

func (f *fake) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fake) Catalog() providerapi.Catalog { return nil }

func (f *fake) ValidateResource(context.Context, string, *providerapi.Configuration) (providerapi.Diagnostics, error) {
	f.note("validate")
	return f.validate, nil
}

func (f *fake) ValidateData(_ context.Context, _ string, config cty.Value) (providerapi.Diagnostics, error) {
	f.note("validate data")
	return f.validate, nil
}

func (f *fake) Upgrade(_ context.Context, _ string, stored providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	f.note("upgrade from %d %s", stored.Version, stored.JSON)
	if f.upgrade != nil {
		return *f.upgrade, nil
	}
	v, err := ctyjson.Unmarshal(stored.JSON, f.schema.Block.ImpliedType())
	return providerapi.UpgradeAnswer{Value: v}, err
}

func (f *fake) Read(_ context.Context, request providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	f.note("read")
	if f.unavailable {
		return providerapi.ReadAnswer{}, providerapi.ErrUnavailable
	}
	if f.read != nil {
		return *f.read, nil
	}
	return providerapi.ReadAnswer{State: request.State}, nil
}

func (f *fake) Plan(_ context.Context, request providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	f.note("plan %s (private %q)", verb(request.Prior, request.Proposed), request.Private)
	if request.AsWritten && !request.Proposed.RawEquals(request.Config.Value) {
		return providerapi.PlanAnswer{}, fmt.Errorf("AsWritten is set, but %#v differs from %#v", request.Proposed, request.Config.Value)
	}
	answer := providerapi.PlanAnswer{}
	if f.plan != nil {
		answer = f.plan(request)
	} else {
		answer = f.goodPlan(request)
	}
	if answer.Planned != cty.NilVal { // as real providers answer
		if packed, err := msgpack.Marshal(answer.Planned, f.schema.Block.ImpliedType()); err == nil {
			answer.Encoded = packed
		}
	}
	return answer, nil
}

// goodPlan keeps prior values, and makes computed attributes unknown if something changes and they
// have no prior value.
func (f *fake) goodPlan(request providerapi.PlanRequest) providerapi.PlanAnswer {
	answer := providerapi.PlanAnswer{Planned: withoutWriteOnly(&f.schema.Block, request.Proposed), Private: []byte("planned " + verb(request.Prior, request.Proposed)), Lenient: f.lenient, Replace: f.replace}
	if request.Proposed.IsNull() {
		return answer
	}
	answer.Planned = markComputed(providerapi.BlockLevel(&f.schema.Block), answer.Planned, request.Config.Value)
	if !request.Prior.IsNull() {
		answer.Replace = append(answer.Replace, cty.GetAttrPath("zone"))
	}
	return answer
}

// markComputed makes computed attributes unknown if they are null.
func markComputed(l providerapi.Level, v, config cty.Value) cty.Value {
	if v.IsNull() || !v.IsKnown() {
		return v
	}
	of := v.AsValueMap()
	for i := range l.Attributes {
		a := &l.Attributes[i]
		if c := attributeOf(config, a); a.Computed && c.IsNull() && of[a.Name].IsNull() {
			of[a.Name] = cty.UnknownVal(a.Type)
		} else if a.Nested != nil {
			of[a.Name] = markComputedNested(a.Nested.Nesting, providerapi.ObjectLevel(a.Nested), of[a.Name], c)
		}
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		of[n.Name] = markComputedNested(n.Nesting, providerapi.BlockLevel(&n.Block), of[n.Name], blockOf(config, n))
	}
	return cty.ObjectVal(of)
}

func markComputedNested(nesting providerapi.Nesting, l providerapi.Level, v, config cty.Value) cty.Value {
	switch {
	case v.IsNull() || !v.IsKnown():
		return v
	case nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup:
		return markComputed(l, v, config)
	case length(v) == 0:
		return v
	}
	var keys, elements []cty.Value
	for it := v.ElementIterator(); it.Next(); {
		key, one := it.Element()
		c := cty.NullVal(one.Type())
		if nesting != providerapi.NestingSet {
			if found, ok := element(config, key); ok {
				c = found
			}
		}
		keys, elements = append(keys, key), append(elements, markComputed(l, one, c))
	}
	return collectionLike(v, keys, elements)
}

func (f *fake) Apply(_ context.Context, request providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
	f.note("apply %s (private %q)", verb(request.Prior, request.Planned), request.Private)
	if f.apply != nil {
		return f.apply(request)
	}
	return f.goodApply(request), nil
}

func (f *fake) goodApply(request providerapi.ApplyRequest) providerapi.ApplyAnswer {
	made, err := cty.Transform(request.Planned, func(path cty.Path, v cty.Value) (cty.Value, error) {
		switch {
		case v.IsKnown():
			return v, nil
		case v.Type() == cty.String:
			return cty.StringVal("made-" + providerapi.PathText(path)), nil
		case v.Type() == cty.Number:
			return cty.NumberIntVal(7), nil
		}
		return cty.NullVal(v.Type()), nil
	})
	if err != nil {
		panic(err)
	}
	return providerapi.ApplyAnswer{State: providerapi.State{Value: made, Private: []byte("applied")}, Lenient: f.lenient}
}

func (f *fake) Import(_ context.Context, typeName, id string) (providerapi.ImportAnswer, error) {
	f.note("import %s", id)
	if f.imports != nil {
		return *f.imports, nil
	}
	return providerapi.ImportAnswer{}, nil
}

func (f *fake) Move(_ context.Context, r providerapi.MoveRequest) (providerapi.MoveAnswer, error) {
	f.note("move %s from %s", r.SourceType, r.SourceProvider)
	if f.moved == nil {
		return providerapi.MoveAnswer{}, nil
	}
	return *f.moved, nil
}

func (f *fake) ReadData(_ context.Context, _ string, config cty.Value) (providerapi.DataAnswer, error) {
	f.note("read data")
	if f.data != nil {
		return *f.data, nil
	}
	return providerapi.DataAnswer{Value: cty.UnknownAsNull(PlannedDataSource(&f.schema.Block, config))}, nil
}

func verb(prior, next cty.Value) string {
	switch {
	case prior.IsNull():
		return "create"
	case next.IsNull():
		return "delete"
	}
	return "update"
}

// secretMark marks secrets in tests. The package accepts any mark.
type secretMark struct{}

// value reads JSON as a value of the block's type. Absent attributes are null, and absent blocks
// empty. "?" is unknown, and a string that starts with "secret:" is marked.
func value(t testing.TB, block *providerapi.Block, text string) cty.Value {
	t.Helper()
	if text == "" || text == "null" {
		return cty.NullVal(block.ImpliedType())
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var doc any
	if err := decoder.Decode(&doc); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return objectOf(t, block, doc)
}

func objectOf(t testing.TB, block *providerapi.Block, doc any) cty.Value {
	t.Helper()
	given := doc.(map[string]any)
	of := map[string]cty.Value{}
	for i := range block.Attributes {
		a := &block.Attributes[i]
		of[a.Name] = typed(t, a.Type, given[a.Name])
		delete(given, a.Name)
	}
	for i := range block.Blocks {
		n := &block.Blocks[i]
		of[n.Name] = blocksOf(t, n, given[n.Name])
		delete(given, n.Name)
	}
	if len(given) > 0 {
		t.Fatalf("no such attributes: %v", given)
	}
	return cty.ObjectVal(of)
}

func blocksOf(t testing.TB, n *providerapi.NestedBlock, doc any) cty.Value {
	t.Helper()
	switch doc := doc.(type) {
	case nil:
		return n.Absent()
	case string:
		return cty.UnknownVal(n.ImpliedType())
	case []any:
		var all []cty.Value
		for _, one := range doc {
			all = append(all, objectOf(t, &n.Block, one))
		}
		switch {
		case len(all) == 0:
			return n.Absent()
		case n.Nesting == providerapi.NestingSet:
			return cty.SetVal(all)
		}
		return cty.ListVal(all)
	case map[string]any:
		if n.Nesting != providerapi.NestingMap {
			return objectOf(t, &n.Block, doc)
		}
		all := map[string]cty.Value{}
		for key, one := range doc {
			all[key] = objectOf(t, &n.Block, one)
		}
		return cty.MapVal(all)
	}
	t.Fatalf("not blocks: %v", doc)
	return cty.NilVal
}

func typed(t testing.TB, ty cty.Type, doc any) cty.Value {
	t.Helper()
	switch doc := doc.(type) {
	case nil:
		return cty.NullVal(ty)
	case string:
		if doc == "?" {
			return cty.UnknownVal(ty)
		}
		if secret, is := strings.CutPrefix(doc, "secret:"); is {
			return cty.StringVal(secret).Mark(secretMark{})
		}
	case []any:
		if len(doc) > 0 && (ty.IsListType() || ty.IsSetType()) {
			var all []cty.Value
			for _, one := range doc {
				all = append(all, typed(t, ty.ElementType(), one))
			}
			if ty.IsSetType() {
				return cty.SetVal(all)
			}
			return cty.ListVal(all)
		}
	case map[string]any:
		if len(doc) > 0 && ty.IsMapType() {
			all := map[string]cty.Value{}
			for key, one := range doc {
				all[key] = typed(t, ty.ElementType(), one)
			}
			return cty.MapVal(all)
		}
		if ty.IsObjectType() {
			all := map[string]cty.Value{}
			for name, of := range ty.AttributeTypes() {
				all[name] = typed(t, of, doc[name])
			}
			return cty.ObjectVal(all)
		}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if ty == cty.DynamicPseudoType {
		v, err := stdlib.JSONDecode(cty.StringVal(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	v, err := ctyjson.Unmarshal(text, ty)
	if err != nil {
		t.Fatalf("%s as %s: %v", text, ty.FriendlyName(), err)
	}
	return v
}
