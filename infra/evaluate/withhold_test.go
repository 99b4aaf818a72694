package evaluate

import (
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/grants"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// TestSensitiveValuesOfOtherNamespaces checks that a grant for a kind gives no sensitive value, nor anything
// that is calculated from one. A grant that names the object does.
func TestSensitiveValuesOfOtherNamespaces(t *testing.T) {
	env := enginetest.NewEnv()
	language, err := expr.New()
	if err != nil {
		t.Fatal(err)
	}
	evaluator := Evaluator{Language: language, Values: env, Functions: env}
	value := cty.ObjectVal(map[string]cty.Value{
		"id": cty.StringVal("1"), "password": cty.StringVal("hush").Mark(providerapi.Sensitive), "none": cty.NullVal(cty.String).Mark(providerapi.Sensitive),
		"list": cty.ListVal([]cty.Value{cty.StringVal("open"), cty.StringVal("hush").Mark(providerapi.Sensitive)}),
		"set":  cty.SetVal([]cty.Value{cty.StringVal("hush")}).Mark(providerapi.Sensitive),
	})
	asked := 0
	scope := expr.Scope{
		Lookup: func(expr.Ref) (cty.Value, error) { asked++; return value, nil },
		Attribute: func(_ expr.Ref, name string) (cty.Value, bool) {
			asked++
			if name == "list" || !value.Type().HasAttribute(name) {
				return cty.NilVal, false
			}
			return value.GetAttr(name), true
		},
	}
	evaluate := func(text string) (*Spec, string) {
		o := enginetest.NewObject(enginetest.ThingRef("b"), 1, `{"password": "${`+strings.ReplaceAll(text, `"`, `\"`)+`}"}`)
		kind, err := env.Kind(o.Ref)
		if err != nil {
			t.Fatal(err)
		}
		spec, errs := evaluator.Evaluate(t.Context(), o, &kind.Kind, scope)
		if err := errs.ToAggregate(); err != nil {
			return nil, err.Error()
		}
		return spec, ""
	}
	const other = `namespace["net"].demo_thing["x"]`
	grant := func(name string) {
		env.Grants["net"] = []grants.Spec{{
			From: []grants.From{{Group: "demo.providers.atoll.dev", Kind: "Thing", Namespace: "shop"}},
			To:   []grants.To{{Group: "demo.providers.atoll.dev", Kind: "Thing", Name: name}}}}
	}
	open := []string{other + ".id", `"a" + ` + other + ".id", other + ".list[0]", `try(` + other + `.id, "b")`}
	secret := []string{
		other + ".password", `"a" + ` + other + ".password", other + ".list[1]", `jsonencode(` + other + `)`, `jsonencode(` + other + `.list)`,
		`try(` + other + `.password, "b")`, `can(` + other + `.password) ? "a" : "b"`, other + `.password == "guess" ? "a" : "b"`, `coalesce(` + other + `.none, "b")`,
		`length(` + other + `.password) > 3 ? "a" : "b"`, other + `.none == null ? "a" : "b"`, `jsonencode(` + other + `.set)`, `[` + other + `.password].map(x, x)[0]`,
		`substr(` + other + `.password, 0, 1)`, `"guess" in ` + other + `.set ? "a" : "b"`, `[1].map(i, ` + other + `.password)[0]`,
	}
	for _, text := range append(open, secret...) {
		if _, got := evaluate(text); !strings.Contains(got, "namespace net does not grant") || asked > 0 {
			t.Errorf("%s without a grant: %q, and %d lookups", text, got, asked)
		}
	}
	grant("")
	for _, text := range open {
		if spec, got := evaluate(text); got != "" || !spec.Config.IsWhollyKnown() {
			t.Errorf("%s is refused: %s", text, got)
		}
	}
	for _, text := range secret {
		spec, got := evaluate(text)
		switch {
		case strings.HasPrefix(text, "can(") && got == "":
			// The attribute exists by its type, whatever its value is.
		case strings.Contains(got, "hush") || !strings.Contains(got, "the value is sensitive, and no grant of namespace net names"):
			t.Errorf("%s: %+v %s", text, spec, got)
		}
	}
	grant("x")
	for _, text := range append(open, secret...) {
		if strings.HasPrefix(text, "coalesce") {
			continue
		}
		if _, got := evaluate(text); got != "" {
			t.Errorf("%s is refused with a grant that names the object: %s", text, got)
		}
	}
}
