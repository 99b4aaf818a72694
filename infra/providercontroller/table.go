package providercontroller

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// Group is the API group of a Provider. It is immutable.
type Group struct {
	Provider string
	Name     string
	// Revision changes with everything that is known about its kinds.
	Revision string
	Kinds    []schema.Name // sorted by kind
}

// typeName is the name of a type in expressions.
type typeName struct {
	name string
	data bool
}

// candidate is a Provider whose types are known.
type candidate struct {
	name     string
	created  time.Time
	patterns []string
	deleting bool
	catalog  providerapi.Catalog
	// all are the names of all types in the catalog.
	all []schema.Name
	// revision identifies the installed package, and source is the address of its provider.
	revision, source string
}

// servedGroup is a group with indexes of its kinds.
type servedGroup struct {
	Group
	candidate
	byKind, byPlural map[string]int
	resources, data  int
	// unmatched are the patterns that match no type.
	unmatched []string
}

// typeRef is one type of a group.
type typeRef struct {
	group *servedGroup
	index int
}

// denial is the reason why the types of a Provider are not served.
type denial struct{ reason, message string }

// table is the set of served types at one time. It is immutable.
type table struct {
	groups  []*servedGroup // sorted by name
	byGroup map[string]*servedGroup
	types   map[typeName]typeRef
	denied  map[string]denial // by Provider
}

// newTable decides what to serve. If several Providers have a type, the oldest one serves it,
// because expressions name types without their Provider. The other Providers are not served at all:
// half of a provider would be a bigger surprise.
func newTable(candidates []candidate) *table {
	t := &table{byGroup: map[string]*servedGroup{}, types: map[typeName]typeRef{}, denied: map[string]denial{}}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.name, b.name))
	})
	for _, c := range candidates {
		s := c.serve()
		if why, ok := t.denies(s); ok {
			t.denied[c.name] = why
			continue
		}
		t.groups = append(t.groups, s)
		t.byGroup[s.Group.Name] = s
		for i, n := range s.Kinds {
			t.types[typeName{n.Type, n.Data}] = typeRef{s, i}
		}
	}
	slices.SortFunc(t.groups, func(a, b *servedGroup) int { return cmp.Compare(a.Group.Name, b.Group.Name) })
	return t
}

// serve selects types. Names are assigned over all types of the provider, so that a kind's name
// does not depend on the selection.
func (c candidate) serve() *servedGroup {
	s := &servedGroup{
		candidate: c, byKind: map[string]int{}, byPlural: map[string]int{},
		Group: Group{Provider: c.name, Name: schema.Group(c.name)},
	}
	used := make([]bool, len(c.patterns))
	for _, n := range c.all {
		selected := false
		for i, pattern := range c.patterns {
			if matches(pattern, n.Type) {
				used[i], selected = true, true
			}
		}
		if !selected {
			continue
		}
		s.byKind[n.Kind], s.byPlural[n.Plural] = len(s.Kinds), len(s.Kinds)
		s.Kinds = append(s.Kinds, n)
		if n.Data {
			s.data++
		} else {
			s.resources++
		}
	}
	for i, pattern := range c.patterns {
		if !used[i] && pattern != everything {
			s.unmatched = append(s.unmatched, pattern)
		}
	}
	s.Group.Revision = s.groupRevision()
	return s
}

const everything = "*"

// matches reports whether a pattern matches a type: its name, or a prefix followed by *.
func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// kindsFormat must change when a version of Atoll maps the same schemas to other kinds.
const kindsFormat = "1"

// groupRevision is the same on all servers that serve the same types.
func (s *servedGroup) groupRevision() string {
	hash := sha256.New()
	_, _ = io.WriteString(hash, kindsFormat+"\n"+s.candidate.revision+"\n") // a hash returns no errors
	for _, n := range s.Kinds {
		_, _ = fmt.Fprintf(hash, "%s %t\n", n.Type, n.Data)
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

func (t *table) denies(s *servedGroup) (denial, bool) {
	var taken []string
	by := ""
	for _, n := range s.Kinds {
		if other, ok := t.types[typeName{n.Type, n.Data}]; ok {
			taken = append(taken, n.Type)
			by = other.group.Group.Provider
		}
	}
	switch {
	case len(taken) > 0:
		slices.Sort(taken)
		taken = slices.Compact(taken)
		return denial{v1alpha1.ReasonTypeTaken, fmt.Sprintf(
			"the older Provider %s already serves %s, and a type can have only one Provider: narrow spec.types of %s or of %s",
			by, summarize(taken), s.Group.Provider, by)}, true
	case len(s.Kinds) == 0:
		return denial{v1alpha1.ReasonNoTypes, fmt.Sprintf(
			"spec.types (%s) matches no type; the provider has %s: list the types that you need, or prefixes with a *",
			summarize(s.patterns), summarize(typesOf(s.all)))}, true
	}
	return denial{}, false
}

func typesOf(names []schema.Name) []string {
	types := make([]string, len(names))
	for i, n := range names {
		types[i] = n.Type
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// maxNames bounds the names in a message.
const maxNames = 5

// summarize lists names, but at most maxNames of them.
func summarize(names []string) string {
	switch more := len(names) - maxNames; {
	case len(names) == 0:
		return "no types"
	case more > 1:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// unselected returns a Provider that has the type, but whose spec.types does not select it.
func (t *table) unselected(name typeName) (provider string, ok bool) {
	for _, s := range t.groups {
		if slices.ContainsFunc(s.all, func(n schema.Name) bool { return n.Type == name.name && n.Data == name.data }) {
			return s.Group.Provider, true
		}
	}
	return "", false
}

// schemaOf returns the schema of the type.
func (p typeRef) schemaOf() (*providerapi.Schema, error) {
	n := p.group.Kinds[p.index]
	if n.Data {
		return p.group.catalog.DataSource(n.Type)
	}
	return p.group.catalog.Resource(n.Type)
}
