package reference

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

// trail is how a value was reached, for errors.
type trail struct {
	above *trail
	name  string // of a step; of the first, the reference
	index int    // of an element, if the name is empty
	// public is of a reference itself: its attributes are its type's, and no secret.
	public bool
}

func (t *trail) String() string {
	switch {
	case t.above == nil:
		return t.name
	case t.name == "":
		return t.above.String() + "[" + strconv.Itoa(t.index) + "]"
	}
	return t.above.String() + "." + t.name
}

// failed is an error with a text of ours that holds nothing of a value.
func failed(format string, args ...any) ref.Val {
	return types.WrapErr(&problem{text: fmt.Sprintf(format, args...), public: true})
}

// failedAt is an error about a value, and says where that is.
func failedAt(by *trail, format string, args ...any) ref.Val {
	return types.WrapErr(&problem{text: by.String() + " " + fmt.Sprintf(format, args...), public: by.public})
}

// adapt gives a value of cty as CEL sees it. Marks come off, and are remembered.
func (e *evaluation) adapt(v cty.Value, by *trail) ref.Val {
	v, marks := v.Unmark()
	e.touch(marks)
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
		return &object{run: e, value: v, by: by}
	case ty.IsMapType():
		return &object{run: e, value: v, by: by}
	case ty.IsSetType():
		return e.set(v, by)
	case ty.IsListType(), ty.IsTupleType():
		return &sequence{run: e, value: v, by: by}
	}
	return failedAt(by, "is of a type that expressions cannot use (%s)", ty.FriendlyName())
}

// setCost is what an element of a set costs: cty sorts a set whenever it is gone through.
const setCost = 16

// set gives a set as a list. If a part of it is unknown all is: how many elements there are is not
// certain, because two may turn out to be one.
func (e *evaluation) set(v cty.Value, by *trail) ref.Val {
	e.left.spend(setCost*v.LengthInt(), 0)
	if !v.IsWhollyKnown() {
		return e.unknown
	}
	return &sequence{run: e, value: v, elements: v.AsValueSlice(), by: by}
}

// toNumber gives an int if the number is one, else a double. CEL has no larger ones, and
// a whole number must not change unnoticed.
func toNumber(n *big.Float, by *trail) ref.Val {
	if i, accuracy := n.Int64(); accuracy == big.Exact {
		return types.Int(i)
	}
	f, _ := n.Float64()
	if math.IsInf(f, 0) || n.IsInt() && !sameNumber(f, n) {
		return failedAt(by, "is too large a number to calculate with: only a reference that stands alone passes it on as it is")
	}
	return types.Double(f)
}

func sameNumber(f float64, n *big.Float) bool {
	return fromDouble(f).AsBigFloat().Cmp(n) == 0
}

// fromDouble is the number that a double is written as: 0.1, not the binary fraction
// nearest to it, which providers would take for another number.
func fromDouble(f float64) cty.Value {
	return cty.MustParseNumberVal(strconv.FormatFloat(f, 'g', -1, 64))
}

// object is an object or a map, as a map of CEL.
type object struct {
	run   *evaluation
	value cty.Value // known, not null, without marks of its own
	by    *trail
	names []string
	// parts are what was looked at before: a loop looks at the same again and again.
	parts map[string]ref.Val
}

// keys are the names that there are, sorted.
func (o *object) keys() []string {
	if o.names == nil {
		o.names = o.sorted()
	}
	return o.names
}

