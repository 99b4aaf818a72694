package reference

import (
	"math"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	"github.com/zclconf/go-cty/cty"
)

// How large what an expression makes can be, and how much of values it can visit on the way. A list
// can hold one long list many times without being large itself, so all that is in it is counted.
const (
	maxNodes  = 100_000
	maxBytes  = 2 << 20
	maxVisits = 4_000_000
	maxText   = 64 << 20
)

const (
	tooLarge = "makes a value that is too large"
	tooMuch  = "takes too long to calculate: write a simpler expression, or one on smaller lists"
)

// work is what an evaluation may still do that CEL's own count does not see.
type work struct{ visits, bytes int }

// spend counts visits of values, and bytes of text. If there have been too many all of the evaluation ends: an error would be
// absorbed by what comes around it, such as a loop that goes on.
func (w *work) spend(visits, bytes int) {
	w.visits -= visits
	w.bytes -= bytes
	if w.visits < 0 || w.bytes < 0 {
		panic(interpreter.EvalCancelledError{Message: tooMuch, Cause: interpreter.CostLimitExceeded})
	}
}

// budget is how large a result may still grow.
type budget struct{ nodes, bytes int }

// spend counts a value; false if there have been too many.
func (b *budget) spend(bytes int) bool {
	b.nodes--
	b.bytes -= bytes
	return b.nodes >= 0 && b.bytes >= 0
}

// result gives a value of CEL as one of cty, or says what is wrong with it.
func (b *budget) result(v ref.Val) (cty.Value, string) {
	if !b.spend(0) {
		return cty.NilVal, tooLarge
	}
	switch v := v.(type) {
	case *types.Unknown:
		return cty.DynamicVal, ""
	case *types.Err:
		return cty.NilVal, "has an element without a value"
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
			return cty.NilVal, "is not a number: something was divided by zero, or grew too large"
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
		return cty.NilVal, "is bytes: base64.encode(…) or string(…) makes text of them"
	case *object:
		return v.value, ""
	case *sequence:
		return v.value, ""
	case traits.Lister:
		return b.list(v)
	case traits.Mapper:
		return b.mapping(v)
	}
	return cty.NilVal, "is a " + v.Type().TypeName() + ", which is no value for an argument"
}

func (b *budget) list(list traits.Lister) (cty.Value, string) {
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

func (b *budget) mapping(m traits.Mapper) (cty.Value, string) {
	out := map[string]cty.Value{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return cty.NilVal, "is a map with keys that are not strings: string(…) makes strings of them"
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
