package alike

import (
	"fmt"
	"reflect"
	"slices"
)

// arguments makes up all arguments of a resource that may refer to those before it. Not possible is one that needs what
// there is not.
func (g *Generator) arguments(a Address, before []*Resource) (map[string]any, bool) {
	m := &maker{Generator: g, before: before, out: map[string]any{"name": g.fresh("n")}}
	possible := true
	switch a.Type {
	case "demo_network":
		m.set("cidr", fmt.Sprintf("10.%d.0.0/16", g.IntN(4)))
		m.maybe(40, "zone", func() any { return g.plainWord() })
		m.maybe(40, "tags", m.texts)
	case "demo_file":
		m.set("content", m.text())
		m.maybe(30, "mode", func() any { return one(g, "0600", "0644", "0640") })
	case "demo_server":
		possible = m.server()
	case "demo_secret":
		m.secrets()
	case "demo_collection":
		m.collection()
	case "demo_legacy":
		m.maybe(70, "size", func() any {
			size := map[string]any{"gb": g.IntN(5)}
			if g.chance(50) {
				size["unit"] = g.plainWord()
			}
			return size
		})
	case "demo_slow", "demo_private":
		m.maybe(80, "value", m.text)
	case "demo_flaky":
		m.maybe(80, "value", m.text)
		m.maybe(60, "second", m.text)
		m.maybe(55, "faults", m.faults)
	case "demo_identity":
		m.maybe(40, "realm", func() any { return g.plainWord() })
		m.maybe(60, "value", m.text)
	case "demo_unknown":
		m.maybe(80, "seed", m.text)
	case "demo_cross":
		m.maybe(70, "references", m.ids)
		m.maybe(40, "others", m.idSet)
		m.maybe(40, "named", func() any { return map[string]any{"a": m.id(), "b b": m.id()} })
		m.maybe(40, "value", m.text)
		dropNulls(m.out)
	case "demo5_network":
		m.set("cidr", fmt.Sprintf("10.%d.0.0/16", g.IntN(4)))
		m.maybe(40, "mtu", func() any { return 1400 + 100*g.IntN(3) })
		m.maybe(40, "tags", m.texts)
	case "demo5_server":
		possible = m.oldServer()
	case "demo5_legacy":
		m.maybe(60, "size_gb", func() any { return g.IntN(5) })
	}
	return m.out, possible
}

// maker fills in arguments.
type maker struct {
	*Generator
	before []*Resource
	out    map[string]any
}

func (m *maker) set(name string, v any) { m.out[name] = v }

func (m *maker) maybe(of100 int, name string, make func() any) {
	if v := make(); m.chance(of100) {
		m.out[name] = v
	}
}

// dropNulls takes away references to nothing, and the arguments that have none left.
func dropNulls(arguments map[string]any) {
	for name, v := range arguments {
		switch v := v.(type) {
		case nil:
			delete(arguments, name)
		case map[string]any:
			for key := range v {
				if v[key] == nil {
					delete(v, key)
				}
			}
		case []any:
			kept := []any{}
			for _, one := range v {
				if one != nil {
					kept = append(kept, one)
				}
			}
			arguments[name] = kept
		}
	}
}

// id refers to the ID of any other, nil if there is none.
func (m *maker) id() any {
	managed := managedOf(m.before)
	var fit []*Resource
	for _, r := range managed {
		if provider(r.Type) == "demo" {
			fit = append(fit, r)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return Ref{one(m.Generator, fit...).Address, "id"}
}

func (m *maker) ids() any {
	out := []any{}
	for range m.IntN(4) {
		if id := m.id(); id != nil {
			out = append(out, id)
		}
	}
	return out
}

// different has each element once: the API refuses sets that have one twice, where OpenTofu takes it once.
func different(v any) any {
	list, is := v.([]any)
	if !is {
		return v
	}
	out := []any{}
	for _, one := range list {
		if !slices.ContainsFunc(out, func(other any) bool { return reflect.DeepEqual(one, other) }) {
			out = append(out, one)
		}
	}
	return out
}

func (m *maker) idSet() any { return different(m.ids()) }

// idOf refers to one of a type.
func (m *maker) idOf(typ string) (Ref, bool) {
	var fit []*Resource
	for _, r := range m.before {
		if r.Type == typ && !r.Data {
			fit = append(fit, r)
		}
	}
	if len(fit) == 0 {
		return Ref{}, false
	}
	return Ref{one(m.Generator, fit...).Address, "id"}, true
}

// text is a literal, a reference, or both.
func (m *maker) text() any {
	managed := managedOf(m.before)
	if len(managed) == 0 || m.chance(45) {
		return m.word()
	}
	of := one(m.Generator, managed...)
	k := kindOf(of.Type)
	ref := Ref{of.Address, one(m.Generator, k.texts...)}
	switch {
	case len(k.secret) > 0 && m.chance(15):
		return Ref{of.Address, one(m.Generator, k.secret...)}
	case m.chance(50):
		return ref
	}
	text := Text{m.word() + "-", ref}
	if number := k.number; number != "" && m.chance(50) {
		text = append(text, "-", Ref{of.Address, number})
	}
	return append(text, "."+m.plainWord())
}

func (m *maker) texts() any {
	out := map[string]any{}
	for range m.IntN(4) {
		out[one(m.Generator, "a", "b", "with space", "c.d")] = m.text()
	}
	return out
}

// other refers to an attribute of a type that is no text.
func (m *maker) other(typ string) (any, bool) {
	var fit []any
	for _, r := range managedOf(m.before) {
		for name, is := range kindOf(r.Type).others {
			if is == typ {
				fit = append(fit, Ref{r.Address, name})
			}
		}
	}
	sortRefs(fit)
	if len(fit) == 0 {
		return nil, false
	}
	return one(m.Generator, fit...), true
}

// orOther is a reference in some cases in which there is one.
func (m *maker) orOther(typ string, literal any) any {
	if ref, there := m.other(typ); there && m.chance(35) {
		return ref
	}
	return literal
}
