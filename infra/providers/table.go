package providers

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
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/schema"
)

// Group is what a Provider serves. Nobody changes one.
type Group struct {
	Provider string
	Name     string
	// Revision of all that there is to know of its kinds.
	Revision string
	Kinds    []schema.Name // sorted by kind
}

// typeName is what expressions call a type.
type typeName struct {
	name string
	data bool
}

// candidate is a Provider of which is known what it has.
type candidate struct {
	name     string
	created  time.Time
	patterns []string
	deleting bool
	catalog  contract.Catalog
	// all are the names of all types in the catalog.
	all []schema.Name
	// revision of what is installed.
	revision string
}

// serving is a group, with what it takes to find its kinds.
type serving struct {
	Group
	candidate
	byKind, byPlural map[string]int
	resources, data  int
	// unmatched are the patterns that no type has.
	unmatched []string
}

// place is one type within a group.
type place struct {
	in *serving
	at int
}

// denial is why the types of a Provider are not served.
type denial struct{ reason, message string }

// table is which types are served, at one time. It is not changed once made.
type table struct {
	groups []*serving // sorted by name
	by     map[string]*serving
	types  map[typeName]place
	denied map[string]denial // by Provider
}

// newTable decides what to serve. A type that several Providers have is the oldest one's, because
// expressions name types without saying whose; the others are not served at all: half of a provider
// would surprise more.
func newTable(candidates []candidate) *table {
	t := &table{by: map[string]*serving{}, types: map[typeName]place{}, denied: map[string]denial{}}
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
		t.by[s.Group.Name] = s
		for i, n := range s.Kinds {
			t.types[typeName{n.Type, n.Data}] = place{s, i}
		}
	}
	slices.SortFunc(t.groups, func(a, b *serving) int { return cmp.Compare(a.Group.Name, b.Group.Name) })
	return t
}

// serve selects types. Their names come of all types that there are, so that none is
// called otherwise because another is selected.
func (c candidate) serve() *serving {
	s := &serving{
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

// matches tells whether a type is meant by a pattern: its name, or the beginning of it and a *.
func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// formOfKinds changes when the same schemas make other kinds than in an earlier version of Atoll.
const formOfKinds = "1"

// groupRevision is the same in all servers that serve the same.
func (s *serving) groupRevision() string {
	hash := sha256.New()
	_, _ = io.WriteString(hash, formOfKinds+"\n"+s.candidate.revision+"\n") // a hash takes anything
	for _, n := range s.Kinds {
		_, _ = fmt.Fprintf(hash, "%s %t\n", n.Type, n.Data)
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

func (t *table) denies(s *serving) (denial, bool) {
	var taken []string
	by := ""
	for _, n := range s.Kinds {
		if other, ok := t.types[typeName{n.Type, n.Data}]; ok {
			taken = append(taken, n.Type)
			by = other.in.Group.Provider
		}
	}
	switch {
	case len(taken) > 0:
		slices.Sort(taken)
		taken = slices.Compact(taken)
		return denial{v1alpha1.ReasonTypeTaken, fmt.Sprintf(
			"Provider %s, which is older, serves %s already, and a type can have one Provider only: narrow spec.types of %s or of %s",
			by, some(taken), s.Group.Provider, by)}, true
	case len(s.Kinds) == 0:
		return denial{v1alpha1.ReasonNoTypes, fmt.Sprintf(
			"none of its types is selected by spec.types (%s); it has %s: name those that are needed, or prefixes with a *",
			some(s.patterns), some(typesOf(s.all)))}, true
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

// shownNames is how many names stand in a message.
const shownNames = 5

// some lists names, but not hundreds of them.
func some(names []string) string {
	switch more := len(names) - shownNames; {
	case len(names) == 0:
		return "nothing"
	case more > 1:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shownNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// inactive finds a Provider that has a type which spec.types does not select.
func (t *table) inactive(name typeName) (provider string, ok bool) {
	for _, s := range t.groups {
		if slices.ContainsFunc(s.all, func(n schema.Name) bool { return n.Type == name.name && n.Data == name.data }) {
			return s.Group.Provider, true
		}
	}
	return "", false
}

// schemaOf reads the schema of a type.
func (p place) schemaOf() (*contract.Schema, error) {
	n := p.in.Kinds[p.at]
	if n.Data {
		return p.in.catalog.DataSource(n.Type)
	}
	return p.in.catalog.Resource(n.Type)
}
