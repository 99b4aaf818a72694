package decide

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// ignores reports whether any argument is ignored.
func (l *Lifecycle) ignores() bool { return l.IgnoreAll || len(l.IgnoreChanges) > 0 }

// withIgnored returns the configuration with the ignored arguments replaced by their prior values.
// When a resource is created, nothing is ignored. Neither value has marks.
//
// If block is nil, config is a planned value, which can have computed values.
func (l *Lifecycle) withIgnored(block *providerapi.Block, prior, config cty.Value) cty.Value {
	switch {
	case prior.IsNull() || config.IsNull():
		return config
	case l.IgnoreAll && block == nil:
		return prior
	case l.IgnoreAll:
		return onlyArguments(block, prior)
	}
	out := config
	for _, path := range l.IgnoreChanges {
		if len(path) > 0 {
			out = ignorePath(out, prior, config, path)
		}
	}
	return out
}

// onlyArguments removes read-only attributes, which the provider would reject in a configuration.
func onlyArguments(block *providerapi.Block, prior cty.Value) cty.Value {
	out, err := cty.Transform(prior, func(path cty.Path, v cty.Value) (cty.Value, error) {
		if a := attributeAt(block, path); a != nil && len(path) > 0 && a.Computed && !a.Optional {
			if _, named := path[len(path)-1].(cty.GetAttrStep); named {
				return cty.NullVal(v.Type()), nil
			}
		}
		return v, nil
	})
	if err != nil {
		return prior // the function above returns no errors
	}
	return out
}

// ignorePath restores the prior value of one argument. The last step may be the key of a map. Only
// such a key may be missing on one side.
func ignorePath(out, prior, config cty.Value, path cty.Path) cty.Value {
	key := cty.NilVal
	if last, ok := path[len(path)-1].(cty.IndexStep); ok && last.Key.Type() == cty.String {
		path, key = path[:len(path)-1], last.Key
	}
	old, err := path.Apply(prior)
	if err != nil {
		return out
	}
	if written, err := path.Apply(config); err != nil || written.RawEquals(old) {
		return out
	}
	return replaceAt(out, path, func(v cty.Value) cty.Value {
		switch {
		case !v.Type().IsMapType():
			return old
		case !v.IsKnown():
			// As in OpenTofu, a wholly unknown map is not ignored.
			return v
		case key == cty.NilVal:
			return old
		}
		return ignoreKey(v, old, key)
	})
}

func ignoreKey(v, old, key cty.Value) cty.Value {
	of := map[string]cty.Value{}
	if length(v) > 0 {
		of = v.AsValueMap()
	}
	if was, found := element(old, key); found {
		of[key.AsString()] = was
	} else {
		delete(of, key.AsString())
	}
	switch {
	case len(of) > 0:
		return cty.MapVal(of)
	case v.IsNull():
		return v
	}
	return cty.MapValEmpty(v.Type().ElementType())
}

// replaceAt returns v with the value at the path changed. A path that does not exist changes
// nothing.
func replaceAt(v cty.Value, path cty.Path, change func(cty.Value) cty.Value) cty.Value {
	if len(path) == 0 {
		return change(v)
	}
	if v.IsNull() || !v.IsKnown() {
		return v
	}
	var at cty.Value
	switch s := path[0].(type) {
	case cty.GetAttrStep:
		if !v.Type().IsObjectType() || !v.Type().HasAttribute(s.Name) {
			return v
		}
		of := v.AsValueMap()
		of[s.Name] = replaceAt(of[s.Name], path[1:], change)
		return cty.ObjectVal(of)
	case cty.IndexStep:
		at = s.Key
	}
	ty := v.Type()
	if !ty.IsListType() && !ty.IsTupleType() && !ty.IsMapType() || !v.HasIndex(at).True() {
		return v
	}
	var keys, elements []cty.Value
	for it := v.ElementIterator(); it.Next(); {
		key, one := it.Element()
		if key.RawEquals(at) {
			one = replaceAt(one, path[1:], change)
		}
		keys, elements = append(keys, key), append(elements, one)
	}
	return collectionLike(v, keys, elements)
}

// sensitiveAfterIgnore returns the sensitive paths after ignored arguments are restored: a restored
// value keeps its prior sensitivity.
func (l *Lifecycle) sensitiveAfterIgnore(creating bool, written, before []cty.Path) []cty.Path {
	if creating || !l.IgnoreAll && len(l.IgnoreChanges) == 0 {
		return written
	}
	ignored := func(path cty.Path) bool {
		if l.IgnoreAll {
			return true
		}
		for _, p := range l.IgnoreChanges {
			if below(path, p) {
				return true
			}
		}
		return false
	}
	var out []cty.Path
	for _, p := range written {
		if !ignored(p) {
			out = append(out, p)
		}
	}
	for _, p := range before {
		if ignored(p) && !hasPath(out, p) {
			out = append(out, p)
		}
	}
	return out
}
