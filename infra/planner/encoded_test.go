package planner

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// TestRetainedAndEncodedValues checks that dependents see the same value, whether it is kept
// decoded or encoded.
func TestRetainedAndEncodedValues(t *testing.T) {
	s := enginetest.NewEnv()
	block := &s.Schema.Block
	r := &run{Planner: newPlanner(t, s, nil), slots: make([]slot, maxRetained+2), values: make([]lazyValue, maxRetained+2)}
	value := block.Empty()
	for i := range r.slots {
		one := &r.slots[i]
		one.Resource = &inventory.Resource{Ref: enginetest.ThingRef(fmt.Sprintf("n-%06d", i))}
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

// TestReferencesToEncodedValues checks that plans do not depend on whether a value is kept encoded,
// as it is after many others.
func TestReferencesToEncodedValues(t *testing.T) {
	planReferences := func(others int) (changes, problems []string) {
		s := enginetest.NewEnv()
		s.NoLog = true
		s.Secrets["keys/p"] = "hush"
		s.Objects["other"] = cty.ObjectVal(map[string]cty.Value{"token": cty.StringVal("hush too").Mark(providerapi.Sensitive)})
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
		planned, store := mustPlan(t, p.engine, Options{})
		list, _ := store.Changes(t, planned.Contents, enginetest.Salt())
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
		s := enginetest.NewEnv()
		s.NoLog = true
		s.Secrets["keys/p"] = "hush"
		s.Objects["other"] = cty.ObjectVal(map[string]cty.Value{"token": cty.StringVal("hush too").Mark(providerapi.Sensitive)})
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
		planned, store := mustPlan(t, p.engine, Options{})
		if planned.Contents.Counts.Replace != 7 || len(planned.Problems) > 0 {
			t.Fatalf("with %d others: %+v, %+v", others, planned.Contents.Counts, planned.Problems)
		}
		list, _ := store.Changes(t, planned.Contents, enginetest.Salt())
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
