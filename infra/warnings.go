package infra

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/schema"
)

// warnings are provider warnings, deduplicated by message, with the first resource of each. Ten
// thousand resources with the same deprecated argument give one warning.
type warnings map[string]warning

type warning struct {
	first v1alpha1.Problem
	count int // number of resources
}

// add records the warnings of one resource. A provider may repeat a warning in its validate and
// plan answers.
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
		is.count++
		(*w)[text] = is
	}
}

// list returns all warnings, sorted by address.
func (w warnings) list() []v1alpha1.Problem {
	var out []v1alpha1.Problem
	for _, is := range w {
		if is.count > 1 {
			is.first.Message += fmt.Sprintf(" (and %d more)", is.count-1)
		}
		out = append(out, is.first)
	}
	slices.SortFunc(out, compareProblems)
	return out
}

func compareProblems(a, b v1alpha1.Problem) int {
	return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
}
