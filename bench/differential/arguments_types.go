package differential

import (
	"fmt"
	"slices"
	"strings"
)

func (m *argumentBuilder) server() bool {
	network, there := m.idOf("demo_network")
	m.set("network_id", network)
	m.set("zone", m.plainWord())
	m.maybe(30, "image", func() any { return m.plainWord() })
	m.maybe(30, "size", func() any { return pick(m.Generator, "small", "large") })
	m.maybe(20, "copies", func() any { return m.IntN(3) })
	m.maybe(15, "spot", func() any { return m.chance(50) })
	m.maybe(25, "peers", m.idSet)
	m.maybe(25, "placement", func() any { return map[string]any{"rack": m.text(), "slot": m.IntN(4)} })
	m.maybe(35, "interface", func() any {
		return m.list(3, func(i int) any {
			out := map[string]any{"name": fmt.Sprintf("eth%d", m.IntN(3))}
			if m.chance(40) {
				out["mtu"] = 1500 + 500*m.IntN(3)
			}
			return out
		})
	})
	m.maybe(25, "allow", func() any {
		return m.list(3, func(i int) any { return map[string]any{"from": m.plainWord(), "port": 80 + i} })
	})
	m.maybe(25, "volume", func() any {
		out := map[string]any{}
		for range m.IntN(3) {
			out[m.plainWord()] = map[string]any{"size": m.IntN(3), "labels": map[string]any{"k": m.plainWord()}}
		}
		return out
	})
	m.maybe(25, "boot", func() any { return map[string]any{"device": m.plainWord(), "secure": m.chance(50)} })
	m.maybe(40, "disk", func() any {
		return m.list(3, func(int) any {
			out := map[string]any{"size": 1 + m.IntN(3)}
			if m.chance(30) {
				out["kind"] = m.plainWord()
			}
			if m.chance(30) {
				out["partition"] = m.list(2, func(i int) any { return map[string]any{"mount": fmt.Sprintf("/%d", i)} })
			}
			return out
		})
	})
	m.maybe(30, "rule", func() any {
		return m.list(3, func(i int) any {
			out := map[string]any{"port": 80 + 10*i + m.IntN(2)}
			if m.chance(40) {
				out["protocol"] = pick(m.Generator, "tcp", "udp")
			}
			return out
		})
	})
	return there
}

func (m *argumentBuilder) list(most int, make func(i int) any) any {
	out := []any{}
	for i := range m.IntN(most + 1) {
		out = append(out, make(i))
	}
	return out
}

func (m *argumentBuilder) secrets() {
	secret := func() any { return Secret{pick(m.Generator, "hunter2", "correct horse", "s3cret")} }
	m.maybe(50, "secret", secret)
	m.maybe(25, "settings", func() any {
		return Secret{map[string]any{"a": m.plainWord(), "b": m.plainWord()}}
	})
	m.maybe(30, "login", func() any { return map[string]any{"user": m.plainWord(), "password": secret()} })
	if m.chance(40) {
		m.set("password_wo", secret())
		m.set("password_wo_version", 1+m.IntN(3))
	}
	m.maybe(30, "account", func() any {
		return m.list(2, func(int) any { return map[string]any{"user": m.plainWord(), "key": secret()} })
	})
}

func (m *argumentBuilder) collection() {
	point := func(int) any {
		out := map[string]any{"x": m.IntN(3), "y": m.IntN(3), "label": m.plainWord()}
		if m.chance(30) {
			out["y"] = nil
		}
		return out
	}
	words := func() any { return m.list(3, func(int) any { return m.text() }) }
	m.maybe(40, "text", m.text)
	m.maybe(30, "truth", func() any { return m.literalOrReference("bool", m.chance(50)) })
	m.maybe(20, "int32", func() any { return m.IntN(5) - 2 })
	m.maybe(25, "int64", func() any { return m.literalOrReference("number", m.IntN(5)) })
	m.maybe(20, "float32", func() any { return BigNumber("0.5") })
	m.maybe(20, "float64", func() any { return BigNumber(pick(m.Generator, "0.1", "0.0000001", "1e30", "-2.5")) })
	m.maybe(25, "number", func() any {
		return BigNumber(pick(m.Generator, "123456789012345678901234567890.125", "1.5", "0.1", "7"))
	})
	m.maybe(30, "dynamic", func() any {
		return pick[any](m.Generator, "text", m.IntN(5), true, []any{"a", 1}, map[string]any{"k": "v", "n": 2}, m.text())
	})
	m.maybe(35, "list", func() any { return m.literalOrReference("list", words()) })
	m.maybe(35, "set", func() any { return distinct(words()) })
	m.maybe(35, "map", func() any { return m.literalOrReference("map", m.texts()) })
	m.maybe(20, "numbers", func() any { return m.list(3, func(int) any { return m.IntN(9) }) })
	m.maybe(20, "truths", func() any { return map[string]any{"t": true, "f": m.chance(50)} })
	m.maybe(25, "object", func() any { return point(0) })
	m.maybe(25, "objects", func() any { return m.list(2, point) })
	m.maybe(25, "object_set", func() any { return m.list(3, point) })
	m.maybe(20, "object_map", func() any { return map[string]any{"m": point(0)} })
	m.maybe(20, "lists", func() any {
		return m.list(2, func(int) any { return m.list(2, func(int) any { return m.plainWord() }) })
	})
	m.maybe(20, "sets_by_name", func() any {
		return map[string]any{"s": distinct(m.list(3, func(int) any { return m.plainWord() }))}
	})
	m.maybe(30, "chosen", func() any { return m.literalOrReference("list", m.list(2, func(int) any { return m.plainWord() })) })
	fillObjects(m.out)
}

