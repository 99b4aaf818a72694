package infra

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/schema"
)

// warnings are what providers say that keeps nothing from happening: each thing once, with the first resource that it is said of.
// Ten thousand resources with the same deprecated argument are one of them.
type warnings map[string]warning

type warning struct {
	first v1alpha1.Problem
	of    int // how many resources
}

// add takes in what is said of one resource. A provider may say the same when it is asked to validate and when it is asked to plan.
func (w *warnings) add(address string, said contract.Diagnostics, mask schema.Mask) {
	if len(said) == 0 {
		return
	}
	if *w == nil {
		*w = warnings{}
	}
	told := map[string]bool{}
	for _, d := range mask.Diagnostics(said) {
		text := limited(words(d))
		if !d.Warning || told[text] {
			continue
		}
		told[text] = true
		this := v1alpha1.Problem{Address: address, Field: specField(d.Attribute), Message: text}
		is, there := (*w)[text]
		if !there || compareProblems(this, is.first) < 0 {
			is.first = this
		}
		is.of++
		(*w)[text] = is
	}
}

// list is all of them, sorted by address.
func (w warnings) list() []v1alpha1.Problem {
	var out []v1alpha1.Problem
	for _, is := range w {
		if is.of > 1 {
			is.first.Message += fmt.Sprintf(" (and so of %d more)", is.of-1)
		}
		out = append(out, is.first)
	}
	slices.SortFunc(out, compareProblems)
	return out
}

func compareProblems(a, b v1alpha1.Problem) int {
	return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
}
