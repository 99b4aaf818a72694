package infra

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// TestRetainedAndEncodedValues checks that dependents see the same value, whether it is kept
// decoded or encoded.
func TestRetainedAndEncodedValues(t *testing.T) {
	s := newFakeEnv()
	block := &s.schema.Block
	r := &planRun{Planner: newPlanner(t, s, nil), slots: make([]slot, maxRetained+2), values: make([]lazyValue, maxRetained+2)}
	value := block.Empty()
	for i := range r.slots {
		one := &r.slots[i]
		one.Resource = &Resource{Ref: thingRef(fmt.Sprintf("n-%06d", i))}
		one.users, one.decision = 1, &decide.Decision{Action: change.Create, After: value}
	}
	expectValue := func(i int) {
		t.Helper()
		if v, err := r.value(t.Context(), int32(i)); err != nil || !v.RawEquals(value) {
			t.Errorf("dependents of %d see %#v, %v", i, v, err)
		}
	}
	for i := range maxRetained + 1 {
		r.end(int32(i))
	}
	if r.retained != maxRetained || r.slots[0].encoded != nil || r.slots[maxRetained].encoded == nil {
		t.Errorf("%d values are retained, want %d", r.retained, maxRetained)
	}
	expectValue(0)
	expectValue(maxRetained)
	r.release(0)
	r.release(maxRetained) // it was not counted
	r.end(maxRetained + 1)
	if r.retained != maxRetained || r.slots[maxRetained+1].encoded != nil {
		t.Errorf("%d values are retained after one was released, want %d", r.retained, maxRetained)
	}
	expectValue(maxRetained + 1)
}

