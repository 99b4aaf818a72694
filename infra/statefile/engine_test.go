package statefile_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
	"github.com/atoll-dev/atoll/infra/statefile"
)

const namespace = "shop"

func attributes(of ...providerapi.Attribute) []providerapi.Attribute {
	slices.SortFunc(of, func(a, b providerapi.Attribute) int { return cmp.Compare(a.Name, b.Name) })
	return of
}

func required(name string, ty cty.Type) providerapi.Attribute {
	return providerapi.Attribute{Name: name, Type: ty, Required: true}
}

func optional(name string, ty cty.Type) providerapi.Attribute {
	return providerapi.Attribute{Name: name, Type: ty, Optional: true}
}

func computed(name string, ty cty.Type) providerapi.Attribute {
	return providerapi.Attribute{Name: name, Type: ty, Computed: true}
}

func filled(name string, ty cty.Type) providerapi.Attribute {
	return providerapi.Attribute{Name: name, Type: ty, Optional: true, Computed: true}
}

func sensitive(a providerapi.Attribute) providerapi.Attribute { a.Sensitive = true; return a }

func nested(name string, nesting providerapi.Nesting, of ...providerapi.Attribute) providerapi.Attribute {
	object := &providerapi.Object{Nesting: nesting, Attributes: attributes(of...)}
	return providerapi.Attribute{Name: name, Type: object.ImpliedType(), Optional: true, Nested: object}
}

func block(name string, nesting providerapi.Nesting, most int64, of ...providerapi.Attribute) providerapi.NestedBlock {
	return providerapi.NestedBlock{Name: name, Nesting: nesting, Max: most, Block: providerapi.Block{Attributes: attributes(of...)}}
}

// types are the types of the provider demo.
func types() map[string]*providerapi.Schema {
	writeOnly := required("seed_wo", cty.String)
	writeOnly.WriteOnly = true
	all := map[string]*providerapi.Schema{
		"demo_network": {Version: 1, Block: providerapi.Block{Attributes: attributes(
			required("name", cty.String), computed("id", cty.String), required("cidr", cty.String), optional("tags", cty.Map(cty.String)),
			computed("gateway", cty.String), computed("number", cty.Number), computed("hosts", cty.List(cty.String)), computed("region", cty.String),
		)}},
		"demo_password": {Block: providerapi.Block{Attributes: attributes(
			computed("id", cty.String), required("length", cty.Number), sensitive(computed("result", cty.String)),
		)}},
		"demo_seed": {Block: providerapi.Block{Attributes: attributes(computed("id", cty.String), writeOnly)}},
		"demo_server": {Block: providerapi.Block{
			Attributes: attributes(
				required("name", cty.String), computed("id", cty.String), required("network_id", cty.String), optional("network_number", cty.Number),
				optional("peers", cty.Set(cty.String)), optional("labels", cty.Map(cty.String)), optional("ports", cty.List(cty.Number)), optional("region", cty.String),
				filled("image", cty.String), filled("size", cty.String), computed("address", cty.String), optional("enabled", cty.Bool),
				sensitive(optional("password", cty.String)), optional("user_data", cty.String), optional("extra", cty.DynamicPseudoType),
				nested("login", providerapi.NestingList, required("user", cty.String), sensitive(optional("secret", cty.String)), optional("network", cty.String)),
			),
			Blocks: []providerapi.NestedBlock{
				block("disk", providerapi.NestingList, 1, optional("network", cty.String), required("size", cty.Number), computed("serial", cty.String)),
				block("rule", providerapi.NestingSet, 0, optional("source", cty.String), required("port", cty.Number)),
				block("timeouts", providerapi.NestingSingle, 0, optional("create", cty.String)),
			},
		}},
	}
	for _, of := range all {
		of.Identity = []providerapi.IdentityAttribute{{Name: "id", Type: cty.String, RequiredForImport: true}}
	}
	return all
}

// demo has the types as infra/schema serves them.
type demo struct {
	t       testing.TB
	types   map[string]*providerapi.Schema
	data    map[string]*providerapi.Schema
	names   map[string]schema.Name
	upgrade func(typeName string, stored providerapi.StoredState) (cty.Value, error)
}

