package alike

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Planned is what a side says it would do.
type Planned struct {
	// Refused are addresses of what could not be planned.
	Refused []string
	// Changes are by address, those of predecessors that are left with " (deposed)" after it. No-ops are left out.
	Changes map[string]Change
	// Drift are addresses of what was found to be otherwise.
	Drift []string
	// Said is what it said about what it refused, for people.
	Said []string
}

// Change is what would be done to one.
type Change struct {
	Action    string
	Reason    string `json:",omitempty"`
	Importing bool   `json:",omitempty"`
	// Forces are the arguments because of which it is replaced.
	Forces []string `json:",omitempty"`
	// After is what it would be; "(unknown)" and "(sensitive)" stand for values.
	After any `json:",omitempty"`
}

// Instance is what is stored of one.
type Instance struct {
	Attributes    map[string]any
	SchemaVersion int64
	Tainted       bool   `json:",omitempty"`
	CreateFirst   bool   `json:",omitempty"`
	Private       string `json:",omitempty"`
	Identity      any    `json:",omitempty"`
}

// Outcome is what a step came to on one side.
type Outcome struct {
	Planned Planned
	// Failed are addresses of what could not be carried out.
	Failed []string
	Said   []string
	// Skipped is what was planned and never begun, though nothing failed.
	Skipped []string
	// Noted are differences that are meant to be and were taken out before anything was compared.
	Noted []string
	// State is by address, with " (deposed)" as in a plan.
	State map[string]Instance
	// World is what there is: objects by their names, and files.
	World map[string]any
	// Done is how often each thing was done to the world in all.
	Done map[string]int
}

// Difference is one thing that is not the same on both sides.
type Difference struct {
	Where       string
	Tofu, Atoll string
	// Chosen is why it is so, if it is meant to be: see chosen.go.
	Chosen string `json:",omitempty"`
}

func (d Difference) String() string {
	return fmt.Sprintf("%s\n    OpenTofu: %s\n    Atoll:    %s", d.Where, d.Tofu, d.Atoll)
}

// Differences are all that there are after a step. Apart is that the two cannot be compared any further.
func Differences(step *Step, tofu, atoll *Outcome) (all []Difference, apart bool) {
	c := &comparison{}
	c.same("refused", tofu.Planned.Refused, atoll.Planned.Refused, tofu.Planned.Said, atoll.Planned.Said)
	if len(tofu.Planned.Refused) == 0 && len(atoll.Planned.Refused) == 0 {
		byName(c, "plan of ", tofu.Planned.Changes, atoll.Planned.Changes)
		c.same("drift", tofu.Planned.Drift, atoll.Planned.Drift, nil, nil)
	}
	c.same("failed", tofu.Failed, atoll.Failed, tofu.Said, atoll.Said)
	byName(c, "state of ", tofu.State, atoll.State)
	byName(c, "world: ", tofu.World, atoll.World)
	byName(c, "done: ", tofu.Done, atoll.Done)
	apart = choose(step, c.all, tofu, atoll)
	return c.all, apart
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
			t = line(v)
		}
		if v, there := atoll[name]; there {
			a = line(v)
		}
		if t != a {
			c.all = append(c.all, Difference{Where: where + name, Tofu: t, Atoll: a})
		}
	}
}
