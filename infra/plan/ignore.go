package plan

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// ignores tells whether there is anything to be ignored.
func (l *Lifecycle) ignores() bool { return l.IgnoreAll || len(l.IgnoreChanges) > 0 }

// ignoring gives the configuration with the arguments that are to be ignored as they are in
// the prior state. To create something, nothing is ignored. Neither value has marks.
//
// If the block is nil, the value is a plan, which can have computed values.
func (l *Lifecycle) ignoring(block *contract.Block, prior, config cty.Value) cty.Value {
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

// onlyArguments leaves out what nobody can write: a configuration with it would be refused.
func onlyArguments(block *contract.Block, prior cty.Value) cty.Value {
	out, err := cty.Transform(prior, func(path cty.Path, v cty.Value) (cty.Value, error) {
		if a := attributeAt(block, path); a != nil && len(path) > 0 && a.Computed && !a.Optional {
			if _, named := path[len(path)-1].(cty.GetAttrStep); named {
				return cty.NullVal(v.Type()), nil
			}
		}
		return v, nil
	})
	if err != nil {
		return prior // the function above has no errors
	}
	return out
}

// ignorePath puts back one argument. The last step may be a key of a map, and of a map alone
// it may be one that only one of both has.
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
			// As OpenTofu has it: a map of which nothing is known yet is not ignored.
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

// replaceAt gives the value with what is at the path changed. A path that leads nowhere
// changes nothing.
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
	return like(v, keys, elements)
}

// ignoredMarks gives the paths of what is secret after ignoring: what is put back
// is as secret as it was.
func (l *Lifecycle) ignoredMarks(creating bool, written, before []cty.Path) []cty.Path {
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
