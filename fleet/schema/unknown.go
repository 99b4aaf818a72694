package schema

import (
	"fmt"
	"maps"
	"slices"
)

// UnknownPaths returns the fields of an object that an API server with this schema would drop: the
// paths of the outermost ones, in order. The fields that every object has (apiVersion, kind,
// metadata) are known. With a nil schema, all fields count as known.
func UnknownPaths(p *Props, object map[string]any) []string {
	if p == nil {
		return nil
	}
	return unknown(location{root: true, defined: p.Definitions}, p, object)
}

func unknown(at location, p *Props, value any) []string {
	var paths []string
	if _, isObject := value.(map[string]any); isObject && p.Ref != nil {
		if named, ok := at.defined[*p.Ref]; ok {
			p = &named
		}
	}
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if (at.root || p.XEmbeddedResource) && isMetaField(name) {
				continue
			}
			paths = append(paths, unknownField(at, p, name, v[name])...)
		}
	case []any:
		items := itemsOf(p)
		for i, x := range v {
			inside := location{path: fmt.Sprintf("%s[%d]", at.path, i), defined: at.defined}
			switch {
			case items != nil:
				paths = append(paths, unknown(inside, items, x)...)
			case !preserves(p):
				paths = append(paths, undescribed(inside, x)...)
			}
		}
	}
	return paths
}

func unknownField(at location, p *Props, name string, value any) []string {
	inside := location{path: at.path + "." + name, defined: at.defined}
	if f := fieldOf(location{}, p, name); f.props != nil {
		return unknown(inside, f.props, value)
	} else if f.rest == keeps {
		return nil
	} else if f.rest == flattens {
		return undescribed(inside, value)
	}
	return []string{inside.path}
}

// undescribed: without a schema, all fields of objects are dropped.
func undescribed(at location, value any) []string {
	var paths []string
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			paths = append(paths, at.path+"."+name)
		}
	case []any:
		for i, x := range v {
			paths = append(paths, undescribed(location{path: fmt.Sprintf("%s[%d]", at.path, i)}, x)...)
		}
	}
	return paths
}
