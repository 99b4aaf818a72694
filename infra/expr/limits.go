package expr

import (
	"math"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	"github.com/zclconf/go-cty/cty"
)

// Limits for the result of an expression, and for the values that it visits. A list can hold one long list
// many times without being large itself, so every visited element counts.
const (
	maxNodes  = 100_000
	maxBytes  = 2 << 20
	maxVisits = 4_000_000
	maxText   = 64 << 20
)

const (
	tooLarge = "produces a value that is too large"
	tooMuch  = "exceeds the evaluation limit: simplify the expression or use smaller lists"
)

// workLimit is the work that an evaluation may still do and that CEL's own cost does not include.
type workLimit struct{ visits, bytes int }

// spend charges for visited values and bytes of text. Beyond the limit it ends the whole
// evaluation: an enclosing loop would absorb an error and go on.
func (w *workLimit) spend(visits, bytes int) {
	w.visits -= visits
	w.bytes -= bytes
	if w.visits < 0 || w.bytes < 0 {
		panic(interpreter.EvalCancelledError{Message: tooMuch, Cause: interpreter.CostLimitExceeded})
	}
}

// sizeLimit is the size by which a result may still grow.
type sizeLimit struct{ nodes, bytes int }

// spend charges for one value. It returns false beyond the limit.
func (b *sizeLimit) spend(bytes int) bool {
	b.nodes--
	b.bytes -= bytes
	return b.nodes >= 0 && b.bytes >= 0
}

// result converts a CEL value to cty, or returns the problem.
func (b *sizeLimit) result(v ref.Val) (cty.Value, string) {
	if !b.spend(0) {
		return cty.NilVal, tooLarge
	}
	switch v := v.(type) {
	case *types.Unknown:
		return cty.DynamicVal, ""
	case *types.Err:
		return cty.NilVal, "has an element whose evaluation failed"
	case types.Null:
		return cty.NullVal(cty.DynamicPseudoType), ""
	case types.Bool:
		return cty.BoolVal(bool(v)), ""
	case types.Int:
		return cty.NumberIntVal(int64(v)), ""
	case types.Uint:
		return cty.NumberUIntVal(uint64(v)), ""
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return cty.NilVal, "is not a finite number: check for a division by zero or an overflow"
		}
		return fromDouble(float64(v)), ""
	case types.String:
		if !b.spend(len(v)) {
			return cty.NilVal, tooLarge
		}
		return cty.StringVal(string(v)), ""
	case types.Timestamp, types.Duration:
		return cty.StringVal(string(v.ConvertToType(types.StringType).(types.String))), ""
	case types.Bytes:
		return cty.NilVal, "is of type bytes: convert it with base64.encode(…) or string(…)"
	case *mapValue:
		return v.value, ""
	case *listValue:
		return v.value, ""
	case traits.Lister:
		return b.list(v)
	case traits.Mapper:
		return b.mapping(v)
	}
	return cty.NilVal, "is of type " + v.Type().TypeName() + ", which an argument cannot have"
}

func (b *sizeLimit) list(list traits.Lister) (cty.Value, string) {
	var out []cty.Value
	for it := list.Iterator(); it.HasNext() == types.True; {
		v, problem := b.result(it.Next())
		if problem != "" {
			return cty.NilVal, problem
		}
		out = append(out, v)
	}
	return cty.TupleVal(out), ""
}

func (b *sizeLimit) mapping(m traits.Mapper) (cty.Value, string) {
	out := map[string]cty.Value{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return cty.NilVal, "is a map with keys that are not strings: convert them with string(…)"
		}
		if !b.spend(len(name)) {
			return cty.NilVal, tooLarge
		}
		v, problem := b.result(m.Get(key))
		if problem != "" {
			return cty.NilVal, problem
		}
		out[string(name)] = v
	}
	return cty.ObjectVal(out), ""
}
