package schema

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// TestConfig decodes a minimal spec with one more line, and checks that argument.
func TestConfig(t *testing.T) {
	resolver := tableResolver{
		expressions: map[string]cty.Value{
			"${n}":      cty.NumberIntVal(4),
			"${list}":   cty.TupleVal([]cty.Value{cty.StringVal("a"), cty.StringVal("b")}),
			"${?}":      cty.DynamicVal,
			"${secret}": cty.StringVal("s3cret").Mark(providerapi.Sensitive),
			"${disk}":   cty.ObjectVal(map[string]cty.Value{"gigabytes": cty.NumberIntVal(9), "serial": cty.StringVal("theirs")}),
			"${null}":   cty.NullVal(cty.DynamicPseudoType),
			"${login}": cty.TupleVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{
				"user": cty.StringVal("root"), "uid": cty.Zero})}),
		},
		secrets: map[SecretKeyRef]string{{"s", "p"}: "hunter2", {"s", "keys"}: `{"a": "b"}`},
	}
	sensitive := providerapi.Sensitive
	disk := func(gigabytes int64) cty.Value {
		return cty.ObjectVal(map[string]cty.Value{
			"gigabytes": cty.NumberIntVal(gigabytes), "serial": cty.NullVal(cty.String), "key": cty.NullVal(cty.String)})
	}
	for _, test := range []struct {
		name, line, at string
		want           cty.Value
	}{
		{"absent", ``, "cpus", cty.NullVal(cty.Number)},
		{"null", `cpus: null`, "cpus", cty.NullVal(cty.Number)},
		{"an empty string", `name: ""`, "name", cty.StringVal("")},
		{"an escaped expression", `name: $${x}`, "name", cty.StringVal("${x}")},
		{"an integer", `cpus: 3`, "cpus", cty.NumberIntVal(3)},
		{"a decimal fraction", `cpus: 0.1`, "cpus", cty.MustParseNumberVal("0.1")},
		{"a whole number for a string", `name: 8080`, "name", cty.StringVal("8080")},
		{"a boolean for a string", `name: true`, "name", cty.StringVal("true")},
		{"a number in quotes", `cpus: "123456789012345678901234567890"`, "cpus", cty.MustParseNumberVal("123456789012345678901234567890")},
		{"an empty list", `dns: []`, "dns", cty.ListValEmpty(cty.String)},
		{"a list", `dns: [x, null]`, "dns", cty.ListVal([]cty.Value{cty.StringVal("x"), cty.NullVal(cty.String)})},
		{"a set", `groups: [b, a, b]`, "groups", cty.SetVal([]cty.Value{cty.StringVal("a"), cty.StringVal("b")})},
		{"a map with a null", `tags: {a: null, b: c}`, "tags", cty.MapVal(map[string]cty.Value{"a": cty.NullVal(cty.String), "b": cty.StringVal("c")})},
		{"an object with an absent attribute", `size: {width: 1}`, "size",
			cty.ObjectVal(map[string]cty.Value{"width": cty.NumberIntVal(1), "roles": cty.NullVal(cty.Set(cty.String))})},
		{"dynamic", `extra: {a: [1, x], b: true}`, "extra", cty.ObjectVal(map[string]cty.Value{
			"a": cty.TupleVal([]cty.Value{cty.NumberIntVal(1), cty.StringVal("x")}), "b": cty.True})},
		{"a boolean as text", `enabled: "true"`, "enabled", cty.True},
		{"dynamic with an expression", `extra: ["${n}"]`, "extra", cty.TupleVal([]cty.Value{cty.NumberIntVal(4)})},

		{"an expression for a number", `cpus: "${n}"`, "cpus", cty.NumberIntVal(4)},
		{"an expression becomes text", `name: "${n}"`, "name", cty.StringVal("4")},
		{"an expression for a list", `dns: "${list}"`, "dns", cty.ListVal([]cty.Value{cty.StringVal("a"), cty.StringVal("b")})},
		{"an expression for a set", `groups: "${list}"`, "groups", cty.SetVal([]cty.Value{cty.StringVal("a"), cty.StringVal("b")})},
		{"an unknown", `cpus: "${?}"`, "cpus", cty.UnknownVal(cty.Number)},
		{"a null from elsewhere", `cpus: "${null}"`, "cpus", cty.NullVal(cty.Number)},
		{"a mark from elsewhere", `name: "${secret}"`, "name", cty.StringVal("s3cret").Mark(sensitive)},
		{"a mark in a set is the set's", `groups: ["${secret}"]`, "groups", cty.SetVal([]cty.Value{cty.StringVal("s3cret")}).Mark(sensitive)},
		{"objects of another resource, without computed attributes", `login: "${login}"`, "login", cty.ListVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{
			"user": cty.StringVal("root"), "uid": cty.NullVal(cty.Number), "secret": cty.NullVal(cty.String)})})},

		{"a Secret", `password: {secretKeyRef: {name: s, key: p}}`, "password", cty.StringVal("hunter2").Mark(sensitive)},
		{"a Secret with JSON", `keys: {secretKeyRef: {name: s, key: keys}}`, "keys", cty.MapVal(map[string]cty.Value{"a": cty.StringVal("b")}).Mark(sensitive)},
		{"a Secret for an entry", `keys: {x: {secretKeyRef: {name: s, key: p}}}`, "keys",
			cty.MapVal(map[string]cty.Value{"x": cty.StringVal("hunter2").Mark(sensitive)}).Mark(sensitive)},
		{"write-only", `boot_token: "${n}"`, "boot_token", cty.StringVal("4").Mark(sensitive)},

		{"no block in a list", ``, "disk", cty.ListValEmpty(server().Block.Nested("disk").Block.ImpliedType())},
		{"no block in a set", ``, "rule", cty.SetValEmpty(server().Block.Nested("rule").Block.ImpliedType())},
		{"no block in a map", ``, "label", cty.MapValEmpty(server().Block.Nested("label").Block.ImpliedType())},
		{"no single block", ``, "timeouts", cty.NullVal(server().Block.Nested("timeouts").Block.ImpliedType())},
		{"no group", ``, "tuning", cty.ObjectVal(map[string]cty.Value{"level": cty.NullVal(cty.Number)})},
		{"an empty single block", `timeouts: {}`, "timeouts", cty.ObjectVal(map[string]cty.Value{"create": cty.NullVal(cty.String)})},
		{"a single block as a list", `timeouts: [{create: 1h}]`, "timeouts", cty.ObjectVal(map[string]cty.Value{"create": cty.StringVal("1h")})},
		{"no block of any type", ``, "variant", cty.EmptyTupleVal},
		{"blocks of any type", `variant: [{value: 1}, {value: x}]`, "variant", cty.TupleVal([]cty.Value{
			cty.ObjectVal(map[string]cty.Value{"value": cty.NumberIntVal(1)}), cty.ObjectVal(map[string]cty.Value{"value": cty.StringVal("x")})})},
		{"one block as an object", `disk: {gigabytes: 5}`, "disk", cty.ListVal([]cty.Value{disk(5)})},
		{"blocks", `disk: [{gigabytes: 5}, "${disk}"]`, "disk", cty.ListVal([]cty.Value{disk(5), disk(9)})},
		{"blocks from elsewhere", `disk: "${disk}"`, "disk", cty.ListVal([]cty.Value{disk(9)})},
		{"unknown blocks", `disk: "${?}"`, "disk", cty.UnknownVal(cty.List(server().Block.Nested("disk").Block.ImpliedType()))},
		{"blocks by name", `label: {a: {value: x}}`, "label", cty.MapVal(map[string]cty.Value{"a": cty.ObjectVal(map[string]cty.Value{"value": cty.StringVal("x")})})},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, errs := serverKind().Config(object(t, test.line), resolver)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if got := v.GetAttr(test.at); !got.RawEquals(test.want) {
				t.Errorf("%s is %#v, want %#v", test.at, got, test.want)
			}
			conforms(t, &server().Block, v)
		})
	}
}

