package expr

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/zclconf/go-cty/cty"
)

// valuePath is the path by which a value was reached, for errors.
type valuePath struct {
	parent *valuePath
	name   string // name of a step; the reference for the first one
	index  int    // index of an element, if the name is empty
	// public marks the reference itself: its attributes are those of its type and not secret.
	public bool
}

func (t *valuePath) String() string {
	switch {
	case t.parent == nil:
		return t.name
	case t.name == "":
		return t.parent.String() + "[" + strconv.Itoa(t.index) + "]"
	}
	return t.parent.String() + "." + t.name
}

// errorValue returns an error whose text contains no value.
func errorValue(format string, args ...any) ref.Val {
	return types.WrapErr(&problem{text: fmt.Sprintf(format, args...), public: true})
}

// errorAt returns an error about the value at a path.
func errorAt(by *valuePath, format string, args ...any) ref.Val {
	return types.WrapErr(&problem{text: by.String() + " " + fmt.Sprintf(format, args...), public: by.public})
}

// toCEL converts a cty value to CEL, and records its marks.
func (e *evaluation) toCEL(v cty.Value, by *valuePath) ref.Val {
	v, marks := v.Unmark()
	e.addMarks(marks)
	ty := v.Type()
	switch {
	case !v.IsKnown():
		return e.unknown
	case v.IsNull():
		return types.NullValue
	case ty == cty.String:
		return types.String(v.AsString())
	case ty == cty.Bool:
		return types.Bool(v.True())
	case ty == cty.Number:
		return toNumber(v.AsBigFloat(), by)
	case ty.IsObjectType():
		return &mapValue{eval: e, value: v, path: by}
	case ty.IsMapType():
		return &mapValue{eval: e, value: v, path: by}
	case ty.IsSetType():
		return e.set(v, by)
	case ty.IsListType(), ty.IsTupleType():
		return &listValue{eval: e, value: v, path: by}
	}
	return errorAt(by, "has type %s, which expressions do not support", ty.FriendlyName())
}

// setCost is the cost of one element of a set: cty sorts a set on each iteration.
const setCost = 16

// set converts a set to a list. A set with an unknown part is unknown as a whole, because its size
// is uncertain: two elements may turn out to be equal.
func (e *evaluation) set(v cty.Value, by *valuePath) ref.Val {
	e.remaining.spend(setCost*v.LengthInt(), 0)
	if !v.IsWhollyKnown() {
		return e.unknown
	}
	return &listValue{eval: e, value: v, elements: v.AsValueSlice(), path: by}
}

// toNumber returns an int for a whole number within 64 bits, and a double otherwise. A whole number
// that a double cannot represent is an error, because it must not change unnoticed.
func toNumber(n *big.Float, by *valuePath) ref.Val {
	if i, accuracy := n.Int64(); accuracy == big.Exact {
		return types.Int(i)
	}
	f, _ := n.Float64()
	if math.IsInf(f, 0) || n.IsInt() && !sameNumber(f, n) {
		return errorAt(by, "is too large for calculations: only an expression that is a single reference keeps it exactly")
	}
	return types.Double(f)
}

func sameNumber(f float64, n *big.Float) bool {
	return fromDouble(f).AsBigFloat().Cmp(n) == 0
}

// fromDouble returns the shortest decimal for a double: 0.1, not the nearest binary fraction, which
// providers would treat as a different number.
func fromDouble(f float64) cty.Value {
	return cty.MustParseNumberVal(strconv.FormatFloat(f, 'g', -1, 64))
}

// mapValue presents a cty object or map as a CEL map.
type mapValue struct {
	eval  *evaluation
	value cty.Value // known, not null, without marks of its own
	path  *valuePath
	names []string
	// parts caches adapted elements: a loop reads the same ones repeatedly.
	parts map[string]ref.Val
}

// keys returns the names, sorted.
func (o *mapValue) keys() []string {
	if o.names == nil {
		o.names = o.sorted()
	}
	return o.names
}

func (o *mapValue) sorted() []string {
	if ty := o.value.Type(); ty.IsObjectType() {
		return slices.Sorted(maps.Keys(ty.AttributeTypes()))
	}
	var out []string
	for it := o.value.ElementIterator(); it.Next(); {
		key, _ := it.Element()
		out = append(out, key.AsString())
	}
	return out
}

// get returns the element under a name with its marks.
func (o *mapValue) get(name string) (cty.Value, bool) {
	if ty := o.value.Type(); ty.IsObjectType() {
		if !ty.HasAttribute(name) {
			return cty.NilVal, false
		}
		return o.value.GetAttr(name), true
	}
	key := cty.StringVal(name)
	if !o.value.HasIndex(key).True() {
		return cty.NilVal, false
	}
	return o.value.Index(key), true
}

// Find returns the element under a key, or an error if there is none.
func (o *mapValue) Find(key ref.Val) (ref.Val, bool) {
	if types.IsUnknownOrError(key) {
		return key, false
	}
	name, ok := key.(types.String)
	if !ok {
		return errorAt(o.path, "has keys of type string, not %s", key.Type().TypeName()), false
	}
	if part, ok := o.parts[string(name)]; ok {
		return part, true
	}
	v, ok := o.get(string(name))
	if !ok {
		return types.WrapErr(missing(o.path.String(), string(name), o.keys(), o.path.public)), false
	}
	part := o.eval.toCEL(v, &valuePath{parent: o.path, name: string(name)})
	if o.parts == nil {
		o.parts = map[string]ref.Val{}
	}
	o.parts[string(name)] = part
	return part, true
}