// TestEncodedAttributes checks that a single decoded attribute has the value and marks that it has
// in the whole object.
func TestEncodedAttributes(t *testing.T) {
	disk := providerapi.Block{Attributes: []providerapi.Attribute{attribute("key", cty.String, "optional sensitive"), attribute("size", cty.Number, "optional")}}
	block := &providerapi.Block{
		Attributes: append(thingSchema().Block.Attributes, providerapi.Attribute{Name: "login", Optional: true, Type: cty.Object(map[string]cty.Type{"pin": cty.String, "user": cty.String}),
			Nested: &providerapi.Object{Nesting: providerapi.NestingSingle, Attributes: []providerapi.Attribute{attribute("pin", cty.String, "optional sensitive"), attribute("user", cty.String, "optional")}}}),
		Blocks: []providerapi.NestedBlock{{Name: "disk", Nesting: providerapi.NestingList, Block: disk}, {Name: "main", Nesting: providerapi.NestingSingle, Block: disk}},
	}
	// Attributes are sorted by name.
	a := block.Attributes
	for i := len(a) - 1; i > 0 && a[i].Name < a[i-1].Name; i-- {
		a[i], a[i-1] = a[i-1], a[i]
	}
	one := cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal("k"), "size": cty.UnknownVal(cty.Number)})
	fields := block.Empty().AsValueMap()
	fields["content"] = cty.StringVal("text")
	fields["id"] = cty.UnknownVal(cty.String).RefineNotNull()
	fields["labels"] = cty.MapVal(map[string]cty.Value{"a": cty.StringVal("1"), "b": cty.StringVal("2")})
	fields["password"] = cty.StringVal("secret")
	fields["token"] = cty.UnknownVal(cty.String)
	fields["login"] = cty.ObjectVal(map[string]cty.Value{"pin": cty.StringVal("0000"), "user": cty.StringVal("u")})
	fields["disk"] = cty.ListVal([]cty.Value{one, one})
	whole := cty.ObjectVal(fields)
	encoded, err := msgpack.Marshal(whole, block.ImpliedType())
	if err != nil {
		t.Fatal(err)
	}
	secret := []cty.Path{cty.GetAttrPath("content"), cty.GetAttrPath("labels").IndexString("a"), cty.GetAttrPath("disk").IndexInt(1).GetAttr("size")}
	all := marked(block, whole, secret)
	marks := 0
	for name := range fields {
		v, found := decodeAttribute(block, encoded, secret, name)
		if !found || !v.RawEquals(all.GetAttr(name)) {
			t.Errorf("%s is %#v (%t), want %#v", name, v, found, all.GetAttr(name))
		}
		if v.ContainsMarked() {
			marks++
		}
	}
	if marks != 6 {
		t.Errorf("%d attributes have marks, want 6: content, labels, password, token, login, disk", marks)
	}
	if len(secret) != 3 || !secret[1].Equals(cty.GetAttrPath("labels").IndexString("a")) {
		t.Errorf("the paths were changed to %v", secret)
	}

	// Stored values are known.
	one = cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal("k"), "size": cty.NumberIntVal(5)})
	fields["id"], fields["token"], fields["disk"] = cty.StringVal("i"), cty.StringVal("t"), cty.ListVal([]cty.Value{one, one})
	whole = cty.ObjectVal(fields)
	text, err := ctyjson.Marshal(whole, block.ImpliedType())
	if err != nil {
		t.Fatal(err)
	}
	kind := &ServedKind{Kind: schema.Kind{Schema: &providerapi.Schema{Version: 3, Block: *block}}}
	stored := v1alpha1.ResourceValue{SchemaVersion: 3, Value: text, Sensitive: writePaths(secret)}
	for name, want := range marked(block, whole, secret).AsValueMap() {
		if v, found := storedAttribute(kind, &stored, name); !found || !v.RawEquals(want) {
			t.Errorf("%s is stored as %#v (%t), want %#v", name, v, found, want)
		}
	}
	for what, spoil := range map[string]func(*v1alpha1.ResourceValue){
		"with another version":        func(v *v1alpha1.ResourceValue) { v.SchemaVersion = 2 },
		"truncated":                   func(v *v1alpha1.ResourceValue) { v.Value = text[:len(text)/2] },
		"null":                        func(v *v1alpha1.ResourceValue) { v.Value = []byte("null") },
		"with another type":           func(v *v1alpha1.ResourceValue) { v.Value = []byte(`{"content":{}}`) },
		"with an unknown attribute":   func(v *v1alpha1.ResourceValue) { v.Value = []byte(`{"content":"text","former":1}`) },
		"without the attribute":       func(v *v1alpha1.ResourceValue) { v.Value = []byte(`{"id":"i"}`) },
		"with an invalid secret path": func(v *v1alpha1.ResourceValue) { v.Sensitive = []string{"["} },
	} {
		spoilt := stored
		spoil(&spoilt)
		if v, found := storedAttribute(kind, &spoilt, "content"); found {
			t.Errorf("stored %s: got %#v", what, v)
		}
	}

	unknown, err := msgpack.Marshal(cty.UnknownVal(block.ImpliedType()), block.ImpliedType())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		what    string
		encoded []byte
		name    string
	}{
		{"missing attribute", encoded, "colour"},
		{"unknown object", unknown, "content"},
		{"truncated object", encoded[:len(encoded)/2], "zone"},
		{"no data", nil, "content"},
	} {
		if v, found := decodeAttribute(block, row.encoded, nil, row.name); found {
			t.Errorf("%s: got %#v", row.what, v)
		}
	}
}