func conforms(t testing.TB, b *providerapi.Block, v cty.Value) {
	t.Helper()
	for _, err := range v.Type().TestConformance(b.ImpliedType()) {
		t.Errorf("the value does not conform: %v\n%#v", err, v)
	}
}

// TestElementsOfAnyType: elements of dynamic type are converted to their common type.
func TestElementsOfAnyType(t *testing.T) {
	b := &providerapi.Block{Attributes: []providerapi.Attribute{
		{Name: "list", Type: cty.List(cty.DynamicPseudoType), Optional: true},
		{Name: "map", Type: cty.Map(cty.DynamicPseudoType), Optional: true},
		{Name: "set", Type: cty.Set(cty.DynamicPseudoType), Optional: true},
	}}
	at := field.NewPath("spec")
	v, errs := Config(b, at, object(t, `{list: [1, x], map: {a: 1, b: x}, set: [1, x]}`), tableResolver{})
	one, x := cty.StringVal("1"), cty.StringVal("x")
	want := cty.ObjectVal(map[string]cty.Value{
		"list": cty.ListVal([]cty.Value{one, x}), "map": cty.MapVal(map[string]cty.Value{"a": one, "b": x}), "set": cty.SetVal([]cty.Value{one, x}),
	})
	if len(errs) > 0 || !v.RawEquals(want) {
		t.Errorf("%#v, %v", v, errs)
	}
	for _, text := range []string{`{list: [1, {}]}`, `{map: {a: 1, b: []}}`, `{set: [1, [x]]}`} {
		if _, errs := Config(b, at, object(t, text), tableResolver{}); !strings.Contains(inOrder(errs), "its elements have no common type") {
			t.Errorf("%s: %v", text, errs)
		}
	}
	// A set of blocks, too.
	n := block("b", providerapi.NestingSet, 0, 0, providerapi.Attribute{Name: "v", Type: cty.DynamicPseudoType, Optional: true})
	b = &providerapi.Block{Blocks: []providerapi.NestedBlock{n}}
	if v, errs = Config(b, at, object(t, `{b: [{v: 1}, {v: 2}]}`), tableResolver{}); len(errs) > 0 || v.GetAttr("b").LengthInt() != 2 {
		t.Errorf("%#v, %v", v, errs)
	}
	if _, errs = Config(b, at, object(t, `{b: [{v: 1}, {v: x}]}`), tableResolver{}); inOrder(errs) != "spec.b: Forbidden: all of these blocks must have values of the same types" {
		t.Errorf("%v", errs)
	}
}

