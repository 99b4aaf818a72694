package reference

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestReferences: what an expression refers to, seen from an object in the namespace shop.
func TestReferences(t *testing.T) {
	l := language(t)
	golden(t, "testdata/references.txt", func(text string) string {
		parsed, err := l.Text(text, "shop")
		if err != nil {
			return "not read: " + err.Error()
		}
		var out []string
		for _, r := range parsed.References() {
			out = append(out, strings.ReplaceAll(r.String(), `namespace["shop"].`, ""))
		}
		return strings.Join(out, " ")
	})
}

// TestRefsCompare: what means the same object is one key, however it is written.
func TestRefsCompare(t *testing.T) {
	l := language(t)
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
		t.Errorf("one object has the keys %v", keys)
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

// TestReferenceWritten: a reference is written so that it is read as the same again, from any namespace.
func TestReferenceWritten(t *testing.T) {
	l := language(t)
	for _, text := range []string{`net["a"]`, `data.net.a.id`, `k8s.Pod["x"].status["pod/ip"][3].a`, `k8s["apps/v1"].Deployment["web"]`} {
		first, err := l.Reference(text, "shop")
		if err != nil {
			t.Fatal(err)
		}
		again, err := l.Reference(first.String(), "elsewhere")
		if err != nil || first.Ref != again.Ref || !first.Path.Equals(again.Path) {
			t.Errorf("%s is written %s, which is %s (%v)", text, first, again, err)
		}
	}
}

// TestSpec: a whole spec, and what is complained of in one.
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
`, `spec[${x}]: a key is not an expression: write all of the map as one, as in ${{TYPE["name"].id: "value"}}
spec.a[0]: ${net[0]}, at character 4: what is referred to must be known before anything has a value: write the name itself, as in TYPE["name"], and choose between objects with condition ? TYPE["a"].x : TYPE["b"].x
spec.a[2]: the closing } is missing; write $${ if ${ is meant as text
spec[b${x}]: a key is not an expression: write all of the map as one, as in ${{TYPE["name"].id: "value"}}
spec[b${x}][${y}]: a key is not an expression: write all of the map as one, as in ${{TYPE["name"].id: "value"}}
spec.connection.secret: must not be an expression: it is needed before anything has a value
spec.depends_on[0]: "${net.a}" is not a reference: write TYPE["name"], without ${ and }
spec.depends_on[1]: "net[\"a\"] + 1" is not a reference: write TYPE["name"], without ${ and }
spec.depends_on[2]: "net[\"a\"]}" is not a reference: } closes what was not opened
spec.depends_on[3]: "net" is not a reference: write TYPE["name"], without ${ and }
spec.depends_on[5]: "" is not a reference: write TYPE["name"], without ${ and }
spec.lifecycle.ignore_changes[0]: must not be an expression: it is needed before anything has a value
spec.lifecycle.prevent_destroy: must not be an expression: it is needed before anything has a value
spec.provider: must not be an expression: it is needed before anything has a value`},
		{"nothing", `{}`, ``},
	}
	l := language(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var spec map[string]any
			if err := yaml.Unmarshal([]byte(tt.spec), &spec); err != nil {
				t.Fatal(err)
			}
			if got := shownSpec(l.Spec(spec, "shop")); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func shownSpec(s *Spec, err error) string {
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
		line(f.Path, f.Text.References())
	}
	if s.DependsOn != nil {
		line("depends_on", s.DependsOn)
	}
	if s.ReplaceTriggeredBy != nil {
		line("replace_triggered_by", s.ReplaceTriggeredBy)
	}
	return strings.TrimSpace(out.String())
}

// TestFieldNamesItself: an error at evaluation says in which field.
func TestFieldNamesItself(t *testing.T) {
	s, err := language(t).Spec(map[string]any{"a": []any{`${net["a"].idd}`}}, "shop")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Fields[0].Value(Values{Lookup: lookup(world())})
	if err == nil || !strings.HasPrefix(err.Error(), `spec.a[0]: ${net["a"].idd}: net["a"] has no "idd": it has cidr, `) {
		t.Errorf("the error is: %v", err)
	}
}

// TestBounds: what is too long, too deep or too much is refused, with what there is too much of.
func TestBounds(t *testing.T) {
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
		{"length without an end", "${" + strings.Repeat("x + ", maxExpression), "is longer than 4096 bytes"},
		{"one long string", "${'" + strings.Repeat("x", maxExpression) + "'}", "is longer than 4096 bytes"},
		{"brackets", "${" + strings.Repeat("(", maxNesting+1) + strings.Repeat(")", maxNesting+1) + "}", "nested more than 40 deep"},
		{"operators", "${" + strings.Repeat("true?1:", 300) + "1}", "recursion"},
		{"objects", "${" + strings.Join(objects, "+") + "}", "more than 64 objects"},
		{"expressions", many, "more than 1000 expressions"},
		{"expressions in one string", strings.Repeat("${net.a.id}", maxExpressions+1), "more than 1000 parts"},
		{"lists", deep, "nested more than 64 deep"},
	}
	l := language(t)
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
