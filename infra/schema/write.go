package schema

import (
	"math/big"
	"strconv"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Attributes returns status.attributes for a provider's value. It omits nulls, empty blocks, and
// sensitive values: those that are sensitive by the schema, by a mark, or at or below a hidden
// path. Hidden paths are those where the configuration is sensitive, because providers return such
// values unmarked.
func (k Kind) Attributes(v cty.Value, hidden []cty.Path) map[string]any {
	w := &writer{hidden: hidden}
	object, _ := w.block(nil, &k.Schema.Block, v).(map[string]any)
	return object
}

// A writer encodes values that are not sensitive as JSON.
type writer struct{ hidden []cty.Path }

// hides reports whether the value at a path must not be shown. A set with anything hidden in it is
// hidden as a whole: a hidden path identifies an element by its value, which may have changed
// since.
func (w *writer) hides(path cty.Path, v cty.Value) bool {
	if v.HasMark(providerapi.Sensitive) {
		return true
	}
	for _, hidden := range w.hidden {
		if path.HasPrefix(hidden) || v.Type().IsSetType() && len(hidden) > len(path) && hidden.HasPrefix(path) {
			return true
		}
	}
	return false
}

// present removes marks, and reports whether there is a value to show.
func (w *writer) present(path cty.Path, v cty.Value) (cty.Value, bool) {
	if v == cty.NilVal || w.hides(path, v) {
		return cty.NilVal, false
	}
	v, _ = v.Unmark()
	return v, v.IsKnown() && !v.IsNull()
}

func (w *writer) block(path cty.Path, b *providerapi.Block, v cty.Value) any {
	v, there := w.present(path, v)
	if !there || !v.Type().IsObjectType() {
		return nil
	}
	fields := v.AsValueMap()
	object := map[string]any{}
	for i := range b.Attributes {
		a := &b.Attributes[i]
		if value := w.attribute(path.GetAttr(a.Name), a, fields[a.Name]); value != nil {
			object[a.Name] = value
		}
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		one := func(path cty.Path, v cty.Value) any { return w.block(path, &n.Block, v) }
		value := w.nested(path.GetAttr(n.Name), n.Nesting, fields[n.Name], one)
		if !empty(value) {
			object[n.Name] = value
		}
	}
	return object
}

func (w *writer) attribute(path cty.Path, a *providerapi.Attribute, v cty.Value) any {
	if isSensitive(a) {
		return nil
	}
	if a.Nested == nil {
		return w.value(path, v)
	}
	return w.nested(path, a.Nested.Nesting, v, func(path cty.Path, v cty.Value) any {
		v, there := w.present(path, v)
		if !there {
			return nil
		}
		fields := v.AsValueMap()
		object := map[string]any{}
		for i := range a.Nested.Attributes {
			inner := &a.Nested.Attributes[i]
			if value := w.attribute(path.GetAttr(inner.Name), inner, fields[inner.Name]); value != nil {
				object[inner.Name] = value
			}
		}
		return object
	})
}

// nested encodes a nested block or attribute, or a collection of them.
func (w *writer) nested(path cty.Path, nesting providerapi.Nesting, v cty.Value, one func(cty.Path, cty.Value) any) any {
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		return one(path, v)
	}
	v, there := w.present(path, v)
	if !there {
		return nil
	}
	return w.each(path, v, one)
}

// each encodes the elements of a collection, in cty's order. In lists, a hidden element becomes
// null, so that the others keep their positions.
func (w *writer) each(path cty.Path, v cty.Value, one func(cty.Path, cty.Value) any) any {
	ty := v.Type()
	if ty.IsMapType() || ty.IsObjectType() {
		object := map[string]any{}
		for it := v.ElementIterator(); it.Next(); {
			key, element := it.Element()
			step := path.Index(key)
			if ty.IsObjectType() {
				step = path.GetAttr(key.AsString())
			}
			if value := one(step, element); value != nil {
				object[key.AsString()] = value
			}
		}
		return object
	}
	list := []any{}
	for it := v.ElementIterator(); it.Next(); {
		key, element := it.Element()
		list = append(list, one(path.Index(key), element))
	}
	return list
}

// value encodes a value without a nested schema.
func (w *writer) value(path cty.Path, v cty.Value) any {
	v, there := w.present(path, v)
	if !there {
		return nil
	}
	switch ty := v.Type(); {
	case ty == cty.String:
		return v.AsString()
	case ty == cty.Bool:
		return v.True()
	case ty == cty.Number:
		return number(v.AsBigFloat())
	case v.CanIterateElements():
		return w.each(path, v, w.value)
	}
	return nil
}

// number encodes a number as the API can hold it: as a 64-bit integer, as a float that decodes to
// the same number, or else as a string of all its digits.
func number(n *big.Float) any {
	if i, accuracy := n.Int64(); accuracy == big.Exact {
		return i
	}
	f, accuracy := n.Float64()
	shortest := strconv.FormatFloat(f, 'g', -1, 64)
	if !n.IsInt() {
		read, err := cty.ParseNumberVal(shortest)
		if accuracy == big.Exact || err == nil && read.AsBigFloat().Cmp(n) == 0 {
			return f
		}
		return n.Text('f', -1)
	}
	return n.Text('f', 0)
}

func empty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case []any:
		return len(value) == 0
	case map[string]any:
		return len(value) == 0
	}
	return false
}
