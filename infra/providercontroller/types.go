package providercontroller

import (
	"fmt"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/schema"
)

func (r *Registry) current() *table {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table
}

// Groups returns the served groups, sorted by name.
func (r *Registry) Groups() []Group {
	t := r.current()
	groups := make([]Group, len(t.groups))
	for i, s := range t.groups {
		groups[i] = s.Group
	}
	return groups
}

// Kind implements infra.Providers.
func (r *Registry) Kind(ref expr.Ref) (*infra.ServedKind, error) {
	name := typeName{ref.Type, ref.Kind == expr.Data}
	t := r.current()
	p, ok := t.types[name]
	switch {
	case ok:
		return p.served()
	case ref.Kind == expr.Kubernetes:
		return nil, fmt.Errorf("%s: %w: it is a Kubernetes object, not a provider type", ref, infra.ErrNotServed)
	}
	what := "resource type"
	if name.data {
		what = "data source"
	}
	if provider, ok := t.unselected(name); ok {
		return nil, fmt.Errorf("%s %s: %w: Provider %s has it, but its spec.types does not select it; add it there", what, ref.Type, infra.ErrNotServed, provider)
	}
	return nil, fmt.Errorf("%s %s: %w: check the spelling, and that its Provider is served (kubectl get providers)", what, ref.Type, infra.ErrNotServed)
}

// ByKind returns the served type with a group and kind.
func (r *Registry) ByKind(group, kind string) (*infra.ServedKind, bool) {
	return r.find(group, func(s *servedGroup) (int, bool) { at, ok := s.byKind[kind]; return at, ok })
}

// ByPlural returns the served type with a group and plural resource name.
func (r *Registry) ByPlural(group, plural string) (*infra.ServedKind, bool) {
	return r.find(group, func(s *servedGroup) (int, bool) { at, ok := s.byPlural[plural]; return at, ok })
}

func (r *Registry) find(group string, which func(*servedGroup) (int, bool)) (*infra.ServedKind, bool) {
	s := r.current().byGroup[group]
	if s == nil {
		return nil, false
	}
	at, ok := which(s)
	if !ok {
		return nil, false
	}
	served, err := typeRef{s, at}.served()
	if err != nil {
		r.config.Log.Error("read provider schema failed", "provider", s.Group.Provider, "type", s.Kinds[at].Type, "error", err)
		return nil, false
	}
	return served, true
}

// Deleting reports whether the Provider of a group is being deleted. Its types then accept no new
// objects, or the Provider would stay in use forever.
func (r *Registry) Deleting(group string) bool {
	s := r.current().byGroup[group]
	return s != nil && s.deleting
}

func (p typeRef) served() (*infra.ServedKind, error) {
	s, err := p.schemaOf()
	if err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w", p.group.Kinds[p.index].Type, err)
	}
	return &infra.ServedKind{
		Kind:     schema.Kind{Name: p.group.Kinds[p.index], Group: p.group.Group.Name, Schema: s},
		Provider: p.group.Group.Provider, Source: p.group.source, Revision: p.group.candidate.revision,
	}, nil
}
