package alike

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

// Finding is what differed in one step of one configuration.
type Finding struct {
	Seed        uint64
	Step        int
	What        string
	Differences []Difference
}

// Counts are of what was compared.
type Counts struct {
	Configurations, Steps, Refused, Failures int
	// Apart are configurations that were given up because a difference that is meant to be left two worlds.
	Apart int
	// Actions are how often each was planned, by OpenTofu.
	Actions map[string]int
	// Chosen are how often each difference was found that is meant to be, by why.
	Chosen map[string]int
	// Compared are instances in states, and objects in worlds.
	States, Objects int
}

// Add sums up.
func (c *Counts) Add(other Counts) {
	c.Configurations += other.Configurations
	c.Steps += other.Steps
	c.Refused += other.Refused
	c.Failures += other.Failures
	c.Apart += other.Apart
	c.States += other.States
	c.Objects += other.Objects
	if c.Actions == nil {
		c.Actions = map[string]int{}
	}
	for action, n := range other.Actions {
		c.Actions[action] += n
	}
	if c.Chosen == nil {
		c.Chosen = map[string]int{}
	}
	for why, n := range other.Chosen {
		c.Chosen[why] += n
	}
}

func (c *Counts) choose(found []Difference) {
	for _, d := range found {
		if d.Chosen != "" {
			c.Chosen[d.Chosen]++
		}
	}
}

// Run takes the configuration of a seed through its life, in both, until something differs or all is destroyed.
func Run(ctx context.Context, seed uint64, steps int, dir string, tofu Tofu, atoll *Atoll) (Counts, *Finding, error) {
	counts := Counts{Configurations: 1, Actions: map[string]int{}, Chosen: map[string]int{}}
	g := NewGenerator(seed)
	dir = filepath.Join(dir, fmt.Sprintf("seed-%d", seed))
	t, err := tofu.open(dir, g.Old)
	if err != nil {
		return counts, nil, err
	}
	a, err := atoll.open(ctx, dir, fmt.Sprintf("seed-%d", seed), g.Old)
	if err != nil {
		return counts, nil, err
	}
	step := g.First()
	for n := range steps {
		if err := step.Configuration.check(); err != nil {
			return counts, nil, err
		}
		if err := both(ctx, step, t, a); err != nil {
			return counts, nil, fmt.Errorf("seed %d, step %d (%s): %w", seed, n, step.What, err)
		}
		counts.take(t.out)
		found, apart := Differences(step, t.out, a.out)
		counts.choose(found)
		for _, why := range slices.Concat(t.out.Noted, a.out.Noted) {
			counts.Chosen[why]++
		}
		if found = slices.DeleteFunc(found, func(d Difference) bool { return d.Chosen != "" }); len(found) > 0 {
			return counts, &Finding{Seed: seed, Step: n, What: step.String(), Differences: found}, nil
		}
		if apart {
			counts.Apart++
			return counts, nil, a.close(ctx)
		}
		left := Left{Refused: len(t.out.Planned.Refused) > 0, There: there(t.current)}
		if n == steps-2 {
			step = g.Last()
		} else {
			step = g.Next(left)
		}
	}
	return counts, nil, a.close(ctx)
}

// both plans a step and carries it out, unless something of it is refused.
func both(ctx context.Context, step *Step, t *tofuSide, a *atollSide) error {
	for _, d := range step.Drift {
		for _, side := range []struct {
			names *names
			ids   map[string]string
		}{{t.names, t.ids}, {a.names, a.ids}} {
			if id := side.ids[d.Of.String()]; id != "" {
				if err := drift(side.names.directory, id, d); err != nil {
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
		if err := a.carryOut(ctx); err != nil {
			return err
		}
	}
	if err := t.look(); err != nil {
		return err
	}
	return a.look(ctx)
}

func (c *Counts) take(out *Outcome) {
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
