package expr

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestReferences checks the references of expressions in an object of namespace shop.
func TestReferences(t *testing.T) {
	l := newLanguage(t)
	golden(t, "testdata/references.txt", func(text string) string {
		parsed, err := l.Template(text, "shop")
		if err != nil {
			return "parse error: " + err.Error()
		}
		var out []string
		for _, r := range parsed.References() {
			out = append(out, strings.ReplaceAll(r.String(), `namespace["shop"].`, ""))
		}
		return strings.Join(out, " ")
	})
}

// TestRefsCompare checks that every way to write an object gives the same key.
func TestRefsCompare(t *testing.T) {
	l := newLanguage(t)
	same := []string{`net["a"]`, `net.a`, `net['a']`, `net[ r"a" ]`, `namespace["shop"].net["a"]`, `namespace.shop.net.a`}
	keys := map[Ref]bool{}
	for _, text := range same {
		r, err := l.Reference(text, "shop")
		if err != nil {
			t.Fatal(err)
		}
		keys[r.Ref] = true
	}
	if len(keys) != 1 {
		t.Errorf("one object has several keys: %v", keys)
	}
	for _, text := range []string{`net["b"]`, `data.net["a"]`, `k8s.net["a"]`, `k8s["v1"].net["a"]`, `namespace["x"].net["a"]`} {
		r, err := l.Reference(text, "shop")
		if err != nil {
			t.Fatal(err)
		}
		if keys[r.Ref] {
			t.Errorf("%s has the key of another object", text)
		}
		keys[r.Ref] = true
	}
}

// TestReferenceRoundTrip checks that a formatted reference is parsed as the same one, from any
// namespace.
func TestReferenceRoundTrip(t *testing.T) {
	l := newLanguage(t)
	for _, text := range []string{`net["a"]`, `data.net.a.id`, `k8s.Pod["x"].status["pod/ip"][3].a`, `k8s["apps/v1"].Deployment["web"]`} {
		first, err := l.Reference(text, "shop")
		if err != nil {
			t.Fatal(err)
		}
		again, err := l.Reference(first.String(), "elsewhere")
		if err != nil || first.Ref != again.Ref || !first.Path.Equals(again.Path) {
			t.Errorf("%s is formatted as %s, which is parsed as %s (%v)", text, first, again, err)
		}
	}
}

