package expr

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// secret is the mark of sensitive values in these tests.
type secret struct{}

// testObjects returns the objects that the test expressions refer to.
func testObjects() map[string]cty.Value {
	text, number := cty.StringVal, cty.MustParseNumberVal
	return map[string]cty.Value{
		`net["a"]`: cty.ObjectVal(map[string]cty.Value{
			"id":    text("n-1"),
			"cidr":  text("10.1.0.0/16"),
			"mtu":   cty.NumberIntVal(1500),
			"ratio": number("0.1"),
			"huge":  number("1180591620717411303425"),
			"large": number("1e300"),
			"on":    cty.True,
			"none":  cty.NullVal(cty.String),
			"zones": cty.ListVal([]cty.Value{text("x"), text("y"), text("z")}),
			"ports": cty.SetVal([]cty.Value{number("443"), number("80"), number("22")}),
			"tags":  cty.MapVal(map[string]cty.Value{"team": text("core"), "a/b": text("slash")}),
			"pair":  cty.TupleVal([]cty.Value{text("p"), number("7")}),
			"rules": cty.ListVal([]cty.Value{rule("in", 80), rule("out", 443)}),
			"empty": cty.ListValEmpty(cty.String),
		}),
		`net["new"]`: cty.ObjectVal(map[string]cty.Value{
			"id":    cty.UnknownVal(cty.String).RefineNotNull(),
			"note":  cty.UnknownVal(cty.String),
			"cidr":  text("10.2.0.0/16"),
			"zones": cty.UnknownVal(cty.List(cty.String)),
			"some":  cty.ListVal([]cty.Value{text("x"), cty.UnknownVal(cty.String)}),
			"ports": cty.SetVal([]cty.Value{number("443"), cty.UnknownVal(cty.Number)}),
			"known": cty.SetVal([]cty.Value{text("b"), text("a")}),
			"meta":  cty.ObjectVal(map[string]cty.Value{"name": text("new"), "uid": cty.UnknownVal(cty.String)}),
		}),
		`net["later"]`: cty.DynamicVal,
		`db["main"]`: cty.ObjectVal(map[string]cty.Value{
			"id":       text("d-1"),
			"password": text("hunter2").Mark(secret{}),
			"pin":      number("4711").Mark(secret{}),
			"token":    cty.UnknownVal(cty.String).Mark(secret{}),
			"users":    cty.ListVal([]cty.Value{text("root").Mark(secret{}), text("guest")}),
			"hidden":   cty.ObjectVal(map[string]cty.Value{"x": text("y")}).Mark(secret{}),
		}),
		`data.image["base"]`:             cty.ObjectVal(map[string]cty.Value{"id": text("ami-1")}),
		`namespace["infra"].net["core"]`: cty.ObjectVal(map[string]cty.Value{"id": text("n-core")}),
		`k8s.Deployment["web"]`: cty.ObjectVal(map[string]cty.Value{
			"metadata": cty.ObjectVal(map[string]cty.Value{"namespace": text("shop"), "labels": cty.ObjectVal(map[string]cty.Value{"app.kubernetes.io/name": text("web")})}),
			"status":   cty.ObjectVal(map[string]cty.Value{"readyReplicas": number("3")}),
		}),
		`k8s["apps/v1"].Deployment["web"]`: cty.ObjectVal(map[string]cty.Value{"kind": text("Deployment")}),
	}
}

func rule(name string, port int64) cty.Value {
	return cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal(name), "port": cty.NumberIntVal(port)})
}

// lookup returns a Lookup function for an object in namespace shop.
func lookup(world map[string]cty.Value) func(Ref) (cty.Value, error) {
	return func(ref Ref) (cty.Value, error) {
		key := ref.String()
		if ref.Namespace == "shop" {
			key = ref.local()
		}
		if v, ok := world[key]; ok {
			return v, nil
		}
		return cty.NilVal, fmt.Errorf("%s not found: create it", key)
	}
}

func newLanguage(t testing.TB) *Language {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// golden compares a file of lines `question => answer` with the current answers. With GOLDEN=write
// it rewrites the file, for review in the diff.
func golden(t *testing.T, file string, answer func(question string) string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var now []string
	for _, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		question, want, ok := strings.Cut(line, " => ")
		question = strings.TrimSpace(question)
		if line == "" || strings.HasPrefix(line, "#") {
			now = append(now, line)
			continue
		}
		got := answer(question)
		now = append(now, question+" => "+got)
		if os.Getenv("GOLDEN") != "write" && (!ok || got != want) {
			t.Errorf("%s\n got  %s\n want %s", question, got, want)
		}
	}
	if os.Getenv("GOLDEN") == "write" {
		if err := os.WriteFile(file, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// formatValue formats a value on one line, with its sensitivity and the refinements of unknown
// values.
func formatValue(v cty.Value) string {
	v, marks := v.UnmarkDeep()
	out := strings.ReplaceAll(fmt.Sprintf("%#v", v), "cty.", "")
	if len(marks) > 0 {
		out += " (sensitive)"
	}
	return out
}

// TestValue checks the values of templates, and the errors of those that have none.
func TestValue(t *testing.T) {
	l, from := newLanguage(t), Scope{Lookup: lookup(testObjects()), Call: callTestFunction}
	golden(t, "testdata/values.txt", func(text string) string {
		parsed, err := l.Template(text, "shop")
		if err != nil {
			return "parse error: " + err.Error()
		}
		v, err := parsed.Value(from)
		if err != nil {
			var ours *Error
			if !errors.As(err, &ours) {
				t.Errorf("%s: the error is a %T", text, err)
			}
			return "error: " + err.Error()
		}
		return formatValue(v)
	})
}

// callTestFunction has a function that joins texts, and errors of both kinds.
func callTestFunction(f Function, arguments []cty.Value) (cty.Value, error) {
	if f.Provider != "demo" && f.Provider != "demo-beta" {
		return cty.NilVal, fmt.Errorf("Provider %q not found", f.Provider)
	}
	var parts []string
	for i, v := range arguments {
		if v.Type() != cty.String {
			return cty.NilVal, &providerapi.FunctionError{Text: fmt.Sprintf("%#v is no text", v), Argument: i}
		}
		parts = append(parts, v.AsString())
	}
	return cty.ObjectVal(map[string]cty.Value{"text": cty.StringVal(strings.Join(parts, "-")), "count": cty.NumberIntVal(int64(len(parts)))}), nil
}