// TestNumbersFromFiles: numbers that did not pass through the API keep all digits.
func TestNumbersFromFiles(t *testing.T) {
	v, errs := serverKind().Config(map[string]any{"cpus": json.Number("18446744073709551617")}, tableResolver{})
	if want := cty.MustParseNumberVal("18446744073709551617"); len(errs) > 0 || !v.GetAttr("cpus").RawEquals(want) {
		t.Errorf("%#v, %v", v.GetAttr("cpus"), errs)
	}
}

// TestValidateErrors compares all errors about a spec.
func TestValidateErrors(t *testing.T) {
	const least = "name: web\nnetwork: {}\n"
	for _, test := range []struct{ name, spec, want string }{
		{"nothing", least, ``},
		{"required", ``, `spec.name: Required value: the provider requires it
spec.network: Required value: the provider requires at least 1`},
		{"null is absent", "name: null\nnetwork: []", `spec.name: Required value: the provider requires it
spec.network: Required value: the provider requires at least 1`},
		{"a wrong letter", least + `cpu: 1`, `spec.cpu: Forbidden: unknown field; did you mean cpus?`},
		{"as Kubernetes would write it", least + `bootToken: x`, `spec.bootToken: Forbidden: unknown field; did you mean boot_token?`},
		{"far off, below", least + `disk: [{gigabytes: 1, zzzzz: 1}]`, `spec.disk[0].zzzzz: Forbidden: unknown field; valid fields: gigabytes, key`},
		{"far off", least + `zzzzzz: 1`, `spec.zzzzzz: Forbidden: unknown field; see kubectl explain for the valid fields`},
		{"computed", least + `address: here`, `spec.address: Forbidden: is computed by the provider and shown in status.attributes; remove it`},
		{"computed, nested", least + `login: [{user: u, uid: 1}]`, `spec.login[0].uid: Forbidden: is computed by the provider and shown in status.attributes; remove it`},
		{"required, nested", least + `login: [{}]`, `spec.login[0].user: Required value: the provider requires it`},
		{"several", "name: 1.30\nnetwork: {}\ncpus: x\nenabled: \"on\"\ndns: x\ntags: [x]", `spec.cpus: Invalid value: "x": must be a number
spec.dns: Invalid value: "a string": must be a list
spec.enabled: Invalid value: "a string": must be true or false, without quotes
spec.name: Invalid value: "a number": must be a string; put it in quotes
spec.tags: Invalid value: "a list": must be an object`},
		{"lost digits", least + `cpus: 1.0e+300`, `spec.cpus: Invalid value: 1e+300: a number of this size may have lost precision; put it in quotes`},
		{"no finite number", least + `cpus: "Inf"`, `spec.cpus: Invalid value: "Inf": must be a number`},
		{"too many blocks", least + `disk: [{gigabytes: 1}, {gigabytes: 1}, {gigabytes: 1}, {gigabytes: 1}]`, `spec.disk: Too many: 4: must have at most 3 items`},
		{"too many of one", "name: web\nnetwork: [{}, {}]", `spec.network: Too many: 2: must have at most 1 item`},
		{"a block that is a string", least + `disk: x`, `spec.disk: Invalid value: "a string": must be a list of objects`},
		{"a block in a list that is null", least + `disk: [null]`, `spec.disk[0]: Invalid value: "null": must be an object`},
		{"single blocks in a list", least + `timeouts: [{}, {}]`, `spec.timeouts: Invalid value: "a list": must be an object`},
		{"blocks by name in a list", least + `label: [{}]`, `spec.label: Invalid value: "a list": must be an object with a name for each block`},
		{"a path into a map", least + `label: {a: {value: 1.5}}`, `spec.label[a].value: Invalid value: "a number": must be a string; put it in quotes`},
		{"a literal secret", least + `password: hunter2`, `spec.password: Forbidden: is sensitive; use {secretKeyRef: {name: …, key: …}} for a Secret in the same namespace, or an expression ${…} that refers to another object`},
		{"a literal secret of another type", least + `keys: hunter2`, `spec.keys: Invalid value: "a string": must be an object, or {secretKeyRef: {name: …, key: …}} for a Secret in the same namespace, or an expression ${…} that refers to another object`},
		{"a literal secret in a map", least + `keys: {a: hunter2}`, `spec.keys[a]: Forbidden: is sensitive; use {secretKeyRef: {name: …, key: …}} for a Secret in the same namespace, or an expression ${…} that refers to another object`},
		{"a literal where it is not stored", least + `boot_token: hunter2`, `spec.boot_token: Forbidden: is sensitive; use {secretKeyRef: {name: …, key: …}} for a Secret in the same namespace, or an expression ${…} that refers to another object`},
		{"half a secret", least + `password: {secretKeyRef: {name: s}}`, `spec.password.secretKeyRef: Forbidden: must have exactly the fields name and key, both not empty`},
		{"a secret for an argument that is not sensitive", least + `cpus: {secretKeyRef: {name: s, key: k}}`, `spec.cpus: Invalid value: "an object": must be a number; only sensitive arguments accept a secretKeyRef, because all other values are shown`},
		{"Atoll's own", "name: web\nnetwork: {}\nprovider: 1\ndepends_on: x\nlifecycle: {prevent_destruction: true, ignore_changes: [addres, address, 'a[']}\nconnection: {Secret: x}",
			`spec.connection.Secret: Forbidden: unknown field; did you mean secret?
spec.depends_on: Invalid value: "x": must be a list of strings
spec.lifecycle.ignore_changes[0]: Invalid value: "addres": unknown field; see kubectl explain for the valid fields
spec.lifecycle.ignore_changes[1]: Invalid value: "address": address is computed by the provider, so its changes need not be ignored; remove it
spec.lifecycle.ignore_changes[2]: Invalid value: "a[": [ is neither an index nor a key in quotes; a path looks like tags["env"] or ingress[0].port
spec.lifecycle.prevent_destruction: Forbidden: unknown field; did you mean prevent_destroy?
spec.provider: Invalid value: 1: must be a string`},
	} {
		t.Run(test.name, func(t *testing.T) {
			errs, _ := serverKind().Validate(object(t, test.spec), Checks{})
			if diff := cmp.Diff(test.want, inOrder(errs)); diff != "" {
				t.Errorf("-want +got %s", diff)
			}
		})
	}
}

