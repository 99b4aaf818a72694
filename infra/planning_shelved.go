package infra

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
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// mostWhole is of how many resources planned values are kept as they are: some 25 KiB each, of a large type.
const mostWhole = 1000

// shelve keeps encoded what others will see of a slot, until the first of them looks: that takes a tenth. Some are kept
// as they are: along a chain the next looks at once.
func (r *run) shelve(s *slot) {
	d := s.decision
	if d == nil || s.data() || s.compared || d.After.IsNull() {
		return
	}
	if r.whole < mostWhole {
		s.whole = true
		r.whole++
		return
	}
	kind, err := r.kind(s.ref)
	if err != nil {
		return
	}
	if text, err := d.Encoded(kind.Schema.Block.ImpliedType()); err == nil {
		s.shelved = text
		s.decision = &plan.Decision{Address: d.Address, Action: d.Action, Sensitive: d.Sensitive}
	}
}

// manyUsers is how many may look at a value before it is decoded once for all of them.
const manyUsers = 32

// attribute gives a slot one attribute of another that is kept encoded, or that is as it is stored: most references are to one. To
// decode all of it takes longer than the rest of an evaluation, and what is decoded takes ten times the memory until the last has looked.
func (d *deciding) attribute(s *slot, ref reference.Ref, name string) (cty.Value, bool) {
	u, found := d.used(s, ref)
	if !found || d.slots[u].popular {
		return cty.NilVal, false
	}
	other := &d.slots[u]
	kind, err := d.run.kind(other.ref)
	switch {
	case err != nil:
	case other.shelved != nil:
		return shelvedAttribute(&kind.Schema.Block, other.shelved, other.decision.Sensitive, name)
	case other.asStored():
		return storedAttribute(kind, other.state.Spec.Current, name)
	}
	return cty.NilVal, false
}

// asStored tells whether what others see of a slot is what is stored.
func (s *slot) asStored() bool {
	return s.decision == nil && !s.data() && s.state != nil && s.state.Spec.Current != nil
}

// shelvedAttribute finds one attribute in an encoded object, and marks it as it would be there. It is false if there is no
// such attribute: whoever looks at the whole object can say what there is.
func shelvedAttribute(block *contract.Block, encoded []byte, secret []cty.Path, name string) (cty.Value, bool) {
	raw, err := encodedAttribute(encoded, name)
	if err != nil {
		return cty.NilVal, false
	}
	return oneAttribute(block, secret, name, func(ty cty.Type) (cty.Value, error) { return msgpack.Unmarshal(raw, ty) })
}

// storedAttribute finds one attribute in what is stored. It is false, too, if that is not of the schema as it is.
func storedAttribute(kind *Served, stored *v1alpha1.ResourceValue, name string) (cty.Value, bool) {
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

// oneAttribute decodes one attribute of an object, and marks it as it would be there.
func oneAttribute(block *contract.Block, secret []cty.Path, name string, decode func(cty.Type) (cty.Value, error)) (cty.Value, bool) {
	only := contract.Block{}
	if a := block.Attribute(name); a != nil {
		only.Attributes = []contract.Attribute{*a}
	} else if n := block.Nested(name); n != nil {
		only.Blocks = []contract.NestedBlock{*n}
	}
	ty, is := only.ImpliedType().AttributeTypes()[name]
	if !is {
		return cty.NilVal, false
	}
	v, err := decode(ty)
	if err != nil {
		return cty.NilVal, false
	}
	secret = slices.DeleteFunc(slices.Clone(secret), func(path cty.Path) bool {
		if len(path) == 0 {
			return false // all of it
		}
		step, is := path[0].(cty.GetAttrStep)
		return !is || step.Name != name
	})
	return marked(&only, cty.ObjectVal(map[string]cty.Value{name: v}), secret).GetAttr(name), true
}

// encodedAttribute finds what is encoded of one attribute of an encoded object.
func encodedAttribute(encoded []byte, name string) ([]byte, error) {
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

var errNoAttribute = errors.New("there is no such attribute")
