package schema

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// ParsePath parses a path into a value, such as tags["env"] or ingress[0].port. It begins with a
// name.
func ParsePath(text string) (cty.Path, error) {
	var path cty.Path
	rest := text
	for first := true; rest != "" || first; first = false {
		var step cty.PathStep
		var err error
		switch {
		case !first && rest[0] == '[':
			step, rest, err = parseIndex(rest[1:])
		case !first && rest[0] == '.':
			step, rest, err = parseName(rest[1:])
		case first:
			step, rest, err = parseName(rest)
		default:
			err = fmt.Errorf("%q is neither .name nor [index]", rest)
		}
		if err != nil {
			return nil, fmt.Errorf(`%w; a path looks like tags["env"] or ingress[0].port`, err)
		}
		path = append(path, step)
	}
	return path, nil
}

func parseName(text string) (cty.PathStep, string, error) {
	end := strings.IndexAny(text, ".[")
	if end < 0 {
		end = len(text)
	}
	if end == 0 || strings.ContainsAny(text[:end], "]\"' ${}") {
		return nil, "", fmt.Errorf("missing name at %q", text)
	}
	return cty.GetAttrStep{Name: text[:end]}, text[end:], nil
}

func parseIndex(text string) (cty.PathStep, string, error) {
	if quoted, err := strconv.QuotedPrefix(text); err == nil && strings.HasPrefix(text[len(quoted):], "]") {
		key, err := strconv.Unquote(quoted)
		return cty.IndexStep{Key: cty.StringVal(key)}, text[len(quoted)+1:], err
	}
	number, rest, closed := strings.Cut(text, "]")
	index, err := strconv.ParseUint(number, 10, 31)
	if err != nil || !closed {
		return nil, "", fmt.Errorf(`[%s is neither an index nor a key in quotes`, text)
	}
	return cty.IndexStep{Key: cty.NumberUIntVal(index)}, rest, nil
}
