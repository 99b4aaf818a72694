package alike

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// life is what a seed makes, if each step succeeds.
func life(t *testing.T, seed uint64) []*Step {
	t.Helper()
	g := NewGenerator(seed)
	steps := []*Step{g.First()}
	for range 6 {
		left := Left{There: map[Address]bool{}}
		for _, r := range steps[len(steps)-1].Configuration.Resources {
			left.There[r.Address] = !r.Data
		}
		steps = append(steps, g.Next(left))
	}
	return append(steps, g.Last())
}

// What a seed makes is the same each time, refers to nothing that is not there, and can be written for both.
func TestGenerated(t *testing.T) {
	none := func(string) string { return "" }
	kinds := map[string]int{}
	for seed := range uint64(300) {
		steps, again := life(t, seed), life(t, seed)
		for n, s := range steps {
			if err := s.Configuration.check(); err != nil {
				t.Fatalf("seed %d, step %d (%s): %v", seed, n, s.What, err)
			}
			if !reflect.DeepEqual(s, again[n]) {
				t.Fatalf("seed %d, step %d is another one the second time: %s, %s", seed, n, s.What, again[n].What)
			}
			doc, err := TofuJSON(s, "/world", true, none)
			if err != nil || !json.Valid(doc) {
				t.Fatalf("seed %d, step %d: %v: %s", seed, n, err, doc)
			}
			objects, secrets := Objects(s, none)
			if len(objects) != len(s.Configuration.Resources) {
				t.Errorf("seed %d, step %d: %d objects of %d resources", seed, n, len(objects), len(s.Configuration.Resources))
			}
			for _, object := range objects {
				kinds[object["apiVersion"].(string)+"/"+object["kind"].(string)]++
				for _, secret := range []string{"hunter2", "correct horse", "s3cret"} {
					if strings.Contains(line(object), secret) {
						t.Errorf("seed %d: a secret stands in %s", seed, line(object))
					}
				}
			}
			for key := range secrets {
				if !strings.Contains(line(objects), key) {
					t.Errorf("seed %d: nobody asks for the secret %s", seed, key)
				}
			}
		}
	}
	for _, k := range apiKinds() {
		if kinds[k] == 0 {
			t.Errorf("no %s was made", k)
		}
	}
}

func apiKinds() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, provider(k.typ)+".providers.atoll.dev/v1/"+k.as)
	}
	return out
}

// A value is written in the language of each.
func TestWritten(t *testing.T) {
	network := Address{Type: "demo_network", Name: "a"}
	s := &Step{Configuration: &Configuration{Resources: []*Resource{
		{Address: network, Arguments: map[string]any{"name": "n", "cidr": "10.0.0.0/8"}, ImportID: "demo_network.old"},
		{Address: Address{Type: "demo_secret", Name: "b"}, Arguments: map[string]any{"secret": Secret{"tell-nobody"},
			"name": Text{"${x} %{y} ", Ref{network, "id"}, "."}}, DependsOn: []Address{network},
			Lifecycle: Lifecycle{CreateBeforeDestroy: true, IgnoreChanges: []string{"name"}, ReplaceTriggeredBy: []Ref{{network, ""}, {network, "cidr"}}}},
	}}, Forget: []Address{{Type: "demo_network", Name: "old"}}}
	ids := func(address string) string { return "id of " + address }
	doc, err := TofuJSON(s, "/world", false, ids)
	if err != nil {
		t.Fatal(err)
	}
	objects, secrets := Objects(s, ids)
	object := line(objects[Address{Type: "demo_secret", Name: "b"}])
	for text, parts := range map[string][]string{
		string(doc): {`"name": "$${x} %%{y} ${demo_network.a.id}."`, `"tell-nobody"`, `"demo_network.a.cidr"`, `"create_before_destroy": true`,
			`"id": "id of demo_network.old"`, `"from": "demo_network.old"`},
		object: {`"name":"$${x} %{y} ${demo_network[\"a\"].id}."`, `"secretKeyRef":{"key":"b.0","name":"values"}`, `"replace_triggered_by":["demo_network[\"a\"]","demo_network[\"a\"].cidr"]`,
			`"depends_on":["demo_network[\"a\"]"]`, `"ignore_changes":["name"]`},
		line(objects[network]): {`"infra.atoll.dev/import-id":"id of demo_network.old"`, `"kind":"Network"`, `"apiVersion":"demo.providers.atoll.dev/v1"`},
	} {
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("there is no %s in %s", part, text)
			}
		}
	}
	if secrets["b.0"] != "tell-nobody" {
		t.Errorf("the secrets are %v", secrets)
	}
}

