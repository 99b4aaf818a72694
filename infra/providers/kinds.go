package providers

import (
	"fmt"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

func (r *Registry) current() *table {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table
}

// Groups are those that are served, sorted by name.
func (r *Registry) Groups() []Group {
	t := r.current()
	groups := make([]Group, len(t.groups))
	for i, s := range t.groups {
		groups[i] = s.Group
	}
	return groups
}

// Kind implements infra.Providers.
func (r *Registry) Kind(ref reference.Ref) (*infra.ServedKind, error) {
	name := typeName{ref.Type, ref.Kind == reference.Data}
	t := r.current()
	p, ok := t.types[name]
	switch {
	case ok:
		return p.served()
	case ref.Kind == reference.Kubernetes:
		return nil, fmt.Errorf("%s: %w: it is a Kubernetes object", ref, infra.ErrNotServed)
	}
	what := "resource type"
	if name.data {
		what = "data source"
	}
	if provider, ok := t.inactive(name); ok {
		return nil, fmt.Errorf("%s %s: %w: Provider %s has it, but not among its spec.types; add it there", what, ref.Type, infra.ErrNotServed, provider)
	}
	return nil, fmt.Errorf("%s %s: %w: look whether it is spelt so, and whether the Provider that has it is served (kubectl get providers)", what, ref.Type, infra.ErrNotServed)
}

// ByKind finds what is served by the names that the API has.
func (r *Registry) ByKind(group, kind string) (*infra.ServedKind, bool) {
	return r.find(group, func(s *serving) (int, bool) { at, ok := s.byKind[kind]; return at, ok })
}

// ByPlural is the same by the name of the resource.
func (r *Registry) ByPlural(group, plural string) (*infra.ServedKind, bool) {
	return r.find(group, func(s *serving) (int, bool) { at, ok := s.byPlural[plural]; return at, ok })
}

func (r *Registry) find(group string, which func(*serving) (int, bool)) (*infra.ServedKind, bool) {
	s := r.current().by[group]
	if s == nil {
		return nil, false
	}
	at, ok := which(s)
	if !ok {
		return nil, false
	}
	served, err := place{s, at}.served()
	if err != nil {
		r.config.Log.Error("a provider's schema cannot be read", "provider", s.Group.Provider, "type", s.Kinds[at].Type, "error", err)
		return nil, false
	}
	return served, true
}

// Deleting tells whether the Provider of a group is to be deleted: nothing new is made of its
// types then, or it would never be found unused.
func (r *Registry) Deleting(group string) bool {
	s := r.current().by[group]
	return s != nil && s.deleting
}

func (p place) served() (*infra.ServedKind, error) {
	s, err := p.schemaOf()
	if err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w", p.in.Kinds[p.at].Type, err)
	}
	return &infra.ServedKind{
		Kind:     schema.Kind{Name: p.in.Kinds[p.at], Group: p.in.Group.Name, Schema: s},
		Provider: p.in.Group.Provider, Revision: p.in.candidate.revision,
	}, nil
}
