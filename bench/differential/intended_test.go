package differential

import "testing"

// Intended differences are marked with their name; any other difference is not.
func TestIntendedDifferences(t *testing.T) {
	value := func(text string) map[string]any { return map[string]any{"x": text} }
	state := func(i Instance) *Outcome { return &Outcome{State: map[string]Instance{"a": i}} }
	legacy := func(attributes map[string]any) *Outcome {
		return &Outcome{State: map[string]Instance{"demo5_server.a": {Attributes: attributes}}}
	}
	planned := func(c Change) *Outcome { return &Outcome{Planned: Planned{Changes: map[string]Change{"a": c}}} }
	refused := func(what, why string) *Outcome {
		return &Outcome{Planned: Planned{Refused: []string{what}, Messages: []string{why}}}
	}
	destroys, excludes := &Step{Destroy: true}, &Step{Exclude: []Address{{Type: "demo_slow", Name: "b"}}}
	skipped := state(Instance{Attributes: value("old")})
	skipped.Skipped = []string{"a"}
	for name, c := range map[string]struct {
		step        *Step
		tofu, atoll *Outcome
		want        string
		diverged    bool
	}{
		"inherited create_before_destroy": {&Step{}, state(Instance{CreateFirst: true}), state(Instance{}), intendedInherited, false},
		"inherited, another value":        {&Step{}, state(Instance{CreateFirst: true, Attributes: value("y")}), state(Instance{Attributes: value("z")}), "", false},
		"reason of a create":              {&Step{}, planned(Change{Action: "create", Reason: "Triggered"}), planned(Change{Action: "create"}), intendedReason, false},
		"reason of an update":             {&Step{}, planned(Change{Action: "update", Reason: "Triggered"}), planned(Change{Action: "update"}), "", false},
		"two reasons":                     {&Step{}, planned(Change{Action: "delete+create", Reason: "Triggered"}), planned(Change{Action: "delete+create", Reason: "Tainted"}), intendedBoth, false},
		"drift in a destroy plan":         {destroys, &Outcome{}, &Outcome{Planned: Planned{Drift: []string{"a"}}}, intendedDrift, false},
		"drift in another plan":           {&Step{}, &Outcome{}, &Outcome{Planned: Planned{Drift: []string{"a"}}}, "", false},
		"drift of null and empty":         {&Step{}, &Outcome{Planned: Planned{Drift: []string{"a", "demo5_server.b"}}}, &Outcome{Planned: Planned{Drift: []string{"a"}}}, intendedLegacy, false},
		"drift of another provider":       {&Step{}, &Outcome{Planned: Planned{Drift: []string{"demo_server.b"}}}, &Outcome{}, "", false},
		"null and empty in the state":     {&Step{}, legacy(map[string]any{"x": nil, "y": "1"}), legacy(map[string]any{"x": []any{}, "y": "1"}), intendedLegacy, false},
		"another value in the state":      {&Step{}, legacy(map[string]any{"x": nil, "y": "1"}), legacy(map[string]any{"x": []any{}, "y": "2"}), "", false},
		"used by an excluded resource":    {excludes, planned(Change{Action: "delete"}), planned(Change{Action: "no-op"}), "", false},
		"excluded":                        {excludes, planned(Change{Action: "delete"}), &Outcome{}, intendedKept, true},
		"not deleted":                     {&Step{}, planned(Change{Action: "delete"}), &Outcome{}, "", false},
		"to be forgotten":                 {destroys, planned(Change{Action: "delete"}), planned(Change{Action: "forget"}), intendedForget, true},
		"cycle of OpenTofu":               {&Step{}, &Outcome{Planned: Planned{Refused: []string{"x"}, Messages: []string{"Cycle: a (destroy), a"}}}, &Outcome{}, intendedCycle, true},
		"import not named":                {&Step{}, refused("(something)", "Not there: i"), refused("a", "the resource cannot be imported: Not there: j"), intendedUnnamed, false},
		"import not named, another cause": {&Step{}, refused("(something)", "Not there: i"), refused("a", "the resource cannot be imported: Not allowed"), "", false},
		"skipped by apply":                {excludes, skipped, state(Instance{Attributes: value("new")}), intendedSkipped, true},
	} {
		found, diverged := Differences(c.step, c.tofu, c.atoll)
		if len(found) != 1 || found[0].Intended != c.want || diverged != c.diverged {
			t.Errorf("%s: %+v, diverged %v; want %q", name, found, diverged, c.want)
		}
	}
}
