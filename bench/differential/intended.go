package differential

import (
	"slices"
	"strings"
)

// Intended differences between OpenTofu and Atoll. docs/infrastructure.md documents them for users.
const (
	// intendedInherited: a dependent with create_before_destroy makes its dependencies create first as well. OpenTofu stores
	// that in the state. Atoll computes it in each plan, and orders removals by dependencies in any case.
	intendedInherited = "inherited create_before_destroy in the state"
	// intendedDrift: Atoll's destroy plans report drift as well.
	intendedDrift = "drift reported by a destroy plan"
	// intendedReason: OpenTofu gives replace_triggered_by as the reason of a create. Atoll gives a create no reason.
	intendedReason = "replace_triggered_by as the reason of a create"
	// intendedSkipped: when OpenTofu applies a limited plan, it applies the limit again, following only resources that change.
	// So it skips a planned change if a resource on the way to it has no change.
	intendedSkipped = "planned with -target or -exclude and skipped by OpenTofu's apply"
	// intendedKept: an excluded resource still refers to one that was removed from the configuration. Atoll keeps the latter.
	intendedKept = "no longer configured, and still used by a resource outside the limit of the plan"
	// intendedProtected: Atoll honours prevent_destroy for an object that is being deleted. OpenTofu ignores it once the block
	// is gone.
	intendedProtected = "prevent_destroy of a resource that is no longer configured"
	// intendedMasked: Atoll masks the new value of an attribute whose prior value was sensitive.
	intendedMasked = "sensitive before, shown after by OpenTofu"
	// intendedForget: a destroy plan of OpenTofu destroys everything in the state, even resources with a removed block.
	intendedForget = "destroyed by OpenTofu although it was to be forgotten"
	// intendedWaits: Atoll forgets a resource after the resources that refer to it have changed, and one of these failed.
	intendedWaits = "not forgotten while a resource that refers to it fails"
	// intendedSooner: a resource that used this one was destroyed and its replacement could not be created. OpenTofu leaves
	// the unused resource for the next apply.
	intendedSooner = "left by OpenTofu because the replacement of its user failed"
	// intendedBoth: if a replacement has two reasons, each side reports a different one.
	intendedBoth = "tainted and triggered: each side reports one reason"
	// intendedCycle: OpenTofu's own order of destroys and creates has a cycle, and it refuses the plan. Atoll's has none.
	intendedCycle = "refused by OpenTofu because of a cycle in its own order"
	// intendedUnnamed: OpenTofu does not name the resource that it cannot import. Atoll does; both give the cause.
	intendedUnnamed = "refused by both, and named by Atoll only"
	// intendedDeposed: Atoll does not write the result of a refresh to the state of a deposed object.
	intendedDeposed = "a deposed object's state is as before the refresh"
	// intendedLegacy: Atoll stores what a provider on the oldest SDK returns from the first read after an apply, and does not report
	// null that became empty as drift.
	intendedLegacy = "null and empty of a provider on the oldest SDK"
)

// markIntended marks the intended differences. It reports whether one of them makes the two sides diverge, so that later
// steps cannot be compared.
func markIntended(step *Step, all []Difference, tofu, atoll *Outcome) (diverged bool) {
	var kept, waiting, forgotten, sooner []string
	for i := range all {
		d := &all[i]
		name := strings.TrimPrefix(d.Where, "plan of ")
		if ofPlan(d) && len(step.Exclude)+len(step.Targets) > 0 && d.Atoll == "nothing" && tofu.Planned.Changes[name].Action == "delete" {
			kept = append(kept, name)
		}
		if ofPlan(d) && step.Destroy && tofu.Planned.Changes[name].Action == "delete" && atoll.Planned.Changes[name].Action == "forget" {
			forgotten = append(forgotten, name)
		}
	}
	for name, c := range atoll.Planned.Changes {
		if _, left := tofu.State[name]; c.Action == "forget" && len(atoll.Failed) > 0 && !left {
			waiting = append(waiting, name)
		}
	}
	for name, c := range tofu.Planned.Changes {
		_, left := tofu.State[name]
		if _, also := atoll.State[name]; c.Action == "delete" && len(tofu.Failed) > 0 && left && !also {
			sooner = append(sooner, name)
		}
	}
	for i := range all {
		d := &all[i]
		d.Intended = intendedName(step, d, tofu, atoll)
		about := func(name string) bool {
			return d.Where == "plan of "+name || d.Where == "state of "+name || strings.Contains(d.Where, "<"+name+"#")
		}
		switch {
		case d.Where == "refused" && len(atoll.Planned.Refused) == 0 && isDestroyCycle(tofu.Planned.Messages):
			d.Intended, diverged = intendedCycle, true
		case slices.ContainsFunc(tofu.Skipped, about):
			d.Intended, diverged = intendedSkipped, true
		case slices.ContainsFunc(kept, about):
			d.Intended, diverged = intendedKept, true
		case slices.ContainsFunc(forgotten, about):
			d.Intended, diverged = intendedForget, true
		case !ofPlan(d) && slices.ContainsFunc(sooner, about):
			d.Intended, diverged = intendedSooner, true
		case slices.ContainsFunc(waiting, func(name string) bool { return d.Where == "state of "+name }):
			d.Intended, diverged = intendedWaits, true
		}
	}
	return diverged
}