func newDemo(t testing.TB) *demo {
	d := &demo{t: t, types: types(), data: map[string]*providerapi.Schema{}, names: map[string]schema.Name{}}
	d.data["demo_network"] = &providerapi.Schema{Block: providerapi.Block{Attributes: attributes(required("name", cty.String), computed("id", cty.String), filled("zone", cty.String))}}
	for _, name := range schema.Names([]string{"demo_network", "demo_password", "demo_seed", "demo_server"}, []string{"demo_network"}) {
		d.names[fmt.Sprint(name.Data, name.Type)] = name
	}
	return d
}

func (d *demo) kind(provider, typeName string, data bool) (schema.Kind, error) {
	of := d.types[typeName]
	if data {
		of = d.data[typeName]
	}
	if of == nil {
		return schema.Kind{}, errors.New("there is no such type")
	}
	return schema.Kind{Name: d.names[fmt.Sprint(data, typeName)], Group: schema.Group(provider), Schema: of}, nil
}

func (d *demo) ResourceType(provider, typeName string, data bool) (*statefile.ResourceType, error) {
	k, err := d.kind(provider, typeName, data)
	if err != nil {
		return nil, err
	}
	out := &statefile.ResourceType{Kind: k.Kind, Plural: k.Plural, Schema: k.Schema}
	out.Spec = func(v cty.Value, secret string, which statefile.Arguments) (map[string]any, []statefile.Placeholder) {
		spec, placeholders := k.Spec(v, schema.SpecOptions{Secret: secret, Computed: which.Computed, Written: which.Written, Omit: which.Omit})
		var all []statefile.Placeholder
		for _, p := range placeholders {
			all = append(all, statefile.Placeholder(p))
		}
		return spec, all
	}
	if d.upgrade != nil {
		out.Upgrade = func(stored providerapi.StoredState) (cty.Value, error) { return d.upgrade(typeName, stored) }
	}
	return out, nil
}

var demoProvider = `provider["registry.opentofu.org/atoll/demo"]`

func options() statefile.Options {
	return statefile.Options{Namespace: namespace, Providers: statefile.Providers{"atoll/demo": {Provider: "demo"}, "atoll/demo.west": {Provider: "demo", Config: "west"}}}
}

