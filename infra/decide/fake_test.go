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

	"github.com/atoll-dev/atoll/infra/contract"
)

// testSchema returns a type with every feature of a schema.
func testSchema() *contract.Schema {
	str := func(name string, flags string) contract.Attribute { return attribute(name, cty.String, flags) }
	limits := &contract.Object{Nesting: contract.NestingList, Attributes: []contract.Attribute{str("cpu", "optional"), str("used", "computed")}}
	place := &contract.Object{Nesting: contract.NestingSingle, Attributes: []contract.Attribute{str("rack", "computed"), str("room", "optional")}}
	limitsAttribute := attribute("limits", limits.ImpliedType(), "optional computed")
	limitsAttribute.Nested = limits
	placeAttribute := attribute("place", place.ImpliedType(), "optional")
	placeAttribute.Nested = place
	return &contract.Schema{Version: 2, Block: contract.Block{
		Attributes: []contract.Attribute{
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
		Blocks: []contract.NestedBlock{
			{Name: "disk", Nesting: contract.NestingSet, Block: contract.Block{Attributes: []contract.Attribute{str("id", "computed"), str("path", "required")}}},
			{Name: "env", Nesting: contract.NestingMap, Block: contract.Block{Attributes: []contract.Attribute{str("value", "optional")}}},
			{Name: "network", Nesting: contract.NestingSingle, Block: contract.Block{Attributes: []contract.Attribute{str("cidr", "optional"), str("gateway", "computed")}}},
			{Name: "rule", Nesting: contract.NestingList, Block: contract.Block{Attributes: []contract.Attribute{
				attribute("port", cty.Number, "optional"), str("secret", "optional sensitive"), str("uid", "computed")}}},
			{Name: "timeouts", Nesting: contract.NestingGroup, Block: contract.Block{Attributes: []contract.Attribute{str("create", "optional")}}},
		},
	}}
}

func attribute(name string, ty cty.Type, flags string) contract.Attribute {
	has := func(flag string) bool { return strings.Contains(" "+flags+" ", " "+flag+" ") }
	return contract.Attribute{Name: name, Type: ty, Required: has("required"), Optional: has("optional"), Computed: has("computed"),
		Sensitive: has("sensitive"), WriteOnly: has("writeonly")}
}

// fake is a provider with scripted answers. Without a script it behaves like a good provider:
// computed attributes are planned as unknown, a change of zone forces a replacement, and the plan
// is applied exactly.
type fake struct {
	schema *contract.Schema

	mu  sync.Mutex
	log []string

	read        *contract.ReadAnswer
	plan        func(contract.PlanRequest) contract.PlanAnswer
	apply       func(contract.ApplyRequest) (contract.ApplyAnswer, error)
	validate    contract.Diagnostics
	imports     *contract.ImportAnswer
	data        *contract.DataAnswer
	upgrade     *contract.UpgradeAnswer
	replace     []cty.Path
	lenient     bool
	unavailable bool
}

func (f *fake) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fake) Catalog() contract.Catalog { return nil }

func (f *fake) ValidateResource(context.Context, string, *contract.Configuration) (contract.Diagnostics, error) {
	f.note("validate")
	return f.validate, nil
}

func (f *fake) ValidateData(_ context.Context, _ string, config cty.Value) (contract.Diagnostics, error) {
	f.note("validate data")
	return f.validate, nil
}

func (f *fake) Upgrade(_ context.Context, _ string, stored contract.StoredState) (contract.UpgradeAnswer, error) {
	f.note("upgrade from %d %s", stored.Version, stored.JSON)
	if f.upgrade != nil {
		return *f.upgrade, nil
	}
	v, err := ctyjson.Unmarshal(stored.JSON, f.schema.Block.ImpliedType())
	return contract.UpgradeAnswer{Value: v}, err
}

func (f *fake) Read(_ context.Context, request contract.ReadRequest) (contract.ReadAnswer, error) {
	f.note("read")
	if f.unavailable {
		return contract.ReadAnswer{}, contract.ErrUnavailable
	}
	if f.read != nil {
		return *f.read, nil
	}
	return contract.ReadAnswer{State: request.State}, nil
}