// TestSpec checks the references and the errors of whole specs.
func TestSpec(t *testing.T) {
	tests := []struct{ name, spec, want string }{
		{"fields, in order", `
rules: [{port: 80}, {port: '${net["a"].port}', to: 'x-${net.b.id}-${net["a"].port}'}]
labels: {app.kubernetes.io/name: '${data.image["base"].id}', plain: text}
escaped: $${x}
depends_on: ['net["c"]', 'namespace["infra"].net["core"]']
lifecycle: {replace_triggered_by: ['net["a"].id'], ignore_changes: [tags]}
count: 3
`, `spec.escaped:
spec.labels[app.kubernetes.io/name]: data.image["base"].id
spec.rules[1].port: net["a"].port
spec.rules[1].to: net["b"].id net["a"].port
depends_on: net["c"] namespace["infra"].net["core"]
replace_triggered_by: net["a"].id`},
		{"all mistakes at once", `
a: ['${net[0]}', fine, '${']
'${x}': 1
'b${x}': {'${y}': 1}
depends_on: ['${net.a}', 'net["a"] + 1', 'net["a"]}', 'net', 'net["a"]', '']
lifecycle: {ignore_changes: ['${net.a.id}'], prevent_destroy: '${net.a.id}'}
provider: '${net.a.id}'
connection: {secret: '${net.a.id}'}
`, `spec[${x}]: a map key must not be an expression: write the whole map as one, as in ${{TYPE["name"].id: "value"}}
spec.a[0]: ${net[0]}, at character 4: the name of the object must be constant, because references are resolved before any value is known: write the name itself, as in TYPE["name"], and choose between objects with condition ? TYPE["a"].x : TYPE["b"].x
spec.a[2]: the closing } is missing: add it, or write $${ for a literal ${
spec[b${x}]: a map key must not be an expression: write the whole map as one, as in ${{TYPE["name"].id: "value"}}
spec[b${x}][${y}]: a map key must not be an expression: write the whole map as one, as in ${{TYPE["name"].id: "value"}}
spec.connection.secret: must not be an expression: its value is needed before references are resolved
spec.depends_on[0]: "${net.a}" is not a reference: write TYPE["name"], without ${ and }
spec.depends_on[1]: "net[\"a\"] + 1" is not a reference: write TYPE["name"], without ${ and }
spec.depends_on[2]: "net[\"a\"]}" is not a reference: unmatched }
spec.depends_on[3]: "net" is not a reference: write TYPE["name"], without ${ and }
spec.depends_on[5]: "" is not a reference: write TYPE["name"], without ${ and }
spec.lifecycle.ignore_changes[0]: must not be an expression: its value is needed before references are resolved
spec.lifecycle.prevent_destroy: must not be an expression: its value is needed before references are resolved
spec.provider: must not be an expression: its value is needed before references are resolved`},
		{"nothing", `{}`, ``},
	}
	l := newLanguage(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var spec map[string]any
			if err := yaml.Unmarshal([]byte(tt.spec), &spec); err != nil {
				t.Fatal(err)
			}
			if got := formatSpec(l.Spec(spec, "shop")); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func formatSpec(s *Spec, err error) string {
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	line := func(name string, refs []Reference) {
		out.WriteString(name + ":")
		for _, r := range refs {
			out.WriteString(" " + strings.ReplaceAll(r.String(), `namespace["shop"].`, ""))
		}
		out.WriteString("\n")
	}
	for _, f := range s.Fields {
		line(f.Path, f.Template.References())
	}
	if s.DependsOn != nil {
		line("depends_on", s.DependsOn)
	}
	if s.ReplaceTriggeredBy != nil {
		line("replace_triggered_by", s.ReplaceTriggeredBy)
	}
	return strings.TrimSpace(out.String())
}

// TestFieldErrorNamesField checks that an evaluation error names the field.
func TestFieldErrorNamesField(t *testing.T) {
	s, err := newLanguage(t).Spec(map[string]any{"a": []any{`${net["a"].idd}`}}, "shop")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Fields[0].Value(Scope{Lookup: lookup(testObjects())})
	if err == nil || !strings.HasPrefix(err.Error(), `spec.a[0]: ${net["a"].idd}: net["a"] has no "idd": it has cidr, `) {
		t.Errorf("the error is: %v", err)
	}
}

// TestLimits checks that each limit is enforced and named in the error.
func TestLimits(t *testing.T) {
	deep := any("x")
	for range maxDepth + 1 {
		deep = []any{deep}
	}
	many := make([]any, maxExpressions+1)
	refs := make([]any, maxExpressions+1)
	for i := range many {
		many[i], refs[i] = `${net["a"].id}`, `net["a"]`
	}
	objects := make([]string, maxReferences+1)
	for i := range objects {
		objects[i] = `net["` + strings.Repeat("x", i+1) + `"].id`
	}
	tests := []struct {
		name string
		spec any
		want string
	}{
		{"length", "${" + strings.Repeat(" ", maxExpression+2) + "}", "is longer than 4096 bytes"},
		{"length without a closing brace", "${" + strings.Repeat("x + ", maxExpression), "is longer than 4096 bytes"},
		{"one long string", "${'" + strings.Repeat("x", maxExpression) + "'}", "is longer than 4096 bytes"},
		{"brackets", "${" + strings.Repeat("(", maxNesting+1) + strings.Repeat(")", maxNesting+1) + "}", "nested more than 40 deep"},
		{"operators", "${" + strings.Repeat("true?1:", 300) + "1}", "recursion"},
		{"objects", "${" + strings.Join(objects, "+") + "}", "more than 64 objects"},
		{"expressions", many, "more than 1000 expressions"},
		{"expressions in one string", strings.Repeat("${net.a.id}", maxExpressions+1), "more than 1000 parts"},
		{"lists", deep, "nested more than 64 deep"},
	}
	l := newLanguage(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := l.Spec(map[string]any{"a": tt.spec}, "shop")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %.300v, want %s", err, tt.want)
			} else if len(err.Error()) > 1000 {
				t.Errorf("the error is %d bytes long", len(err.Error()))
			}
		})
	}
	if _, err := l.Spec(map[string]any{"depends_on": refs}, "shop"); err == nil || !strings.Contains(err.Error(), "more than 1000 expressions") {
		t.Errorf("the error of depends_on is %.300v", err)
	}
}