// run adopts a file.
func run(t testing.TB, d *demo, text []byte, o statefile.Options) ([]*statefile.Adopted, *statefile.Report) {
	t.Helper()
	var all []*statefile.Adopted
	report, err := statefile.Adopt(bytes.NewReader(text), int64(len(text)), d, o, func(one *statefile.Adopted) error {
		all = append(all, one)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, report
}

// evaluated is an adopted resource as the engine evaluates it.
type evaluated struct {
	t        testing.TB
	demo     *demo
	language *expr.Language
	all      map[expr.Ref]*statefile.Adopted
}

func evaluate(t testing.TB, d *demo, language *expr.Language, all []*statefile.Adopted) *evaluated {
	e := &evaluated{t: t, demo: d, language: language, all: map[expr.Ref]*statefile.Adopted{}}
	for _, one := range all {
		if one.Object == nil {
			continue
		}
		ref := expr.Ref{Type: one.State.Type, Namespace: namespace, Name: one.Object.Name}
		if e.all[ref] != nil {
			t.Fatalf("two objects are %s", ref)
		}
		e.all[ref] = one
	}
	return e
}

func (e *evaluated) kind(one *statefile.Adopted) schema.Kind {
	k, err := e.demo.kind(one.State.Provider, one.State.Type, false)
	if err != nil {
		e.t.Fatal(err)
	}
	return k
}

func (e *evaluated) value(one *statefile.Adopted) cty.Value {
	v, err := ctyjson.Unmarshal(one.State.Current.Value, e.kind(one).Schema.Block.ImpliedType())
	if err != nil {
		e.t.Fatal(err)
	}
	return v
}

func (e *evaluated) paths(one *statefile.Adopted) []cty.Path {
	var paths []cty.Path
	for _, text := range one.State.Current.Sensitive {
		path, err := providerapi.ParsePath(text)
		if err != nil {
			e.t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// config returns the configuration that the object sends to the provider.
func (e *evaluated) config(one *statefile.Adopted) cty.Value {
	e.t.Helper()
	// As it is stored, in JSON.
	text, err := json.Marshal(one.Object.Spec)
	if err != nil {
		e.t.Fatal(err)
	}
	var spec map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&spec); err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.language.Spec(one.Object.Spec, namespace); err != nil {
		e.t.Fatalf("%s: %v", one.Address, err)
	}
	if _, errs := e.kind(one).MetaArguments(one.Object.Spec); len(errs) > 0 {
		e.t.Fatalf("%s: %v", one.Address, errs)
	}
	v, errs := e.kind(one).Config(one.Object.Spec, &resolver{e, one})
	if len(errs) > 0 {
		e.t.Fatalf("%s: %v\n%s", one.Address, errs, text)
	}
	return v
}

type resolver struct {
	*evaluated
	one *statefile.Adopted
}

func (r *resolver) Expression(at *field.Path, text string) (cty.Value, error) {
	parsed, err := r.language.Template(text, namespace)
	if err != nil {
		return cty.NilVal, err
	}
	return expr.Field{Path: at.String(), Template: parsed}.Value(expr.Scope{Lookup: r.lookup})
}

func (r *resolver) lookup(ref expr.Ref) (cty.Value, error) {
	if ref.Kind == expr.Kubernetes {
		data := map[string]cty.Value{}
		for key, value := range r.one.Secret.Data {
			data[key] = cty.StringVal(base64.StdEncoding.EncodeToString(value)).Mark(providerapi.Sensitive)
		}
		if ref.Name != r.one.Secret.Name || ref.Type != "Secret" {
			return cty.NilVal, fmt.Errorf("there is no %s", ref)
		}
		return cty.ObjectVal(map[string]cty.Value{"data": cty.MapVal(data)}), nil
	}
	other := r.all[ref]
	if other == nil {
		return cty.NilVal, fmt.Errorf("there is no %s", ref)
	}
	v := schema.Mark(&r.kind(other).Schema.Block, r.value(other))
	return cty.Transform(v, func(path cty.Path, v cty.Value) (cty.Value, error) {
		for _, marked := range r.paths(other) {
			if path.Equals(marked) {
				return v.Mark(providerapi.Sensitive), nil
			}
		}
		return v, nil
	})
}

func (r *resolver) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	if r.one.Secret == nil || ref.Name != r.one.Secret.Name || r.one.Secret.Data[ref.Key] == nil {
		return cty.NilVal, fmt.Errorf("there is no key %s of Secret %s", ref.Key, ref.Name)
	}
	return cty.StringVal(string(r.one.Secret.Data[ref.Key])).Mark(providerapi.Sensitive), nil
}

// firstPlan decides like the engine, with a provider that plans the proposed value.
func (e *evaluated) firstPlan(one *statefile.Adopted) *decide.Decision {
	e.t.Helper()
	k := e.kind(one)
	decision, err := decide.Decide(context.Background(), decide.Input{
		Address: change.Address{Type: one.State.Type, Namespace: namespace, Name: one.Object.Name}, Schema: k.Schema, Provider: agreeable{demo: e.demo},
		Prior: decide.Prior{
			Stored:  &providerapi.StoredState{Version: one.State.Current.SchemaVersion, JSON: one.State.Current.Value},
			Tainted: one.State.Current.Tainted, Sensitive: e.paths(one),
		},
		Config: e.config(one),
	})
	if err != nil {
		e.t.Fatalf("%s: %v", one.Address, err)
	}
	return decision
}

// An agreeable provider plans the proposed value and computes nothing.
type agreeable struct {
	providerapi.Provider
	demo *demo
}

func (agreeable) ValidateResource(context.Context, string, *providerapi.Configuration) (providerapi.Diagnostics, error) {
	return nil, nil
}

func (a agreeable) Upgrade(_ context.Context, typeName string, stored providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	v, err := ctyjson.Unmarshal(stored.JSON, a.demo.types[typeName].Block.ImpliedType())
	return providerapi.UpgradeAnswer{Value: v}, err
}

func (agreeable) Plan(_ context.Context, r providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	return providerapi.PlanAnswer{Planned: r.Proposed, Private: r.Private, Identity: r.Identity}, nil
}