func inOrder(errs field.ErrorList) string {
	lines := map[string]bool{}
	for _, err := range errs {
		lines[err.Error()] = true
	}
	return strings.Join(sortedKeys(lines), "\n")
}

func TestPartial(t *testing.T) {
	if errs, _ := serverKind().Validate(nil, Checks{Partial: true}); len(errs) > 0 {
		t.Errorf("an object to be imported: %v", errs)
	}
}

// TestResolverErrors: errors of a resolver are reported at the field, without the content of a
// Secret.
func TestResolverErrors(t *testing.T) {
	resolver := tableResolver{expressions: map[string]cty.Value{"${text}": cty.StringVal("x")}, secrets: map[SecretKeyRef]string{{"s", "k"}: "hunter2"}}
	spec := object(t, `{cpus: "${text}", name: "${gone}", disk: "${text}", password: {secretKeyRef: {name: t, key: k}}, keys: {secretKeyRef: {name: s, key: k}}}`)
	v, errs := serverKind().Config(spec, resolver)
	want := `spec.cpus: Invalid value: "${text}": the expression's value has the wrong type: a number is required
spec.disk: Invalid value: "string": the expression's value must be a list of objects
spec.keys.secretKeyRef: Forbidden: the text under key "k" of Secret "s" must be JSON of type map of string
spec.name: Invalid value: "${gone}": there is no such reference
spec.password.secretKeyRef: Forbidden: there is no key "k" in Secret "t"`
	if diff := cmp.Diff(want, inOrder(errs)); diff != "" || v != cty.NilVal {
		t.Errorf("%#v, -want +got %s", v, diff)
	}
}