func (o *object) sorted() []string {
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

// get gives what is under a name, with its marks.
func (o *object) get(name string) (cty.Value, bool) {
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

// Find gives what is under a key; an error if there is no such attribute.
func (o *object) Find(key ref.Val) (ref.Val, bool) {
	if types.IsUnknownOrError(key) {
		return key, false
	}
	name, ok := key.(types.String)
	if !ok {
		return failedAt(o.by, "has names, and no %s", key.Type().TypeName()), false
	}
	if part, ok := o.parts[string(name)]; ok {
		return part, true
	}
	v, ok := o.get(string(name))
	if !ok {
		return types.WrapErr(missing(o.by.String(), string(name), o.keys(), o.by.public)), false
	}
	part := o.run.adapt(v, &trail{above: o.by, name: string(name)})
	if o.parts == nil {
		o.parts = map[string]ref.Val{}
	}
	o.parts[string(name)] = part
	return part, true
}

// missing complains of a name that there is not, with those that there are.
func missing(where, name string, names []string, public bool) *problem {
	const most = 20
	there := strings.Join(names[:min(len(names), most)], ", ")
	switch {
	case len(names) == 0:
		there = "nothing"
	case len(names) > most:
		there += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return &problem{text: where + " has no " + strconv.Quote(name) + ": it has " + there, public: public}
}

// Get gives what is under a key.
func (o *object) Get(key ref.Val) ref.Val {
	v, _ := o.Find(key)
	return v
}

// Contains tells whether there is such a key.
func (o *object) Contains(key ref.Val) ref.Val {
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

// Iterator goes through the keys, in order.
func (o *object) Iterator() traits.Iterator {
	keys := o.keys()
	return &iterator{count: len(keys), get: func(i int) ref.Val { return types.String(keys[i]) }}
}

// Size is how many keys there are.
func (o *object) Size() ref.Val {
	if ty := o.value.Type(); ty.IsObjectType() {
		return types.Int(len(ty.AttributeTypes()))
	}
	return types.Int(o.value.LengthInt())
}

// Equal compares with any map.
func (o *object) Equal(other ref.Val) ref.Val { return equal(o, other, &o.run.left) }

// ConvertToNative is of no use here.
func (o *object) ConvertToNative(want reflect.Type) (any, error) { return nil, noNative(want) }

// ConvertToType knows only the type of types.
func (o *object) ConvertToType(want ref.Type) ref.Val {
	return convertType(o, types.MapType, want, o.by)
}

// Type is CEL's map.
func (o *object) Type() ref.Type { return types.MapType }

// Value is the value itself.
func (o *object) Value() any { return o.value }

// sequence is a list, a tuple, or a set in cty's order, as a list of CEL.
type sequence struct {
	run      *evaluation
	value    cty.Value   // known, not null, without marks of its own
	elements []cty.Value // of a set
	by       *trail
}

func (s *sequence) length() int { return s.value.LengthInt() }

func (s *sequence) element(i int) ref.Val {
	by := &trail{above: s.by, index: i}
	if s.elements != nil {
		return s.run.adapt(s.elements[i], by)
	}
	return s.run.adapt(s.value.Index(cty.NumberIntVal(int64(i))), by)
}

// Add appends another list.
func (s *sequence) Add(other ref.Val) ref.Val {
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

// Contains tells whether an element is equal to the value.
func (s *sequence) Contains(one ref.Val) ref.Val { return within(s, one, &s.run.left) }

// Get gives an element.
func (s *sequence) Get(index ref.Val) ref.Val {
	if types.IsUnknownOrError(index) {
		return index
	}
	i, err := types.IndexOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	if i < 0 || i >= s.length() {
		return failedAt(s.by, "has %d elements, and no [%d]", s.length(), i)
	}
	return s.element(i)
}

// Iterator goes through the elements.
func (s *sequence) Iterator() traits.Iterator {
	return &iterator{count: s.length(), get: s.element}
}

// Size is how many elements there are.
func (s *sequence) Size() ref.Val { return types.Int(s.length()) }

// Equal compares with any list.
func (s *sequence) Equal(other ref.Val) ref.Val { return equal(s, other, &s.run.left) }

// ConvertToNative is of no use here.
func (s *sequence) ConvertToNative(want reflect.Type) (any, error) { return nil, noNative(want) }

// ConvertToType knows only the type of types.
func (s *sequence) ConvertToType(want ref.Type) ref.Val {
	return convertType(s, types.ListType, want, s.by)
}

// Type is CEL's list.
func (s *sequence) Type() ref.Type { return types.ListType }

// Value is the value itself.
func (s *sequence) Value() any { return s.value }

func noNative(want reflect.Type) error {
	return &problem{"a value of a resource cannot become a " + want.String(), true}
}

func convertType(v ref.Val, is *types.Type, want ref.Type, by *trail) ref.Val {
	switch want {
	case types.TypeType:
		return is
	case is:
		return v
	}
	return failedAt(by, "is a %s, which cannot become a %s: jsonencode(…) makes a string of it", is.TypeName(), want.TypeName())
}

// iterator goes through something one by one, so that a loop that ends early costs little.
type iterator struct {
	ref.Val   // only because CEL's iterators are values
	at, count int
	get       func(int) ref.Val
}

// HasNext tells whether there is more.
func (it *iterator) HasNext() ref.Val { return types.Bool(it.at < it.count) }

// Next gives it.
func (it *iterator) Next() ref.Val {
	it.at++
	return it.get(it.at - 1)
}
