package expr

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

// functions returns the functions that Atoll adds to CEL and its extensions. Those that exist in
// OpenTofu have the same name and behaviour.
func functions() []cel.EnvOption {
	text, whole, any := cel.StringType, cel.IntType, cel.DynType
	return []cel.EnvOption{
		cel.Function("jsonencode", cel.Overload("atoll_jsonencode", []*cel.Type{any}, text, cel.UnaryBinding(jsonEncode))),
		cel.Function("jsondecode", cel.Overload("atoll_jsondecode", []*cel.Type{text}, any, cel.UnaryBinding(jsonDecode))),
		cel.Function("base64encode", cel.Overload("atoll_base64encode", []*cel.Type{text}, text, cel.UnaryBinding(base64Encode))),
		cel.Function("base64decode", cel.Overload("atoll_base64decode", []*cel.Type{text}, text, cel.UnaryBinding(base64Decode))),
		cel.Function(mergeMaps, cel.Overload("atoll_merge", []*cel.Type{any, any}, any, cel.BinaryBinding(merge))),
		cel.Function("cidrhost", cel.Overload("atoll_cidrhost", []*cel.Type{text, whole}, text, cel.BinaryBinding(cidrHost))),
		cel.Function("cidrnetmask", cel.Overload("atoll_cidrnetmask", []*cel.Type{text}, text, cel.UnaryBinding(cidrNetmask))),
		cel.Function("cidrsubnet", cel.Overload("atoll_cidrsubnet", []*cel.Type{text, whole, whole}, text,
			cel.FunctionBinding(func(args ...ref.Val) ref.Val { return cidrSubnet(args[0], args[1], args[2]) }))),
	}
}

// jsonEncode is only called with wholly known values, because of its guard.
func jsonEncode(v ref.Val) ref.Val {
	b := sizeLimit{maxNodes, maxBytes}
	value, problem := b.result(v)
	if problem != "" {
		return errorValue("%s", problem)
	}
	value, _ = value.UnmarkDeep() // the guard has recorded the marks
	out, err := stdlib.JSONEncode(value)
	if err != nil || !out.IsKnown() {
		return errorValue("jsonencode(…): cannot encode this value")
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
		return errorValue("jsondecode(…): the text is not valid JSON")
	}
	// The value has no unknown or marked part, so it needs no link to the current evaluation.
	run := &evaluation{unknown: types.NewUnknown(0, nil), remaining: workLimit{maxVisits, maxText}}
	return run.toCEL(out, &valuePath{name: "jsondecode(…)"}) // not public: its names come from the text
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
		return errorValue("base64decode(…): the text is not valid base64")
	case !utf8.Valid(out):
		return errorValue("base64decode(…): the decoded bytes are not valid UTF-8")
	}
	return types.String(out)
}

// merge returns a map with the entries of both maps. Entries of the second map win. CEL has no such
// operator.
func merge(a, b ref.Val) ref.Val {
	out := map[ref.Val]ref.Val{}
	for _, v := range []ref.Val{a, b} {
		m, ok := v.(traits.Mapper)
		if !ok {
			return errorValue("merge(…): both arguments must be maps, got %s", v.Type().TypeName())
		}
		for it := m.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			out[key] = m.Get(key)
		}
	}
	return types.NewRefValMap(types.DefaultTypeAdapter, out)
}