// fillObjects sets the missing fields of every object to null: OpenTofu requires them for object types, Atoll does not.
func fillObjects(out map[string]any) {
	fill := func(v any) {
		if object, is := v.(map[string]any); is {
			for _, name := range []string{"x", "y", "label"} {
				if _, there := object[name]; !there {
					object[name] = nil
				}
			}
		}
	}
	fill(out["object"])
	for _, name := range []string{"objects", "object_set"} {
		list, _ := out[name].([]any)
		for _, v := range list {
			fill(v)
		}
	}
	named, _ := out["object_map"].(map[string]any)
	for _, v := range named {
		fill(v)
	}
}

// faults returns a fault that makes the first attempt of a call fail.
func (m *argumentBuilder) faults() any {
	fault := map[string]any{"call": pick(m.Generator, "create", "update", "delete", "create", "update")}
	fault["when"] = pick(m.Generator, "before", "after", "half", "lost")
	if m.chance(20) {
		fault["times"] = 2
	}
	return []any{fault}
}

func (m *argumentBuilder) demo5Server() bool {
	network, there := m.idOf("demo5_network")
	m.set("network_id", network)
	m.set("zone", m.plainWord())
	m.maybe(30, "size", func() any { return pick(m.Generator, "small", "large") })
	m.maybe(30, "image", func() any { return m.plainWord() })
	m.maybe(40, "capacity", func() any { return m.IntN(4) })
	m.maybe(40, "region", func() any { return pick(m.Generator, "east", "EAST", "West") })
	m.maybe(40, "label", func() any { return pick(m.Generator, "Web", "web", "DB") })
	m.maybe(20, "ratio", func() any { return BigNumber(pick(m.Generator, "0.5", "0.1", "2")) })
	m.maybe(30, "enabled", func() any { return m.chance(50) })
	m.maybe(30, "password", func() any { return Secret{pick(m.Generator, "hunter2", "s3cret")} })
	m.maybe(30, "tags", func() any { return distinct(m.list(3, func(int) any { return m.plainWord() })) })
	m.maybe(40, "ports", func() any { return m.list(3, func(int) any { return 8000 + m.IntN(4) }) })
	m.maybe(15, "fail", func() any { return pick(m.Generator, "create", "made", "update", "delete") })
	m.set("disk", m.nonEmptyList(3, func(int) any {
		out := map[string]any{"size": 1 + m.IntN(3)}
		if m.chance(30) {
			out["kind"] = m.plainWord()
		}
		return out
	}))
	m.maybe(30, "boot", func() any { return []any{map[string]any{"device": m.plainWord(), "secure": m.chance(50)}} })
	m.maybe(30, "rule", func() any {
		return m.list(3, func(i int) any { return map[string]any{"port": 80 + i, "protocol": pick(m.Generator, "tcp", "udp")} })
	})
	return there
}

// nonEmptyList returns a list with at least one element.
func (m *argumentBuilder) nonEmptyList(most int, make func(i int) any) any {
	out := []any{}
	for i := range 1 + m.IntN(most) {
		out = append(out, make(i))
	}
	return out
}

func sortRefs(refs []any) {
	slices.SortFunc(refs, func(a, b any) int {
		return strings.Compare(a.(Ref).Target.String()+"."+a.(Ref).Attribute, b.(Ref).Target.String()+"."+b.(Ref).Attribute)
	})
}