func TestWarnings(t *testing.T) {
	_, warnings := serverKind().Validate(object(t, `{name: 0644, disk: [], old: true}`), Checks{Partial: true})
	if diff := cmp.Diff([]string{`spec.name is taken as the text "420": if you wrote something else, such as 0644 or on, which YAML converts, put it in quotes`,
		"spec.old is deprecated by the provider; see kubectl explain for its replacement"}, warnings); diff != "" {
		t.Error(diff)
	}
}

func TestMetaArguments(t *testing.T) {
	own, errs := serverKind().MetaArguments(object(t, `
depends_on: ['demo_network["main"]']
lifecycle: {prevent_destroy: true, create_before_destroy: true, ignore_changes: ['tags["a.b"]', 'disk[1].gigabytes'], replace_triggered_by: ['x["y"]']}
connection: {secret: s}`))
	want := MetaArguments{
		Provider: "demo", DependsOn: []string{`demo_network["main"]`}, Connection: Connection{Secret: "s"},
		Lifecycle: Lifecycle{PreventDestroy: true, CreateBeforeDestroy: true, ReplaceTriggeredBy: []string{`x["y"]`}, IgnoreChanges: []cty.Path{
			cty.GetAttrPath("tags").IndexString("a.b"), cty.GetAttrPath("disk").IndexInt(1).GetAttr("gigabytes")}},
	}
	paths := cmp.Comparer(func(a, b cty.Path) bool { return a.Equals(b) })
	if diff := cmp.Diff(want, own, paths); diff != "" || len(errs) > 0 {
		t.Errorf("%v %s", errs, diff)
	}
	for _, all := range []string{"all", "[all]"} {
		if own, errs = serverKind().MetaArguments(object(t, `lifecycle: {ignore_changes: `+all+`}`)); !own.Lifecycle.IgnoreAll || len(errs) > 0 {
			t.Errorf("%s: %v %v", all, own, errs)
		}
	}
}