func ofPlan(d *Difference) bool { return strings.HasPrefix(d.Where, "plan of ") }

// isDestroyCycle reports whether OpenTofu's only error is a cycle that contains a destroy.
func isDestroyCycle(output []string) bool {
	return len(output) == 1 && strings.HasPrefix(output[0], "Cycle:") && strings.Contains(output[0], "(destroy)")
}

// bothRefuseUnnamed reports whether OpenTofu refuses one resource without naming it and Atoll refuses one for the same cause.
func bothRefuseUnnamed(tofu, atoll *Planned) bool {
	if !slices.Equal(tofu.Refused, []string{refusedUnnamed}) || len(tofu.Messages) != 1 || len(atoll.Refused) != 1 || len(atoll.Messages) != 1 {
		return false
	}
	why, _, _ := strings.Cut(tofu.Messages[0], ":")
	return why != "" && strings.Contains(atoll.Messages[0], why)
}

func intendedName(step *Step, d *Difference, tofu, atoll *Outcome) string {
	if d.Where == "refused" && bothRefuseUnnamed(&tofu.Planned, &atoll.Planned) {
		return intendedUnnamed
	}
	if d.Where == "drift" && step.Destroy && len(tofu.Planned.Drift) == 0 {
		return intendedDrift
	}
	if d.Where == "drift" && onlyLegacy(tofu.Planned.Drift, atoll.Planned.Drift) {
		return intendedLegacy
	}
	if name, is := strings.CutPrefix(d.Where, "plan of "); is {
		t, a := tofu.Planned.Changes[name], atoll.Planned.Changes[name]
		if t.Action == "create" && t.Reason == "Triggered" {
			if t.Reason = ""; jsonLine(t) == jsonLine(a) {
				return intendedReason
			}
		}
		if t.Reason == "Triggered" && a.Reason == "Tainted" {
			if t.Reason = a.Reason; jsonLine(t) == jsonLine(a) {
				return intendedBoth
			}
		}
		if isLegacy(name) {
			if t.After, a.After = withoutEmpty(t.After), withoutEmpty(a.After); jsonLine(t) == jsonLine(a) {
				return intendedLegacy
			}
		}
	}
	if name, is := strings.CutPrefix(d.Where, "state of "); is {
		t, there := tofu.State[name]
		a, also := atoll.State[name]
		if there && also && t.CreateFirst != a.CreateFirst {
			if t.CreateFirst = a.CreateFirst; jsonLine(t) == jsonLine(a) {
				return intendedInherited
			}
		}
		if there && also && isLegacy(name) {
			if jsonLine(t.withoutEmpty()) == jsonLine(a.withoutEmpty()) {
				return intendedLegacy
			}
		}
		if there && also && strings.Contains(name, " (deposed)") && step.Refresh {
			return intendedDeposed
		}
	}
	return ""
}

// isLegacy reports whether an address is one of the provider on the oldest SDK.
func isLegacy(name string) bool { return strings.HasPrefix(name, "demo5_") }

// onlyLegacy reports whether OpenTofu reports the same drift as Atoll, and more of the oldest SDK only.
func onlyLegacy(tofu, atoll []string) bool {
	for _, name := range tofu {
		if !slices.Contains(atoll, name) && !isLegacy(name) {
			return false
		}
	}
	return !slices.ContainsFunc(atoll, func(name string) bool { return !slices.Contains(tofu, name) })
}

func (i Instance) withoutEmpty() Instance {
	i.Attributes, _ = withoutEmpty(i.Attributes).(map[string]any)
	return i
}

// withoutEmpty returns a value of a plan or state with null for everything that the oldest SDK does not distinguish from it.
func withoutEmpty(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, one := range v {
			if one = withoutEmpty(one); one != nil {
				out[name] = one
			}
		}
		if len(out) > 0 {
			return out
		}
		return nil
	case []any:
		if len(v) == 0 {
			return nil
		}
		out := make([]any, len(v))
		for i := range v {
			out[i] = withoutEmpty(v[i])
		}
		return out
	}
	if text := jsonLine(v); text == `""` || text == "0" || text == "false" {
		return nil
	}
	return v
}
