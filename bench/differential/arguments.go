package differential

import (
	"fmt"
	"reflect"
	"slices"
)

// arguments generates all arguments of a resource, which may refer to the resources before it. It returns false if the
// resource requires one that does not exist.
func (g *Generator) arguments(a Address, before []*Resource) (map[string]any, bool) {
	m := &argumentBuilder{Generator: g, before: before, out: map[string]any{"name": g.newName("n")}}
	possible := true
	switch a.Type {
	case "demo_network":
		m.set("cidr", fmt.Sprintf("10.%d.0.0/16", g.IntN(4)))
		m.maybe(40, "zone", func() any { return g.plainWord() })
		m.maybe(40, "tags", m.texts)
	case "demo_file":
		m.set("content", m.text())
		m.maybe(30, "mode", func() any { return pick(g, "0600", "0644", "0640") })
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
		possible = m.demo5Server()
	case "demo5_legacy":
		m.maybe(60, "size_gb", func() any { return g.IntN(5) })
	}
	return m.out, possible
}

// argumentBuilder generates the arguments of one resource.
type argumentBuilder struct {
	*Generator
	before []*Resource
	out    map[string]any
}

func (m *argumentBuilder) set(name string, v any) { m.out[name] = v }

func (m *argumentBuilder) maybe(percent int, name string, make func() any) {
	if v := make(); m.chance(percent) {
		m.out[name] = v
	}
}

// dropNulls removes references that found no resource.
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

// id returns a reference to the ID of any resource before, or nil if none exists.
func (m *argumentBuilder) id() any {
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
	return Ref{pick(m.Generator, fit...).Address, "id"}
}

func (m *argumentBuilder) ids() any {
	out := []any{}
	for range m.IntN(4) {
		if id := m.id(); id != nil {
			out = append(out, id)
		}
	}
	return out
}

// distinct removes duplicate elements: the API rejects a set with duplicates, where OpenTofu merges them.
func distinct(v any) any {
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

func (m *argumentBuilder) idSet() any { return distinct(m.ids()) }

// idOf returns a reference to the ID of a resource of a type.
func (m *argumentBuilder) idOf(typ string) (Ref, bool) {
	var fit []*Resource
	for _, r := range m.before {
		if r.Type == typ && !r.Data {
			fit = append(fit, r)
		}
	}
	if len(fit) == 0 {
		return Ref{}, false
	}
	return Ref{pick(m.Generator, fit...).Address, "id"}, true
}

// text returns a literal, a reference, or a template of both.
func (m *argumentBuilder) text() any {
	managed := managedOf(m.before)
	if len(managed) == 0 || m.chance(45) {
		return m.word()
	}
	of := pick(m.Generator, managed...)
	k := kindOf(of.Type)
	ref := Ref{of.Address, pick(m.Generator, k.texts...)}
	switch {
	case len(k.secret) > 0 && m.chance(15):
		return Ref{of.Address, pick(m.Generator, k.secret...)}
	case m.chance(50):
		return ref
	}
	text := Text{m.word() + "-", ref}
	if number := k.number; number != "" && m.chance(50) {
		text = append(text, "-", Ref{of.Address, number})
	}
	return append(text, "."+m.plainWord())
}

func (m *argumentBuilder) texts() any {
	out := map[string]any{}
	for range m.IntN(4) {
		out[pick(m.Generator, "a", "b", "with space", "c.d")] = m.text()
	}
	return out
}

// nonTextReference returns a reference to an attribute of the given type, which is not a string.
func (m *argumentBuilder) nonTextReference(typ string) (any, bool) {
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
	return pick(m.Generator, fit...), true
}

// literalOrReference returns the literal, or sometimes a reference of the same type if one is possible.
func (m *argumentBuilder) literalOrReference(typ string, literal any) any {
	if ref, there := m.nonTextReference(typ); there && m.chance(35) {
		return ref
	}
	return literal
}