// TestReferencesToEncodedValues checks that plans do not depend on whether a value is kept encoded,
// as it is after many others.
func TestReferencesToEncodedValues(t *testing.T) {
	planReferences := func(others int) (changes, problems []string) {
		s := newFakeEnv()
		s.noLog = true
		s.secrets["keys/p"] = "hush"
		s.objects["other"] = cty.ObjectVal(map[string]cty.Value{"token": cty.StringVal("hush too").Mark(providerapi.Sensitive)})
		p := &planTest{model: newModel(t, s), engine: newPlanner(t, s, nil)}
		p.write(`zz-used: {"content": "text", "password": {"secretKeyRef": {"name": "keys", "key": "p"}}, "labels": {"a": "1"}, "zone": "${k8s.Secret[\"other\"].token}"}`)
		for i := range others { // these end before it, and are retained for a dependent that comes last
			p.write(fmt.Sprintf(`n-%06d: {}`, i), fmt.Sprintf(`u-%06d: {"content": "${demo_thing[\"n-%06d\"].id}", "depends_on": ["demo_thing[\"zz-used\"]"]}`, i, i))
		}
		for name, text := range map[string]string{
			"attribute": `${demo_thing["zz-used"].content}`, "secret": `${demo_thing["zz-used"].password}`, "derived": `${demo_thing["zz-used"].zone}`, "unknown": `${demo_thing["zz-used"].id}`,
			"label": `${demo_thing["zz-used"].labels["a"]}`, "within": `<${demo_thing["zz-used"].content}>`, "function": `${demo_thing["zz-used"].content + "!"}`,
			"missing": `${demo_thing["zz-used"].colour}`, "no-label": `${demo_thing["zz-used"].labels["b"]}`, "whole": `${jsonencode(demo_thing["zz-used"])}`,
		} {
			p.write(fmt.Sprintf(`zzz-%s: {"content": %q}`, name, text))
		}
		planned, store := mustPlan(t, p.engine, PlanOptions{})
		list, _ := store.changes(t, planned.Contents, testSalt)
		for _, c := range list {
			if !strings.HasPrefix(c.Address.Name, "zz") {
				continue
			}
			c.Preconditions = nil // they contain generations
			text, err := c.Encode()
			if err != nil {
				t.Fatal(err)
			}
			changes = append(changes, string(text))
		}
		for _, one := range planned.Problems {
			problems = append(problems, fmt.Sprintf("%s %s: %s", one.Address, one.Field, one.Message))
		}
		return changes, problems
	}
	changes, problems := planReferences(0)
	if len(changes) != 9 || len(problems) != 2 {
		t.Fatalf("without others: %d changes, and %q", len(changes), problems)
	}
	many, same := planReferences(maxRetained + 100)
	if fmt.Sprint(same) != fmt.Sprint(problems) {
		t.Errorf("problems are %q, want %q", same, problems)
	}
	for i := range changes {
		if i < len(many) && many[i] != changes[i] {
			t.Errorf("encoded, got\n%s\nwant\n%s", many[i], changes[i])
		}
	}
}

// TestReferencesToStoredValues checks that dependents see the same, whether single attributes are
// decoded for few of them or the whole value for many.
func TestReferencesToStoredValues(t *testing.T) {
	planReferences := func(others int) (changes []string) {
		s := newFakeEnv()
		s.noLog = true
		s.secrets["keys/p"] = "hush"
		s.objects["other"] = cty.ObjectVal(map[string]cty.Value{"token": cty.StringVal("hush too").Mark(providerapi.Sensitive)})
		p := &planTest{model: newModel(t, s), engine: newPlanner(t, s, nil)}
		p.write(`used: {"content": "text", "password": {"secretKeyRef": {"name": "keys", "key": "p"}}, "labels": {"a": "1"}, "zone": "${k8s.Secret[\"other\"].token}"}`)
		for i := range others {
			p.write(fmt.Sprintf(`u-%02d: {"content": "${demo_thing[\"used\"].id}"}`, i))
		}
		refer := func(zone string) {
			for name, text := range map[string]string{
				"attribute": `${demo_thing["used"].content}`, "secret": `${demo_thing["used"].password}`, "derived": `${demo_thing["used"].zone}`, "computed": `${demo_thing["used"].token}`,
				"label": `${demo_thing["used"].labels["a"]}`, "within": `<${demo_thing["used"].content}>`, "null": `${demo_thing["used"].wo}`,
			} {
				p.write(fmt.Sprintf(`zz-%s: {"content": %q, "zone": %q}`, name, text, zone))
			}
		}
		refer("a")
		p.applyAll()
		refer("b")
		planned, store := mustPlan(t, p.engine, PlanOptions{})
		if planned.Contents.Counts.Replace != 7 || len(planned.Problems) > 0 {
			t.Fatalf("with %d others: %+v, %+v", others, planned.Contents.Counts, planned.Problems)
		}
		list, _ := store.changes(t, planned.Contents, testSalt)
		for _, c := range list {
			if !strings.HasPrefix(c.Address.Name, "zz-") {
				continue
			}
			text, err := json.Marshal(c.After)
			if err != nil {
				t.Fatal(err)
			}
			changes = append(changes, fmt.Sprintf("%s %s", c.Address.Name, text))
			if strings.Contains(string(text), "hush") {
				t.Errorf("a secret is shown: %s", text)
			}
		}
		return changes
	}
	few, many := planReferences(0), planReferences(manyUsers)
	if fmt.Sprint(few) != fmt.Sprint(many) {
		t.Errorf("many dependents see\n%s\nfew see\n%s", strings.Join(many, "\n"), strings.Join(few, "\n"))
	}
}
