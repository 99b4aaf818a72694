package alike

import "testing"

// What is meant to differ is told as such; what differs besides is not.
func TestChosen(t *testing.T) {
	value := func(text string) map[string]any { return map[string]any{"x": text} }
	state := func(i Instance) *Outcome { return &Outcome{State: map[string]Instance{"a": i}} }
	planned := func(c Change) *Outcome { return &Outcome{Planned: Planned{Changes: map[string]Change{"a": c}}} }
	refused := func(what, why string) *Outcome {
		return &Outcome{Planned: Planned{Refused: []string{what}, Said: []string{why}}}
	}
	destroys, excludes := &Step{Destroy: true}, &Step{Exclude: []Address{{Type: "demo_slow", Name: "b"}}}
	skipped := state(Instance{Attributes: value("old")})
	skipped.Skipped = []string{"a"}
	for name, c := range map[string]struct {
		step        *Step
		tofu, atoll *Outcome
		want        string
		apart       bool
	}{
		"inherited":                  {&Step{}, state(Instance{CreateFirst: true}), state(Instance{}), chosenInherited, false},
		"inherited, another value":   {&Step{}, state(Instance{CreateFirst: true, Attributes: value("y")}), state(Instance{Attributes: value("z")}), "", false},
		"a creation's reason":        {&Step{}, planned(Change{Action: "create", Reason: "Triggered"}), planned(Change{Action: "create"}), chosenReason, false},
		"an update's reason":         {&Step{}, planned(Change{Action: "update", Reason: "Triggered"}), planned(Change{Action: "update"}), "", false},
		"two reasons":                {&Step{}, planned(Change{Action: "delete+create", Reason: "Triggered"}), planned(Change{Action: "delete+create", Reason: "Tainted"}), chosenBoth, false},
		"drift of a destroy":         {destroys, &Outcome{}, &Outcome{Planned: Planned{Drift: []string{"a"}}}, chosenDrift, false},
		"drift otherwise":            {&Step{}, &Outcome{}, &Outcome{Planned: Planned{Drift: []string{"a"}}}, "", false},
		"in use by what is excluded": {excludes, planned(Change{Action: "delete"}), planned(Change{Action: "no-op"}), "", false},
		"excluded":                   {excludes, planned(Change{Action: "delete"}), &Outcome{}, chosenKept, true},
		"not deleted":                {&Step{}, planned(Change{Action: "delete"}), &Outcome{}, "", false},
		"to be forgotten":            {destroys, planned(Change{Action: "delete"}), planned(Change{Action: "forget"}), chosenForget, true},
		"a circle of OpenTofu's":     {&Step{}, &Outcome{Planned: Planned{Refused: []string{"x"}, Said: []string{"Cycle: a (destroy), a"}}}, &Outcome{}, chosenCircle, true},
		"an import without a name":   {&Step{}, refused("(something)", "Not there: i"), refused("a", "the resource cannot be imported: Not there: j"), chosenUnnamed, false},
		"an import, another reason":  {&Step{}, refused("(something)", "Not there: i"), refused("a", "the resource cannot be imported: Not allowed"), "", false},
		"not carried out":            {excludes, skipped, state(Instance{Attributes: value("new")}), chosenSkipped, true},
	} {
		found, apart := Differences(c.step, c.tofu, c.atoll)
		if len(found) != 1 || found[0].Chosen != c.want || apart != c.apart {
			t.Errorf("%s: %+v, apart %v; want it as %q", name, found, apart, c.want)
		}
	}
}
