package reference

import (
	"encoding/base64"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// functions are ours, beside CEL's and its extensions'. Those that OpenTofu has are called and behave
// like there.
func functions() []cel.EnvOption {
	text, whole, any := cel.StringType, cel.IntType, cel.DynType
	return []cel.EnvOption{
		cel.Function("jsonencode", cel.Overload("atoll_jsonencode", []*cel.Type{any}, text, cel.UnaryBinding(jsonEncode))),
		cel.Function("jsondecode", cel.Overload("atoll_jsondecode", []*cel.Type{text}, any, cel.UnaryBinding(jsonDecode))),
		cel.Function("base64encode", cel.Overload("atoll_base64encode", []*cel.Type{text}, text, cel.UnaryBinding(base64Encode))),
		cel.Function("base64decode", cel.Overload("atoll_base64decode", []*cel.Type{text}, text, cel.UnaryBinding(base64Decode))),
		cel.Function("merge", cel.Overload("atoll_merge", []*cel.Type{any, any}, any, cel.BinaryBinding(merge))),
		cel.Function("cidrhost", cel.Overload("atoll_cidrhost", []*cel.Type{text, whole}, text, cel.BinaryBinding(cidrHost))),
		cel.Function("cidrnetmask", cel.Overload("atoll_cidrnetmask", []*cel.Type{text}, text, cel.UnaryBinding(cidrNetmask))),
		cel.Function("cidrsubnet", cel.Overload("atoll_cidrsubnet", []*cel.Type{text, whole, whole}, text,
			cel.FunctionBinding(func(args ...ref.Val) ref.Val { return cidrSubnet(args[0], args[1], args[2]) }))),
	}
}

// jsonEncode is given what is wholly known, by its guard.
func jsonEncode(v ref.Val) ref.Val {
	b := budget{maxNodes, maxBytes}
	value, problem := b.result(v)
	if problem != "" {
		return failed("%s", problem)
	}
	value, _ = value.UnmarkDeep() // the guard has noted them
	out, err := stdlib.JSONEncode(value)
	if err != nil || !out.IsKnown() {
		return failed("jsonencode(…) cannot encode this value")
	}
	return types.String(out.AsString())
}

func jsonDecode(v ref.Val) ref.Val {
	text, ok := v.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	out, err := stdlib.JSONDecode(cty.StringVal(string(text)))
	if err != nil {
		return failed("jsondecode(…) was given text that is not JSON")
	}
	// Nothing in it is unknown or marked, so no run needs to hear of it.
	run := &evaluation{unknown: types.NewUnknown(0, nil), left: work{maxVisits, maxText}}
	return run.adapt(out, &trail{name: "jsondecode(…)"}) // not public: its names come from the text
}

func base64Encode(v ref.Val) ref.Val {
	text, ok := v.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	return types.String(base64.StdEncoding.EncodeToString([]byte(text)))
}

func base64Decode(v ref.Val) ref.Val {
	text, ok := v.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	out, err := base64.StdEncoding.DecodeString(string(text))
	switch {
	case err != nil:
		return failed("base64decode(…) was given text that is not base64")
	case !utf8.Valid(out):
		return failed("base64decode(…) was given bytes that are not text")
	}
	return types.String(out)
}

// merge puts a second map over a first, which CEL has no operator for.
func merge(a, b ref.Val) ref.Val {
	out := map[ref.Val]ref.Val{}
	for _, v := range []ref.Val{a, b} {
		m, ok := v.(traits.Mapper)
		if !ok {
			return failed("merge(…) takes two maps, and this is a %s", v.Type().TypeName())
		}
		for it := m.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			out[key] = m.Get(key)
		}
	}
	return types.NewRefValMap(types.DefaultTypeAdapter, out)
}
