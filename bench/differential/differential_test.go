package differential

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// stepsOf returns the steps of a seed, if each step succeeds.
func stepsOf(t *testing.T, seed uint64) []*Step {
	t.Helper()
	g := NewGenerator(seed)
	steps := []*Step{g.First()}
	for range 6 {
		last := StepResult{InState: map[Address]bool{}}
		for _, r := range steps[len(steps)-1].Configuration.Resources {
			last.InState[r.Address] = !r.Data
		}
		steps = append(steps, g.Next(last))
	}
	return append(steps, g.Last())
}

// The steps of a seed are reproducible, refer only to existing resources, and can be written for OpenTofu and Atoll.
func TestGeneratedSteps(t *testing.T) {
	none := func(string) string { return "" }
	kinds := map[string]int{}
	for seed := range uint64(300) {
		steps, again := stepsOf(t, seed), stepsOf(t, seed)
		for n, s := range steps {
			if err := s.Configuration.validate(); err != nil {
				t.Fatalf("seed %d, step %d (%s): %v", seed, n, s.Description, err)
			}
			if !reflect.DeepEqual(s, again[n]) {
				t.Fatalf("seed %d, step %d differs the second time: %s, %s", seed, n, s.Description, again[n].Description)
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
					if strings.Contains(jsonLine(object), secret) {
						t.Errorf("seed %d: a secret appears in %s", seed, jsonLine(object))
					}
				}
			}
			for key := range secrets {
				if !strings.Contains(jsonLine(objects), key) {
					t.Errorf("seed %d: no object refers to the secret %s", seed, key)
				}
			}
		}
	}
	for _, k := range apiKinds() {
		if kinds[k] == 0 {
			t.Errorf("no %s was generated", k)
		}
	}
}

func apiKinds() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, provider(k.typ)+".providers.atoll.dev/v1/"+k.apiKind)
	}
	return out
}

// A configuration is written in HCL's JSON for OpenTofu and as API objects for Atoll.
func TestConfigurationsAreWrittenForBothSides(t *testing.T) {
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
	object := jsonLine(objects[Address{Type: "demo_secret", Name: "b"}])
	for text, parts := range map[string][]string{
		string(doc): {`"name": "$${x} %%{y} ${demo_network.a.id}."`, `"tell-nobody"`, `"demo_network.a.cidr"`, `"create_before_destroy": true`,
			`"id": "id of demo_network.old"`, `"from": "demo_network.old"`},
		object: {`"name":"$${x} %{y} ${demo_network[\"a\"].id}."`, `"secretKeyRef":{"key":"b.0","name":"values"}`, `"replace_triggered_by":["demo_network[\"a\"]","demo_network[\"a\"].cidr"]`,
			`"depends_on":["demo_network[\"a\"]"]`, `"ignore_changes":["name"]`},
		jsonLine(objects[network]): {`"infra.atoll.dev/import-id":"id of demo_network.old"`, `"kind":"Network"`, `"apiVersion":"demo.providers.atoll.dev/v1"`},
	} {
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s is missing in %s", part, text)
			}
		}
	}
	if secrets["b.0"] != "tell-nobody" {
		t.Errorf("the secrets are %v", secrets)
	}
}

