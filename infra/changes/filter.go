package changes

import (
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/schema"
)

// filter is which changes are asked for: those that fit everything that is given.
type filter struct {
	// actions are those as which a change is filed: of one that is deferred, plan.Deferred.
	actions []plan.Action
	// types, kinds and names of what a change is about.
	types, kinds, names []string
	// drift asks for what changed outside.
	drift bool
}

// counted tells whether a plan's status knows how many there are.
func (f *filter) counted() bool {
	return len(f.types) == 0 && len(f.kinds) == 0 && len(f.names) == 0 && !f.drift
}

// in is how many changes of a chunk have one of the actions.
func (f *filter) in(chunk *plan.ChunkInfo) (n int) {
	if len(f.actions) == 0 {
		return chunk.Changes
	}
	for i, a := range f.actions {
		if !slices.Contains(f.actions[:i], a) { // one may have been named twice
			n += chunk.Actions[a]
		}
	}
	return n
}

// mayHave tells whether it is worth reading a chunk.
func (f *filter) mayHave(chunk *plan.ChunkInfo) bool {
	if f.in(chunk) == 0 {
		return false
	}
	// Changes are sorted by namespace, and then by type.
	if len(f.types) == 0 || chunk.First.Namespace != chunk.Last.Namespace {
		return true
	}
	return slices.ContainsFunc(f.types, func(t string) bool { return chunk.First.Type <= t && t <= chunk.Last.Type })
}

// has tells whether a change, which has one of the actions, is asked for.
func (f *filter) has(c outline) bool {
	switch {
	case f.drift && c.Drift == nil:
		return false
	case len(f.names) > 0 && !slices.Contains(f.names, c.Address.Name):
		return false
	case len(f.types) > 0 && !slices.Contains(f.types, c.Address.Type):
		return false
	}
	return len(f.kinds) == 0 || slices.ContainsFunc(f.kinds, func(kind string) bool { return isKind(c.Address, kind) })
}

// isKind tells whether a type is served as a kind, by what both are called: with the provider's
// prefix, which a kind keeps if it has to, or without. It takes the kind or its plural, in letters of any size, as kubectl does.
func isKind(a plan.Address, kind string) bool {
	var resources, data []string
	if a.Data {
		data = []string{a.Type}
	} else {
		resources = []string{a.Type}
	}
	for _, name := range schema.Names(resources, data) {
		if strings.EqualFold(kind, name.Kind) || strings.EqualFold(kind, name.Plural) {
			return true
		}
	}
	whole := strings.ReplaceAll(a.Type, "_", "")
	if a.Data {
		whole = "Data" + whole
	}
	return strings.EqualFold(kind, whole)
}