func (f *fake) Plan(_ context.Context, request contract.PlanRequest) (contract.PlanAnswer, error) {
	f.note("plan %s (private %q)", verb(request.Prior, request.Proposed), request.Private)
	if request.AsWritten && !request.Proposed.RawEquals(request.Config.Value) {
		return contract.PlanAnswer{}, fmt.Errorf("AsWritten is set, but %#v differs from %#v", request.Proposed, request.Config.Value)
	}
	answer := contract.PlanAnswer{}
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
func (f *fake) goodPlan(request contract.PlanRequest) contract.PlanAnswer {
	answer := contract.PlanAnswer{Planned: withoutWriteOnly(&f.schema.Block, request.Proposed), Private: []byte("planned " + verb(request.Prior, request.Proposed)), Lenient: f.lenient, Replace: f.replace}
	if request.Proposed.IsNull() {
		return answer
	}
	answer.Planned = markComputed(contract.BlockLevel(&f.schema.Block), answer.Planned, request.Config.Value)
	if !request.Prior.IsNull() {
		answer.Replace = append(answer.Replace, cty.GetAttrPath("zone"))
	}
	return answer
}

// markComputed makes computed attributes unknown if they are null.
func markComputed(l contract.Level, v, config cty.Value) cty.Value {
	if v.IsNull() || !v.IsKnown() {
		return v
	}
	of := v.AsValueMap()
	for i := range l.Attributes {
		a := &l.Attributes[i]
		if c := attributeOf(config, a); a.Computed && c.IsNull() && of[a.Name].IsNull() {
			of[a.Name] = cty.UnknownVal(a.Type)
		} else if a.Nested != nil {
			of[a.Name] = markComputedNested(a.Nested.Nesting, contract.ObjectLevel(a.Nested), of[a.Name], c)
		}
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		of[n.Name] = markComputedNested(n.Nesting, contract.BlockLevel(&n.Block), of[n.Name], blockOf(config, n))
	}
	return cty.ObjectVal(of)
}

func markComputedNested(nesting contract.Nesting, l contract.Level, v, config cty.Value) cty.Value {
	switch {
	case v.IsNull() || !v.IsKnown():
		return v
	case nesting == contract.NestingSingle || nesting == contract.NestingGroup:
		return markComputed(l, v, config)
	case length(v) == 0:
		return v
	}
	var keys, elements []cty.Value
	for it := v.ElementIterator(); it.Next(); {
		key, one := it.Element()
		c := cty.NullVal(one.Type())
		if nesting != contract.NestingSet {
			if found, ok := element(config, key); ok {
				c = found
			}
		}
		keys, elements = append(keys, key), append(elements, markComputed(l, one, c))
	}
	return collectionLike(v, keys, elements)
}

func (f *fake) Apply(_ context.Context, request contract.ApplyRequest) (contract.ApplyAnswer, error) {
	f.note("apply %s (private %q)", verb(request.Prior, request.Planned), request.Private)
	if f.apply != nil {
		return f.apply(request)
	}
	return f.goodApply(request), nil
}

func (f *fake) goodApply(request contract.ApplyRequest) contract.ApplyAnswer {
	made, err := cty.Transform(request.Planned, func(path cty.Path, v cty.Value) (cty.Value, error) {
		switch {
		case v.IsKnown():
			return v, nil
		case v.Type() == cty.String:
			return cty.StringVal("made-" + contract.PathText(path)), nil
		case v.Type() == cty.Number:
			return cty.NumberIntVal(7), nil
		}
		return cty.NullVal(v.Type()), nil
	})
	if err != nil {
		panic(err)
	}
	return contract.ApplyAnswer{State: contract.State{Value: made, Private: []byte("applied")}, Lenient: f.lenient}
}

func (f *fake) Import(_ context.Context, typeName, id string) (contract.ImportAnswer, error) {
	f.note("import %s", id)
	if f.imports != nil {
		return *f.imports, nil
	}
	return contract.ImportAnswer{}, nil
}

func (f *fake) ReadData(_ context.Context, _ string, config cty.Value) (contract.DataAnswer, error) {
	f.note("read data")
	if f.data != nil {
		return *f.data, nil
	}
	return contract.DataAnswer{Value: cty.UnknownAsNull(PlannedDataSource(&f.schema.Block, config))}, nil
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
func value(t testing.TB, block *contract.Block, text string) cty.Value {
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

func objectOf(t testing.TB, block *contract.Block, doc any) cty.Value {
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

func blocksOf(t testing.TB, n *contract.NestedBlock, doc any) cty.Value {
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
		case n.Nesting == contract.NestingSet:
			return cty.SetVal(all)
		}
		return cty.ListVal(all)
	case map[string]any:
		if n.Nesting != contract.NestingMap {
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