// Random values of two worlds with the same history get the same placeholders; an unknown ID stays visible.
func TestPlaceholders(t *testing.T) {
	in := func(dir, id, other string) *placeholders {
		n := newPlaceholders(dir)
		n.assign(id, "demo_network.a")
		n.assign(other, "demo_network.a")
		n.assignDigest(strings.Repeat("ab", 32), "of "+id)
		return n
	}
	one := in("/one", "demo_network-0123456789abcdef", "demo_network-00000000000000ff")
	other := in("/other", "demo_network-fedcba9876543210", "demo_network-00000000000000aa")
	text := func(n *placeholders, dir, id, second string) string {
		v, err := decode([]byte(`{"peers":["` + second + `","` + id + `"],"path":"` + dir + `/x","n":1e2,"gone":null,"s":"` + strings.Repeat("ab", 32) + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		return jsonLine(n.attributes("demo_server", v))
	}
	a := text(one, "/one", "demo_network-0123456789abcdef", "demo_network-00000000000000ff")
	b := text(other, "/other", "demo_network-fedcba9876543210", "demo_network-00000000000000aa")
	if a != b || strings.Contains(a, "gone") || !strings.Contains(a, `"n":100`) {
		t.Errorf("%s\n%s", a, b)
	}
	if c := text(one, "/one", "demo_network-0123456789abcdef", "demo_network-0000000000000bad"); !strings.Contains(c, unknownName) {
		t.Errorf("an unknown ID became %s", c)
	}
}

// Every field of an Outcome is compared.
func TestEveryFieldIsCompared(t *testing.T) {
	outcome := func() *Outcome {
		return &Outcome{
			Planned: Planned{Changes: map[string]Change{"a": {Action: "create", After: map[string]any{"x": "y"}}}},
			State:   map[string]Instance{"a": {Attributes: map[string]any{"x": "y"}}},
			World:   map[string]any{"a": "b"}, Calls: map[string]int{"create a": 1},
		}
	}
	differ := func(a, b *Outcome) bool {
		found, _ := Differences(&Step{}, a, b)
		return len(found) > 0
	}
	if differ(outcome(), outcome()) {
		t.Error("two equal outcomes differ")
	}
	for name, change := range map[string]func(*Outcome){
		"another action":   func(o *Outcome) { o.Planned.Changes["a"] = Change{Action: "update", After: map[string]any{"x": "y"}} },
		"one more action":  func(o *Outcome) { o.Planned.Changes["b"] = Change{Action: "delete"} },
		"another value":    func(o *Outcome) { o.Planned.Changes["a"] = Change{Action: "create", After: map[string]any{"x": "z"}} },
		"refused resource": func(o *Outcome) { o.Planned.Refused = []string{"a"} },
		"drift":            func(o *Outcome) { o.Planned.Drift = []string{"a"} },
		"failed resource":  func(o *Outcome) { o.Failed = []string{"a"} },
		"no state":         func(o *Outcome) { delete(o.State, "a") },
		"tainted":          func(o *Outcome) { o.State["a"] = Instance{Attributes: map[string]any{"x": "y"}, Tainted: true} },
		"another object":   func(o *Outcome) { o.World["a"] = "c" },
		"called twice":     func(o *Outcome) { o.Calls["create a"]++ },
	} {
		changed := outcome()
		change(changed)
		if !differ(outcome(), changed) || !differ(changed, outcome()) {
			t.Errorf("%s is not reported", name)
		}
	}
}

// Markers replace unknown and sensitive values of a plan, in the format of either side.
func TestMarkersReplaceUnknownAndSensitiveValues(t *testing.T) {
	tofu := marked(
		map[string]any{"a": "x", "list": []any{map[string]any{"k": "v", "s": "secret"}}, "none": nil},
		map[string]any{"b": true, "list": []any{map[string]any{"u": true}}},
		map[string]any{"list": []any{map[string]any{"s": true}}, "none": true})
	var atoll any = map[string]any{"a": "x", "list": []any{map[string]any{"k": "v"}}, "none": nil}
	for path, word := range map[string]string{"b": unknownMarker, "list[0].u": unknownMarker, `list[0]["s"]`: sensitiveMarker} {
		atoll = setPath(atoll, splitPath(path), word)
	}
	if jsonLine(tofu) != jsonLine(atoll) {
		t.Errorf("%s\n%s", jsonLine(tofu), jsonLine(atoll))
	}
	if got := splitPath(`a["b.c"][0].d`); !reflect.DeepEqual(got, []string{"a", "b.c", "0", "d"}) {
		t.Errorf("the path is split into %q", got)
	}
}
