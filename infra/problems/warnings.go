package problems

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// Warnings are provider warnings, deduplicated by message, with the first resource of each. Ten
// thousand resources with the same deprecated argument give one warning.
type Warnings map[string]warning

type warning struct {
	first v1alpha1.Problem
	count int // number of resources
}

// Add records the warnings of one resource. A provider may repeat a warning in its validate and
// plan answers.
func (w *Warnings) Add(address string, diagnostics providerapi.Diagnostics, mask schema.Mask) {
	if len(diagnostics) == 0 {
		return
	}
	if *w == nil {
		*w = Warnings{}
	}
	seen := map[string]bool{}
	for _, d := range mask.Diagnostics(diagnostics) {
		text := Limit(Text(d))
		if !d.Warning || seen[text] {
			continue
		}
		seen[text] = true
		problem := v1alpha1.Problem{Address: address, Field: Field(d.Attribute), Message: text}
		entry, known := (*w)[text]
		if !known || Compare(problem, entry.first) < 0 {
			entry.first = problem
		}
		entry.count++
		(*w)[text] = entry
	}
}

// List returns all warnings, sorted by address.
func (w Warnings) List() []v1alpha1.Problem {
	var out []v1alpha1.Problem
	for _, entry := range w {
		if entry.count > 1 {
			entry.first.Message += fmt.Sprintf(" (and %d more)", entry.count-1)
		}
		out = append(out, entry.first)
	}
	slices.SortFunc(out, Compare)
	return out
}

func Compare(a, b v1alpha1.Problem) int {
	return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
}