func TestDataSourceHasNoLifecycle(t *testing.T) {
	k := serverKind()
	k.Data = true
	if errs, _ := k.Validate(object(t, `{name: web, network: {}, lifecycle: {prevent_destroy: true}}`), Checks{}); inOrder(errs) !=
		"spec.lifecycle: Forbidden: a data source has no lifecycle; remove it" {
		t.Error(errs)
	}
}

func TestNearestName(t *testing.T) {
	for name, want := range map[string]string{"vCpu": "v_cpu", "v_cpus": "v_cpu", "bus": "", "nam": "name", "": ""} {
		if got := nearestName(name, []string{"name", "v_cpu"}); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestHasExpression(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "$": false, "${": true, "$${": false, "$$${x}": false, "a${b}": true, "$${a}${b}": true, "$$": false, "{$}": false, "$a${": true,
	} {
		if got := HasExpression(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
		if escaped := escape(text); HasExpression(escaped) || unescape(escaped) != text {
			t.Errorf("%q is escaped as %q, which says %q", text, escaped, unescape(escaped))
		}
	}
}

// FuzzConfig: for any schema and spec, decoding returns errors or a value of the right type, and
// Validate reports all errors that Config reports.
func FuzzConfig(f *testing.F) {
	for seed := range uint64(500) {
		f.Add(seed)
	}
	resolver := tableResolver{
		expressions: map[string]cty.Value{"${x}": cty.DynamicVal, "a${x}b": cty.StringVal("ab").Mark(providerapi.Sensitive)},
		secrets:     map[SecretKeyRef]string{{"s", "k"}: `{"x": [1]}`},
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		m := newMaker(seed)
		k := Kind{Schema: m.schema()}
		switch m.IntN(4) {
		case 0:
			resolver.expressions["${x}"] = cty.DynamicVal
		case 1:
			resolver.expressions["${x}"] = m.of(m.valueType(2, true))
		case 2:
			other := m.schema()
			resolver.expressions["${x}"] = m.value(&other.Block)
		case 3:
			if len(k.Schema.Block.Blocks) > 0 {
				resolver.expressions["${x}"] = m.blocks(&k.Schema.Block.Blocks[0])
			}
		}
		spec := map[string]any{}
		chance := 1
		if m.IntN(2) == 0 {
			spec, _ = k.Spec(m.value(&k.Schema.Block), SpecOptions{Secret: "s", Computed: true})
			chance = 4
		}
		for _, name := range argumentNames(&k.Schema.Block) {
			if m.IntN(3*chance) < 2 {
				spec[name] = m.json(3)
			}
		}
		v, errs := k.Config(spec, resolver)
		judged, _ := k.Validate(spec, Checks{})
		if len(errs) > 0 {
			return
		}
		conforms(t, &k.Schema.Block, v)
		if len(judged) == 0 && v == cty.NilVal {
			t.Error("there is neither a value nor a complaint")
		}
		if left, _ := Unmark(v); left.ContainsMarked() {
			t.Error("marks are left")
		}
	})
}
