package differential

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Planned is the plan of one side.
type Planned struct {
	// Refused are the addresses for which planning failed.
	Refused []string
	// Changes are the planned changes by address. Deposed objects have " (deposed)" after it. No-ops are left out.
	Changes map[string]Change
	// Drift are the addresses of resources with drift.
	Drift []string
	// Messages are the error messages for Refused.
	Messages []string
}

// Change is a planned change of one resource.
type Change struct {
	Action    string
	Reason    string `json:",omitempty"`
	Importing bool   `json:",omitempty"`
	// Forces are the arguments that force its replacement.
	Forces []string `json:",omitempty"`
	// After is the planned value, with "(unknown)" and "(sensitive)" in place of such values.
	After any `json:",omitempty"`
}

// Instance is the stored state of one resource instance.
type Instance struct {
	Attributes    map[string]any
	SchemaVersion int64
	Tainted       bool   `json:",omitempty"`
	CreateFirst   bool   `json:",omitempty"`
	Private       string `json:",omitempty"`
	Identity      any    `json:",omitempty"`
}

// Outcome is the result of a step on one side.
type Outcome struct {
	Planned Planned
	// Failed are the addresses for which the apply failed, and Messages its error messages.
	Failed   []string
	Messages []string
	// Skipped are planned changes that the apply never started, although nothing failed.
	Skipped []string
	// Intended are the intended differences that were removed before the comparison.
	Intended []string
	// State maps addresses to instances, with " (deposed)" as in a plan.
	State map[string]Instance
	// World holds the providers' objects by placeholder, and their files.
	World map[string]any
	// Calls counts each create, update and delete in the providers' logs.
	Calls map[string]int
}

// Difference is one difference between both sides.
type Difference struct {
	Where       string
	Tofu, Atoll string
	// Intended names the intended difference that this is, if any: see intended.go.
	Intended string `json:",omitempty"`
}

func (d Difference) String() string {
	return fmt.Sprintf("%s\n    OpenTofu: %s\n    Atoll:    %s", d.Where, d.Tofu, d.Atoll)
}

// Differences returns all differences after a step. diverged means that later steps cannot be compared.
func Differences(step *Step, tofu, atoll *Outcome) (all []Difference, diverged bool) {
	c := &comparison{}
	c.same("refused", tofu.Planned.Refused, atoll.Planned.Refused, tofu.Planned.Messages, atoll.Planned.Messages)
	if len(tofu.Planned.Refused) == 0 && len(atoll.Planned.Refused) == 0 {
		byName(c, "plan of ", tofu.Planned.Changes, atoll.Planned.Changes)
		c.same("drift", tofu.Planned.Drift, atoll.Planned.Drift, nil, nil)
	}
	c.same("failed", tofu.Failed, atoll.Failed, tofu.Messages, atoll.Messages)
	byName(c, "state of ", tofu.State, atoll.State)
	byName(c, "world: ", tofu.World, atoll.World)
	byName(c, "calls: ", tofu.Calls, atoll.Calls)
	diverged = markIntended(step, c.all, tofu, atoll)
	return c.all, diverged
}

type comparison struct{ all []Difference }

func (c *comparison) same(where string, tofu, atoll, tofuSaid, atollSaid []string) {
	slices.Sort(tofu)
	slices.Sort(atoll)
	tofu, atoll = slices.Compact(tofu), slices.Compact(atoll)
	if !slices.Equal(tofu, atoll) {
		c.all = append(c.all, Difference{Where: where, Tofu: strings.Join(append(tofu, tofuSaid...), "; "), Atoll: strings.Join(append(atoll, atollSaid...), "; ")})
	}
}

func byName[T any](c *comparison, where string, tofu, atoll map[string]T) {
	all := map[string]bool{}
	for name := range tofu {
		all[name] = true
	}
	for name := range atoll {
		all[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t, a := "nothing", "nothing"
		if v, there := tofu[name]; there {
			t = jsonLine(v)
		}
		if v, there := atoll[name]; there {
			a = jsonLine(v)
		}
		if t != a {
			c.all = append(c.all, Difference{Where: where + name, Tofu: t, Atoll: a})
		}
	}
}
