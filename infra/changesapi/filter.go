package changesapi

import (
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/infra/schema"
)

// filter selects the changes that match all given criteria.
type filter struct {
	// actions are the actions by which changes are counted. A deferred change counts as
	// change.Deferred.
	actions []change.Action
	// types, kinds and names are those of the resource.
	types, kinds, names []string
	// drift selects changes made outside Atoll.
	drift bool
}

// hasCount reports whether the plan's status has the number of matching changes.
func (f *filter) hasCount() bool {
	return len(f.types) == 0 && len(f.kinds) == 0 && len(f.names) == 0 && !f.drift
}

// count returns the number of changes in a chunk that have one of the actions.
func (f *filter) count(chunk *planstore.ChunkInfo) (n int) {
	if len(f.actions) == 0 {
		return chunk.Changes
	}
	for i, a := range f.actions {
		if !slices.Contains(f.actions[:i], a) { // an action may be listed twice
			n += chunk.Actions[a]
		}
	}
	return n
}

// mayMatch reports whether a chunk can contain matching changes.
func (f *filter) mayMatch(chunk *planstore.ChunkInfo) bool {
	if f.count(chunk) == 0 {
		return false
	}
	// Changes are sorted by namespace, then by type.
	if len(f.types) == 0 || chunk.First.Namespace != chunk.Last.Namespace {
		return true
	}
	return slices.ContainsFunc(f.types, func(t string) bool { return chunk.First.Type <= t && t <= chunk.Last.Type })
}

// matches reports whether a change, which has one of the actions, matches.
func (f *filter) matches(c changeHeader) bool {
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

// isKind reports whether a type is served as a kind, judging by their names. A kind keeps the
// provider's prefix only if it must, so that both forms match. It accepts the kind or its plural in
// any case, like kubectl.
func isKind(a change.Address, kind string) bool {
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
