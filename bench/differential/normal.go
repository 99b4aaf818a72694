package differential

import (
	"slices"
	"strconv"
	"strings"
)

// normalized returns the change with the actions and reasons of OpenTofu and Atoll mapped to common names.
func (c Change) normalized() Change {
	if also, found := map[string]string{
		"no-op": "import", "replace": "delete+create",
	}[c.Action]; found {
		c.Action = also
	}
	c.Reason = map[string]string{
		"replace_because_cannot_update": "CannotUpdate", "replace_because_tainted": "Tainted", "replace_by_request": "Requested", "replace_by_triggers": "Triggered",
		"delete_because_no_resource_config": "NotWritten", "read_because_config_unknown": "ConfigUnknown", "read_because_dependency_pending": "DependencyPending",
		"CannotUpdate": "CannotUpdate", "Tainted": "Tainted", "Requested": "Requested", "Triggered": "Triggered",
		"NotWritten": "NotWritten", "ObjectDeleted": "NotWritten", "ConfigUnknown": "ConfigUnknown", "DependencyPending": "DependencyPending",
	}[c.Reason]
	if c.Action == "forget" {
		c.Reason = "" // a resource is only forgotten because it is no longer configured
	}
	if after, is := c.After.(map[string]any); is && len(after) == 0 {
		c.After = nil
	}
	return c
}

func unique(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// setPath sets the value at a path of a plan, such as rules[0].port and tags["Name"], and returns the result.
func setPath(v any, path []string, word string) any {
	if len(path) == 0 {
		return word
	}
	switch v := v.(type) {
	case []any:
		if i, err := strconv.Atoi(path[0]); err == nil && i < len(v) {
			v[i] = setPath(v[i], path[1:], word)
		}
		return v
	case map[string]any:
		v[path[0]] = setPath(v[path[0]], path[1:], word)
		return v
	}
	return map[string]any{path[0]: setPath(nil, path[1:], word)}
}

// splitPath returns the elements of a path.
func splitPath(path string) []string {
	var out []string
	for path != "" {
		switch {
		case path[0] == '.':
			path = path[1:]
		case strings.HasPrefix(path, `["`):
			quoted, err := strconv.QuotedPrefix(path[1:])
			if err != nil {
				return append(out, path)
			}
			key, _ := strconv.Unquote(quoted) // cannot fail: QuotedPrefix has found it
			out, path = append(out, key), path[1+len(quoted)+1:]
		case path[0] == '[':
			index, rest, _ := strings.Cut(path[1:], "]")
			out, path = append(out, index), rest
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			out, path = append(out, path[:end]), path[end:]
		}
	}
	return out
}
