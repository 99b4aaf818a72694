package providerapi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/zclconf/go-cty/cty"
)

// PathText formats a path, such as tags["Name"] or rules[0].port. An element of a set is identified by its
// value, which may be secret: it is formatted as […], and cannot be parsed again.
func PathText(path cty.Path) string {
	var b strings.Builder
	for _, s := range path {
		switch s := s.(type) {
		case cty.GetAttrStep:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(NameText(s.Name))
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

// ParsePath parses the output of PathText.
func ParsePath(text string) (cty.Path, error) {
	var path cty.Path
	for rest := text; rest != ""; {
		if rest[0] == '[' {
			step, after, err := parseIndex(rest[1:])
			if err != nil {
				return nil, fmt.Errorf("invalid path %q: %w", text, err)
			}
			path, rest = append(path, step), after
			continue
		}
		if len(path) > 0 {
			if rest[0] != '.' {
				return nil, fmt.Errorf("invalid path %q: expected a dot or a bracket before %q", text, rest)
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
				return nil, fmt.Errorf("invalid path %q: unclosed quote", text)
			}
			after = rest[len(quoted):]
			if name, err = strconv.Unquote(quoted); err != nil {
				return nil, fmt.Errorf("invalid path %q: %w", text, err)
			}
		} else if name == "" {
			return nil, fmt.Errorf("invalid path %q: missing name", text)
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
			return nil, "", errors.New("unclosed quote")
		}
		inner = prefix
	} else if end := strings.IndexByte(text, ']'); end > 0 {
		inner = text[:end]
	}
	rest, closed := strings.CutPrefix(text[len(inner):], "]")
	if !closed {
		return nil, "", errors.New("unclosed or empty bracket")
	}
	if quoted {
		name, err := strconv.Unquote(inner)
		return cty.IndexStep{Key: cty.StringVal(name)}, rest, err
	}
	n, err := cty.ParseNumberVal(inner)
	if err != nil {
		return nil, "", fmt.Errorf("index %s must be a number or quoted", inner)
	}
	return cty.IndexStep{Key: n}, rest, nil
}

// NameText formats a name for a path, or for the left side of an equals sign: quoted if it is not an
// identifier.
func NameText(name string) string {
	for i, c := range name {
		if c != '_' && !unicode.IsLetter(c) && (i == 0 || c != '-' && !unicode.IsDigit(c)) {
			return strconv.Quote(name)
		}
	}
	if name == "" {
		return `""`
	}
	return name
}
