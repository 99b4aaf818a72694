package evaluate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"

	vmihailenco "github.com/vmihailenco/msgpack/v5"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// EncodedAttribute decodes one attribute of an encoded object and marks its secrets. It returns
// false if there is no such attribute; the caller then decodes the whole object for a full error.
func EncodedAttribute(block *providerapi.Block, encoded []byte, secret []cty.Path, name string) (cty.Value, bool) {
	raw, err := rawAttribute(encoded, name)
	if err != nil {
		return cty.NilVal, false
	}
	return oneAttribute(block, secret, name, func(ty cty.Type) (cty.Value, error) { return msgpack.Unmarshal(raw, ty) })
}

// StoredAttribute decodes one attribute of a stored resource. It also returns false if the resource
// does not match the current schema.
func StoredAttribute(kind *infra.ServedKind, stored *v1alpha1.ResourceValue, name string) (cty.Value, bool) {
	block := &kind.Schema.Block
	var fields map[string]json.RawMessage
	if stored.SchemaVersion != kind.Schema.Version || json.Unmarshal(stored.Value, &fields) != nil || fields[name] == nil {
		return cty.NilVal, false
	}
	for other := range fields {
		if block.Attribute(other) == nil && block.Nested(other) == nil {
			return cty.NilVal, false
		}
	}
	secret, err := readPaths(stored.Sensitive)
	if err != nil {
		return cty.NilVal, false
	}
	return oneAttribute(block, secret, name, func(ty cty.Type) (cty.Value, error) { return ctyjson.Unmarshal(fields[name], ty) })
}

// oneAttribute decodes one attribute with the marks that it has in the whole object.
func oneAttribute(block *providerapi.Block, secret []cty.Path, name string, decode func(cty.Type) (cty.Value, error)) (cty.Value, bool) {
	only := providerapi.Block{}
	if a := block.Attribute(name); a != nil {
		only.Attributes = []providerapi.Attribute{*a}
	} else if n := block.Nested(name); n != nil {
		only.Blocks = []providerapi.NestedBlock{*n}
	}
	ty, ok := only.ImpliedType().AttributeTypes()[name]
	if !ok {
		return cty.NilVal, false
	}
	v, err := decode(ty)
	if err != nil {
		return cty.NilVal, false
	}
	secret = slices.DeleteFunc(slices.Clone(secret), func(path cty.Path) bool {
		if len(path) == 0 {
			return false // everything
		}
		step, ok := path[0].(cty.GetAttrStep)
		return !ok || step.Name != name
	})
	return Mark(&only, cty.ObjectVal(map[string]cty.Value{name: v}), secret).GetAttr(name), true
}

// rawAttribute returns the encoded form of one attribute of an encoded object.
func rawAttribute(encoded []byte, name string) ([]byte, error) {
	decoder := vmihailenco.GetDecoder()
	defer vmihailenco.PutDecoder(decoder)
	decoder.Reset(bytes.NewReader(encoded))
	count, err := decoder.DecodeMapLen()
	for ; err == nil && count > 0; count-- {
		var key string
		if key, err = decoder.DecodeString(); err != nil {
			break
		}
		if key == name {
			return decoder.DecodeRaw()
		}
		err = decoder.Skip()
	}
	return nil, cmp.Or(err, errNoAttribute)
}

var errNoAttribute = errors.New("no such attribute")
