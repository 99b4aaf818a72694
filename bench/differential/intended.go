package alike

import (
	"slices"
	"strings"
)

// What is not the same and is not to be. docs/infrastructure.md says so to users.
const (
	// chosenInherited: what is created before the old one is destroyed because something that depends on it is, is noted in
	// OpenTofu's state. Atoll works it out anew in each plan, and orders removals by who depends on what in any case.
	chosenInherited = "inherited create_before_destroy in the state"
	// chosenDrift: what was found to be otherwise is told by Atoll's plans that destroy, too.
	chosenDrift = "drift told by a plan that destroys"
	// chosenReason: OpenTofu gives replace_triggered_by as the reason of a creation, too, which has none.
	chosenReason = "replace_triggered_by as the reason of a creation"
	// chosenSkipped: OpenTofu narrows once more when it carries out a plan that was narrowed, by way of what has something to be
	// done. So it leaves out what it has planned where nothing is to be done about one in between.
	chosenSkipped = "planned with -target or -exclude and not carried out by OpenTofu"
	// chosenKept: what is excluded still refers to what is no longer written, so that Atoll does not destroy that.
	chosenKept = "no longer written, and still in use by what is left out"
	// chosenProtected: prevent_destroy holds for an object that is being deleted, where OpenTofu forgets it with the block.
	chosenProtected = "prevent_destroy of what is no longer written"
	// chosenMasked: what was secret before is not shown after, though it is secret no more.
	chosenMasked = "secret before, shown after by OpenTofu"
	// chosenForget: OpenTofu destroys what is in its state, whatever a removed block says.
	chosenForget = "destroyed by OpenTofu though it was to be forgotten"
	// chosenWaits: what is to be forgotten waits until what refers to it was changed, and that failed.
	chosenWaits = "not forgotten while what refers to it fails"
	// chosenSooner: what used it was destroyed, and its successor could not be made. OpenTofu leaves it for the next apply.
	chosenSooner = "left by OpenTofu where the successor of what used it failed"
	// chosenBoth: of two reasons for a replacement each names another.
	chosenBoth = "tainted and triggered: each names one reason"
	// chosenCircle: OpenTofu's own order of what is destroyed and created goes round in a circle, and it refuses. Atoll's does not.
	chosenCircle = "refused by OpenTofu because of a circle of its own"
	// chosenUnnamed: OpenTofu does not say what it cannot import, where Atoll does; both say why.
	chosenUnnamed = "refused by both, and named by Atoll alone"
	// chosenDeposed: what a refresh found is not noted in the state of a predecessor.
	chosenDeposed = "a predecessor's state is as it was before the refresh"
)

// choose finds out which differences are meant to be. It tells whether the two are no longer alike because of one, so
// that what comes next cannot be compared.
func choose(step *Step, all []Difference, tofu, atoll *Outcome) (apart bool) {
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
		d.Chosen = chosenAs(step, d, tofu, atoll)
		about := func(name string) bool {
			return d.Where == "plan of "+name || d.Where == "state of "+name || strings.Contains(d.Where, "<"+name+"#")
		}
		switch {
		case d.Where == "refused" && len(atoll.Planned.Refused) == 0 && circle(tofu.Planned.Said):
			d.Chosen, apart = chosenCircle, true
		case slices.ContainsFunc(tofu.Skipped, about):
			d.Chosen, apart = chosenSkipped, true
		case slices.ContainsFunc(kept, about):
			d.Chosen, apart = chosenKept, true
		case slices.ContainsFunc(forgotten, about):
			d.Chosen, apart = chosenForget, true
		case !ofPlan(d) && slices.ContainsFunc(sooner, about):
			d.Chosen, apart = chosenSooner, true
		case slices.ContainsFunc(waiting, func(name string) bool { return d.Where == "state of "+name }):
			d.Chosen, apart = chosenWaits, true
		}
	}
	return apart
}

func ofPlan(d *Difference) bool { return strings.HasPrefix(d.Where, "plan of ") }

// circle tells whether all that OpenTofu says is that it goes round in a circle of which something is destroyed.
func circle(said []string) bool {
	return len(said) == 1 && strings.HasPrefix(said[0], "Cycle:") && strings.Contains(said[0], "(destroy)")
}

// unnamed tells whether OpenTofu refuses one thing without its name, and Atoll one for the same reason.
func unnamed(tofu, atoll *Planned) bool {
	if !slices.Equal(tofu.Refused, []string{refusedUnnamed}) || len(tofu.Said) != 1 || len(atoll.Refused) != 1 || len(atoll.Said) != 1 {
		return false
	}
	why, _, _ := strings.Cut(tofu.Said[0], ":")
	return why != "" && strings.Contains(atoll.Said[0], why)
}

func chosenAs(step *Step, d *Difference, tofu, atoll *Outcome) string {
	if d.Where == "refused" && unnamed(&tofu.Planned, &atoll.Planned) {
		return chosenUnnamed
	}
	if d.Where == "drift" && step.Destroy && len(tofu.Planned.Drift) == 0 {
		return chosenDrift
	}
	if name, is := strings.CutPrefix(d.Where, "plan of "); is {
		t, a := tofu.Planned.Changes[name], atoll.Planned.Changes[name]
		if t.Action == "create" && t.Reason == "Triggered" {
			if t.Reason = ""; line(t) == line(a) {
				return chosenReason
			}
		}
		if t.Reason == "Triggered" && a.Reason == "Tainted" {
			if t.Reason = a.Reason; line(t) == line(a) {
				return chosenBoth
			}
		}
	}
	if name, is := strings.CutPrefix(d.Where, "state of "); is {
		t, there := tofu.State[name]
		a, also := atoll.State[name]
		if there && also && t.CreateFirst != a.CreateFirst {
			if t.CreateFirst = a.CreateFirst; line(t) == line(a) {
				return chosenInherited
			}
		}
		if there && also && strings.Contains(name, " (deposed)") && step.Refresh {
			return chosenDeposed
		}
	}
	return ""
}