// missing returns the problem of a name that does not exist, and lists the names that do.
func missing(where, name string, names []string, public bool) *problem {
	const most = 20
	there := strings.Join(names[:min(len(names), most)], ", ")
	switch {
	case len(names) == 0:
		there = "no attributes"
	case len(names) > most:
		there += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return &problem{text: where + " has no " + strconv.Quote(name) + ": it has " + there, public: public}
}

// Get returns the element under a key.
func (o *mapValue) Get(key ref.Val) ref.Val {
	v, _ := o.Find(key)
	return v
}

// Contains returns whether the key exists.
func (o *mapValue) Contains(key ref.Val) ref.Val {
	if types.IsUnknownOrError(key) {
		return key
	}
	name, ok := key.(types.String)
	if !ok {
		return types.False
	}
	_, ok = o.get(string(name))
	return types.Bool(ok)
}

// Iterator iterates over the keys in order.
func (o *mapValue) Iterator() traits.Iterator {
	keys := o.keys()
	return &iterator{count: len(keys), get: func(i int) ref.Val { return types.String(keys[i]) }}
}

// Size returns the number of keys.
func (o *mapValue) Size() ref.Val {
	if ty := o.value.Type(); ty.IsObjectType() {
		return types.Int(len(ty.AttributeTypes()))
	}
	return types.Int(o.value.LengthInt())
}

// Equal compares with any map.
func (o *mapValue) Equal(other ref.Val) ref.Val { return equal(o, other, &o.eval.remaining) }

// ConvertToNative is not supported.
func (o *mapValue) ConvertToNative(want reflect.Type) (any, error) { return nil, noNative(want) }

// ConvertToType only supports CEL's type of types.
func (o *mapValue) ConvertToType(want ref.Type) ref.Val {
	return convertType(o, types.MapType, want, o.path)
}

// Type returns CEL's map type.
func (o *mapValue) Type() ref.Type { return types.MapType }

// Value returns the cty value.
func (o *mapValue) Value() any { return o.value }

// listValue presents a cty list, tuple or set (in cty's order) as a CEL list.
type listValue struct {
	eval     *evaluation
	value    cty.Value   // known, not null, without marks of its own
	elements []cty.Value // elements of a set
	path     *valuePath
}

func (s *listValue) length() int { return s.value.LengthInt() }

func (s *listValue) element(i int) ref.Val {
	by := &valuePath{parent: s.path, index: i}
	if s.elements != nil {
		return s.eval.toCEL(s.elements[i], by)
	}
	return s.eval.toCEL(s.value.Index(cty.NumberIntVal(int64(i))), by)
}

// Add appends another list.
func (s *listValue) Add(other ref.Val) ref.Val {
	list, ok := other.(traits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	var out []ref.Val
	for i := range s.length() {
		out = append(out, s.element(i))
	}
	for it := list.Iterator(); it.HasNext() == types.True; {
		out = append(out, it.Next())
	}
	return types.NewRefValList(types.DefaultTypeAdapter, out)
}

// Contains returns whether an element equals the value.
func (s *listValue) Contains(one ref.Val) ref.Val { return containsValue(s, one, &s.eval.remaining) }

// Get returns an element.
func (s *listValue) Get(index ref.Val) ref.Val {
	if types.IsUnknownOrError(index) {
		return index
	}
	i, err := types.IndexOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	if i < 0 || i >= s.length() {
		return errorAt(s.path, "has %d elements, so index [%d] is out of range", s.length(), i)
	}
	return s.element(i)
}

// Iterator iterates over the elements.
func (s *listValue) Iterator() traits.Iterator {
	return &iterator{count: s.length(), get: s.element}
}

// Size returns the number of elements.
func (s *listValue) Size() ref.Val { return types.Int(s.length()) }

// Equal compares with any list.
func (s *listValue) Equal(other ref.Val) ref.Val { return equal(s, other, &s.eval.remaining) }

// ConvertToNative is not supported.
func (s *listValue) ConvertToNative(want reflect.Type) (any, error) { return nil, noNative(want) }

// ConvertToType only supports CEL's type of types.
func (s *listValue) ConvertToType(want ref.Type) ref.Val {
	return convertType(s, types.ListType, want, s.path)
}

// Type returns CEL's list type.
func (s *listValue) Type() ref.Type { return types.ListType }

// Value returns the cty value.
func (s *listValue) Value() any { return s.value }

func noNative(want reflect.Type) error {
	return &problem{"cannot convert a resource's value to " + want.String(), true}
}

func convertType(v ref.Val, is *types.Type, want ref.Type, by *valuePath) ref.Val {
	switch want {
	case types.TypeType:
		return is
	case is:
		return v
	}
	return errorAt(by, "cannot be converted from %s to %s: use jsonencode(…) to get a string", is.TypeName(), want.TypeName())
}

// iterator produces elements one by one, so that a loop that ends early costs little.
type iterator struct {
	ref.Val   // CEL's iterators must implement ref.Val
	at, count int
	get       func(int) ref.Val
}

// HasNext returns whether there are more elements.
func (it *iterator) HasNext() ref.Val { return types.Bool(it.at < it.count) }

// Next returns the next element.
func (it *iterator) Next() ref.Val {
	it.at++
	return it.get(it.at - 1)
}
