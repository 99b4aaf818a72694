package plan

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// step gives the path one step longer, without touching what others hold of it.
func step(path cty.Path, next cty.PathStep) cty.Path {
	return append(slices.Clip(path), next)
}

func attributeStep(path cty.Path, name string) cty.Path {
	return step(path, cty.GetAttrStep{Name: name})
}

func indexStep(path cty.Path, key cty.Value) cty.Path {
	return step(path, cty.IndexStep{Key: key})
}

// PathText is a path as one writes it: tags["Name"], rules[0].port. An element of a
// set is its value, which may be secret: it is written as […], and cannot be parsed again.
func PathText(path cty.Path) string {
	var b strings.Builder
	for _, s := range path {
		switch s := s.(type) {
		case cty.GetAttrStep:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(key(s.Name))
		case cty.IndexStep:
			b.WriteString(indexText(s.Key))
		}
	}
	return b.String()
}

func indexText(key cty.Value) string {
	key, _ = key.Unmark()
	switch {
	case key.IsNull() || !key.IsKnown():
	case key.Type() == cty.Number:
		return "[" + key.AsBigFloat().Text('f', -1) + "]"
	case key.Type() == cty.String:
		return "[" + strconv.Quote(key.AsString()) + "]"
	}
	return "[…]"
}

// ParsePath reads what PathText wrote.
func ParsePath(text string) (cty.Path, error) {
	var path cty.Path
	for rest := text; rest != ""; {
		if rest[0] == '[' {
			step, after, err := parseIndex(rest[1:])
			if err != nil {
				return nil, fmt.Errorf("%q is no path: %w", text, err)
			}
			path, rest = append(path, step), after
			continue
		}
		if len(path) > 0 {
			if rest[0] != '.' {
				return nil, fmt.Errorf("%q is no path: a dot or a bracket should be before %q", text, rest)
			}
			rest = rest[1:]
		}
		name := rest
		if end := strings.IndexAny(rest, ".["); end >= 0 {
			name = rest[:end]
		}
		after := rest[len(name):]
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, fmt.Errorf("%q is no path: a quote is not closed", text)
			}
			after = rest[len(quoted):]
			if name, err = strconv.Unquote(quoted); err != nil {
				return nil, fmt.Errorf("%q is no path: %w", text, err)
			}
		} else if name == "" {
			return nil, fmt.Errorf("%q is no path: a name is missing", text)
		}
		path, rest = append(path, cty.GetAttrStep{Name: name}), after
	}
	return path, nil
}

func parseIndex(text string) (cty.PathStep, string, error) {
	inner, quoted := "", strings.HasPrefix(text, `"`)
	if quoted {
		prefix, err := strconv.QuotedPrefix(text)
		if err != nil {
			return nil, "", errors.New("a quote is not closed")
		}
		inner = prefix
	} else if end := strings.IndexByte(text, ']'); end > 0 {
		inner = text[:end]
	}
	rest, closed := strings.CutPrefix(text[len(inner):], "]")
	if !closed {
		return nil, "", errors.New("a bracket is not closed, or empty")
	}
	if quoted {
		name, err := strconv.Unquote(inner)
		return cty.IndexStep{Key: cty.StringVal(name)}, rest, err
	}
	n, err := cty.ParseNumberVal(inner)
	if err != nil {
		return nil, "", fmt.Errorf("%s is neither a number nor in quotes", inner)
	}
	return cty.IndexStep{Key: n}, rest, nil
}

// attributeAt is the attribute of the schema that the path leads to: nil if it leads to a
// block, or to a part of an attribute of which the schema says no more.
func attributeAt(block *contract.Block, path cty.Path) *contract.Attribute {
	attributes, blocks := block.Attributes, block.Blocks
	for i, s := range path {
		name, ok := s.(cty.GetAttrStep)
		if !ok {
			continue
		}
		here := contract.Block{Attributes: attributes, Blocks: blocks}
		if a := here.Attribute(name.Name); a != nil {
			if i == len(path)-1 {
				return a
			}
			if a.Nested == nil {
				return nil
			}
			attributes, blocks = a.Nested.Attributes, nil
			continue
		}
		nested := here.Nested(name.Name)
		if nested == nil {
			return nil
		}
		attributes, blocks = nested.Block.Attributes, nested.Block.Blocks
	}
	return nil
}

// sensitiveBySchema tells whether the schema knows that what is at the path is secret.
func sensitiveBySchema(block *contract.Block, path cty.Path) bool {
	for i := range path {
		if a := attributeAt(block, path[:i+1]); a != nil && (a.Sensitive || a.WriteOnly) {
			return true
		}
	}
	return false
}

// below tells whether path is prefix, or within what is at prefix.
func below(path, prefix cty.Path) bool {
	return len(path) >= len(prefix) && path[:len(prefix)].Equals(prefix)
}

// hasPath tells whether path is among paths.
func hasPath(paths []cty.Path, path cty.Path) bool {
	return slices.ContainsFunc(paths, path.Equals)
}

// withoutMarks takes the marks off a value, and says where they were. An element of a set cannot
// be marked: the set is.
func withoutMarks(v cty.Value) (cty.Value, []cty.Path) {
	if !v.ContainsMarked() {
		return v, nil
	}
	v, marks := v.UnmarkDeepWithPaths()
	paths := make([]cty.Path, 0, len(marks))
	for _, m := range marks {
		if !hasPath(paths, m.Path) {
			paths = append(paths, m.Path)
		}
	}
	slices.SortFunc(paths, func(a, b cty.Path) int { return strings.Compare(PathText(a), PathText(b)) })
	return v, paths
}

// samePaths compares as sets.
func samePaths(a, b []cty.Path) bool {
	for _, p := range a {
		if !hasPath(b, p) {
			return false
		}
	}
	for _, p := range b {
		if !hasPath(a, p) {
			return false
		}
	}
	return true
}
