package adopt

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// rawStep is a step of a path as a state file has it.
type rawStep struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
}

func readPaths(raw json.RawMessage) ([]cty.Path, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var all [][]rawStep
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, errors.New("is no list of paths")
	}
	var paths []cty.Path
	for _, steps := range all {
		var path cty.Path
		for _, step := range steps {
			next, err := readStep(step)
			if err != nil {
				return nil, err
			}
			path = append(path, next)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func readStep(step rawStep) (cty.PathStep, error) {
	switch step.Type {
	case "get_attr":
		var name string
		if err := json.Unmarshal(step.Value, &name); err != nil {
			return nil, errors.New("the name in a path is no text")
		}
		return cty.GetAttrStep{Name: name}, nil
	case "index":
		var key struct {
			Value json.RawMessage `json:"value"`
			Type  json.RawMessage `json:"type"`
		}
		if err := json.Unmarshal(step.Value, &key); err != nil {
			return nil, errors.New("the key in a path is no value with its type")
		}
		switch string(key.Type) {
		case `"string"`, `"number"`:
			v, err := ctyjson.Unmarshal(step.Value, cty.DynamicPseudoType)
			if err != nil || v.IsNull() {
				return nil, errors.New("the key in a path is neither a text nor a number")
			}
			return cty.IndexStep{Key: v}, nil
		}
		// Elements of sets are keyed by what they are: OpenTofu marks the set instead, so no file has one.
		return nil, errors.New("the key in a path is neither a text nor a number")
	}
	return nil, fmt.Errorf("a step of a path is of type %q, which is neither get_attr nor index", step.Type)
}

// writePaths is what readPaths reads.
func writePaths(paths []cty.Path) ([][]rawStep, error) {
	var all [][]rawStep
	for _, path := range paths {
		var steps []rawStep
		for _, step := range path {
			var raw rawStep
			var err error
			switch step := step.(type) {
			case cty.GetAttrStep:
				raw.Type = "get_attr"
				raw.Value, err = json.Marshal(step.Name)
			case cty.IndexStep:
				raw.Type = "index"
				raw.Value, err = ctyjson.Marshal(step.Key, cty.DynamicPseudoType)
			}
			if err != nil {
				return nil, err
			}
			steps = append(steps, raw)
		}
		all = append(all, steps)
	}
	return all, nil
}

// PathText is a path as states keep it: tags["Name"], rules[0].port. It is what infra/plan writes and reads.
func PathText(path cty.Path) string {
	var b strings.Builder
	for _, step := range path {
		switch step := step.(type) {
		case cty.GetAttrStep:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(attributeText(step.Name))
		case cty.IndexStep:
			if step.Key.Type() == cty.Number {
				b.WriteString("[" + step.Key.AsBigFloat().Text('f', -1) + "]")
				continue
			}
			b.WriteString("[" + strconv.Quote(step.Key.AsString()) + "]")
		}
	}
	return b.String()
}

// attributeText is a name, in quotes if it would be read as something else.
func attributeText(name string) string {
	for i, r := range name {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || r != '-' && !unicode.IsDigit(r)) {
			return strconv.Quote(name)
		}
	}
	if name == "" {
		return `""`
	}
	return name
}

// isWord tells whether an expression can name an attribute with a dot.
func isWord(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

// parsePath reads what PathText wrote.
func parsePath(text string) (cty.Path, error) {
	var path cty.Path
	for rest := text; rest != ""; {
		if index, ok := strings.CutPrefix(rest, "["); ok {
			key, after, err := parseKey(index)
			if err != nil {
				return nil, fmt.Errorf("%q is no path: %w", text, err)
			}
			path, rest = append(path, cty.IndexStep{Key: key}), after
			continue
		}
		if len(path) > 0 {
			var dotted bool
			if rest, dotted = strings.CutPrefix(rest, "."); !dotted {
				return nil, fmt.Errorf("%q is no path: a dot is missing before %q", text, rest)
			}
		}
		name := rest
		if quoted, err := strconv.QuotedPrefix(rest); err == nil {
			rest = rest[len(quoted):]
			if name, err = strconv.Unquote(quoted); err != nil {
				return nil, fmt.Errorf("%q is no path: %w", text, err)
			}
		} else {
			if end := strings.IndexAny(rest, ".["); end >= 0 {
				name = rest[:end]
			}
			if name == "" {
				return nil, fmt.Errorf("%q is no path: a name is missing", text)
			}
			rest = rest[len(name):]
		}
		path = append(path, cty.GetAttrStep{Name: name})
	}
	return path, nil
}

func parseKey(text string) (cty.Value, string, error) {
	if quoted, err := strconv.QuotedPrefix(text); err == nil {
		key, err := strconv.Unquote(quoted)
		after, closed := strings.CutPrefix(text[len(quoted):], "]")
		if err != nil || !closed {
			return cty.NilVal, "", errors.New("a bracket is not closed")
		}
		return cty.StringVal(key), after, nil
	}
	number, after, closed := strings.Cut(text, "]")
	v, err := cty.ParseNumberVal(number)
	if err != nil || !closed {
		return cty.NilVal, "", fmt.Errorf("[%s is neither a number nor a text in quotes", text)
	}
	return v, after, nil
}

// pathTexts writes paths, sorted, each once.
func pathTexts(paths []cty.Path) []string {
	var texts []string
	for _, path := range paths {
		texts = append(texts, PathText(path))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// step gives the path one step longer, without touching what others hold of it.
func step(path cty.Path, next cty.PathStep) cty.Path { return append(slices.Clip(path), next) }
