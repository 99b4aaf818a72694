package differential

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func unstructuredSerializer() runtime.NegotiatedSerializer {
	return serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
}

// Finding holds the unintended differences of one step of one configuration.
type Finding struct {
	Seed        uint64
	Step        int
	Description string
	Differences []Difference
}

// Counts sums up what a run compared.
type Counts struct {
	Configurations, Steps, Refused, Failures int
	// Diverged counts the configurations that ended early because an intended difference left the sides in different states.
	Diverged int
	// Actions counts the actions that OpenTofu planned.
	Actions map[string]int
	// Intended counts the intended differences, by name.
	Intended map[string]int
	// States and Objects count the compared instances in states and objects in worlds.
	States, Objects int
}

// Add adds other to c.
func (c *Counts) Add(other Counts) {
	c.Configurations += other.Configurations
	c.Steps += other.Steps
	c.Refused += other.Refused
	c.Failures += other.Failures
	c.Diverged += other.Diverged
	c.States += other.States
	c.Objects += other.Objects
	if c.Actions == nil {
		c.Actions = map[string]int{}
	}
	for action, n := range other.Actions {
		c.Actions[action] += n
	}
	if c.Intended == nil {
		c.Intended = map[string]int{}
	}
	for why, n := range other.Intended {
		c.Intended[why] += n
	}
}

func (c *Counts) countIntended(found []Difference) {
	for _, d := range found {
		if d.Intended != "" {
			c.Intended[d.Intended]++
		}
	}
}

// Run applies the steps of a seed on both sides until an unintended difference is found or everything is destroyed.
func Run(ctx context.Context, seed uint64, steps int, dir string, tofu Tofu, atoll *Atoll) (Counts, *Finding, error) {
	counts := Counts{Configurations: 1, Actions: map[string]int{}, Intended: map[string]int{}}
	g := NewGenerator(seed)
	dir = filepath.Join(dir, fmt.Sprintf("seed-%d", seed))
	t, err := tofu.open(dir, g.UseDemo5)
	if err != nil {
		return counts, nil, err
	}
	a, err := atoll.open(ctx, dir, fmt.Sprintf("seed-%d", seed), g.UseDemo5)
	if err != nil {
		return counts, nil, err
	}
	step := g.First()
	for n := range steps {
		if err := step.Configuration.validate(); err != nil {
			return counts, nil, err
		}
		if err := runStep(ctx, step, t, a); err != nil {
			return counts, nil, fmt.Errorf("seed %d, step %d (%s): %w", seed, n, step.Description, err)
		}
		counts.add(t.out)
		found, diverged := Differences(step, t.out, a.out)
		counts.countIntended(found)
		for _, why := range slices.Concat(t.out.Intended, a.out.Intended) {
			counts.Intended[why]++
		}
		if found = slices.DeleteFunc(found, func(d Difference) bool { return d.Intended != "" }); len(found) > 0 {
			return counts, &Finding{Seed: seed, Step: n, Description: step.String(), Differences: found}, nil
		}
		if diverged {
			counts.Diverged++
			return counts, nil, a.close(ctx)
		}
		last := StepResult{Refused: len(t.out.Planned.Refused) > 0, InState: addressesOf(t.current)}
		if n == steps-2 {
			step = g.Last()
		} else {
			step = g.Next(last)
		}
	}
	return counts, nil, a.close(ctx)
}

// runStep plans a step on both sides, and applies it unless one side refuses it.
func runStep(ctx context.Context, step *Step, t *tofuSide, a *atollSide) error {
	for _, d := range step.Drift {
		for _, side := range []struct {
			placeholders *placeholders
			ids          map[string]string
		}{{t.placeholders, t.ids}, {a.placeholders, a.ids}} {
			if id := side.ids[d.Target.String()]; id != "" {
				if err := applyDrift(side.placeholders.directory, id, d); err != nil {
					return err
				}
			}
		}
	}
	if err := t.plan(ctx, step); err != nil {
		return err
	}
	if err := a.plan(ctx, step); err != nil {
		return err
	}
	if len(t.out.Planned.Refused)+len(a.out.Planned.Refused) == 0 {
		if err := t.apply(ctx); err != nil {
			return err
		}
		if err := a.applyPlan(ctx); err != nil {
			return err
		}
	}
	if err := t.readState(); err != nil {
		return err
	}
	return a.readState(ctx)
}

func (c *Counts) add(out *Outcome) {
	c.Steps++
	if len(out.Planned.Refused) > 0 {
		c.Refused++
	}
	if len(out.Failed) > 0 {
		c.Failures++
	}
	for _, change := range out.Planned.Changes {
		c.Actions[change.Action]++
		if change.Importing && change.Action != "import" {
			c.Actions["import"]++
		}
	}
	c.States += len(out.State)
	c.Objects += len(out.World)
}
