package interpret

import (
	"fmt"
	"slices"
	"strings"
)

// A path selects fields of an object: field names, and every for all items of a list.
type path []string

const every = "[*]"

// parsePath parses .spec.listeners[*].nodePort, or .metadata.annotations['a.b/c']. Errors name the
// position.
func parsePath(s string) (path, error) {
	var out path
	for rest := s; rest != ""; {
		at := len(s) - len(rest) + 1
		switch {
		case strings.HasPrefix(rest, every):
			out, rest = append(out, every), rest[len(every):]
		case strings.HasPrefix(rest, "['"):
			name, after, closed := strings.Cut(rest[2:], "']")
			if !closed || name == "" {
				return nil, fmt.Errorf("character %d: ['name'] is empty or not closed", at)
			}
			out, rest = append(out, name), after
		case rest[0] == '.':
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			if end == 0 {
				return nil, fmt.Errorf("character %d: a name is missing after the dot", at)
			}
			out, rest = append(out, rest[1:1+end]), rest[1+end:]
		default:
			return nil, fmt.Errorf("character %d: want .name, ['name'] or [*]", at)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the path is empty: specify a path such as .spec.replicas")
	}
	return out, nil
}

// plain reports whether the path selects one field.
func (p path) plain() bool { return !slices.Contains(p, every) }

// remove deletes the fields from an object.
func (p path) remove(at any) {
	if len(p) == 0 {
		return
	}
	switch v := at.(type) {
	case map[string]any:
		if len(p) == 1 {
			delete(v, p[0])
			return
		}
		p[1:].remove(v[p[0]])
	case []any:
		if p[0] != every {
			return
		}
		for _, item := range v {
			p[1:].remove(item)
		}
	}
}