// What is random has the same name in two worlds to which the same was done; what was not done is seen.
func TestNames(t *testing.T) {
	in := func(dir, id, other string) *names {
		n := newNames(dir)
		n.learn(id, "demo_network.a")
		n.learn(other, "demo_network.a")
		n.learnDigest(strings.Repeat("ab", 32), "of "+id)
		return n
	}
	one := in("/one", "demo_network-0123456789abcdef", "demo_network-00000000000000ff")
	other := in("/other", "demo_network-fedcba9876543210", "demo_network-00000000000000aa")
	text := func(n *names, dir, id, second string) string {
		v, err := decode([]byte(`{"peers":["` + second + `","` + id + `"],"path":"` + dir + `/x","n":1e2,"gone":null,"s":"` + strings.Repeat("ab", 32) + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		return line(n.attributes("demo_server", v))
	}
	a := text(one, "/one", "demo_network-0123456789abcdef", "demo_network-00000000000000ff")
	b := text(other, "/other", "demo_network-fedcba9876543210", "demo_network-00000000000000aa")
	if a != b || strings.Contains(a, "gone") || !strings.Contains(a, `"n":100`) {
		t.Errorf("%s\n%s", a, b)
	}
	if c := text(one, "/one", "demo_network-0123456789abcdef", "demo_network-0000000000000bad"); !strings.Contains(c, unknownName) {
		t.Errorf("an ID that nobody knows is %s", c)
	}
}

// Whatever differs is told.
func TestDifferences(t *testing.T) {
	outcome := func() *Outcome {
		return &Outcome{
			Planned: Planned{Changes: map[string]Change{"a": {Action: "create", After: map[string]any{"x": "y"}}}},
			State:   map[string]Instance{"a": {Attributes: map[string]any{"x": "y"}}},
			World:   map[string]any{"a": "b"}, Done: map[string]int{"create a": 1},
		}
	}
	differ := func(a, b *Outcome) bool {
		found, _ := Differences(&Step{}, a, b)
		return len(found) > 0
	}
	if differ(outcome(), outcome()) {
		t.Error("two alike differ")
	}
	for name, change := range map[string]func(*Outcome){
		"another action":    func(o *Outcome) { o.Planned.Changes["a"] = Change{Action: "update", After: map[string]any{"x": "y"}} },
		"one action more":   func(o *Outcome) { o.Planned.Changes["b"] = Change{Action: "delete"} },
		"another value":     func(o *Outcome) { o.Planned.Changes["a"] = Change{Action: "create", After: map[string]any{"x": "z"}} },
		"something refused": func(o *Outcome) { o.Planned.Refused = []string{"a"} },
		"drift":             func(o *Outcome) { o.Planned.Drift = []string{"a"} },
		"something failed":  func(o *Outcome) { o.Failed = []string{"a"} },
		"no state":          func(o *Outcome) { delete(o.State, "a") },
		"tainted":           func(o *Outcome) { o.State["a"] = Instance{Attributes: map[string]any{"x": "y"}, Tainted: true} },
		"another object":    func(o *Outcome) { o.World["a"] = "c" },
		"done twice":        func(o *Outcome) { o.Done["create a"]++ },
	} {
		changed := outcome()
		change(changed)
		if !differ(outcome(), changed) || !differ(changed, outcome()) {
			t.Errorf("%s is not seen", name)
		}
	}
}

// What a plan says is not known or is secret stands in its place, in the form of either side.
func TestMarked(t *testing.T) {
	tofu := marked(
		map[string]any{"a": "x", "list": []any{map[string]any{"k": "v", "s": "secret"}}, "none": nil},
		map[string]any{"b": true, "list": []any{map[string]any{"u": true}}},
		map[string]any{"list": []any{map[string]any{"s": true}}, "none": true})
	var atoll any = map[string]any{"a": "x", "list": []any{map[string]any{"k": "v"}}, "none": nil}
	for path, word := range map[string]string{"b": unknownWord, "list[0].u": unknownWord, `list[0]["s"]`: sensitiveWord} {
		atoll = put(atoll, steps(path), word)
	}
	if line(tofu) != line(atoll) {
		t.Errorf("%s\n%s", line(tofu), line(atoll))
	}
	if got := steps(`a["b.c"][0].d`); !reflect.DeepEqual(got, []string{"a", "b.c", "0", "d"}) {
		t.Errorf("the steps are %q", got)
	}
}
