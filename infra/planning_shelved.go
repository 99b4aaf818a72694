package infra

import (
	"bytes"
	"cmp"
	"errors"
	"slices"

	vmihailenco "github.com/vmihailenco/msgpack/v5"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"

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

// attribute gives a slot one attribute of another that is kept encoded: most references are to one. To decode all of it takes
// longer than the rest of an evaluation, and what is decoded takes ten times the memory until the last has looked.
func (d *deciding) attribute(s *slot, ref reference.Ref, name string) (cty.Value, bool) {
	u, found := d.used(s, ref)
	if !found || d.slots[u].shelved == nil {
		return cty.NilVal, false
	}
	other := &d.slots[u]
	kind, err := d.run.kind(other.ref)
	if err != nil {
		return cty.NilVal, false
	}
	return shelvedAttribute(&kind.Schema.Block, other.shelved, other.decision.Sensitive, name)
}

// shelvedAttribute finds one attribute in an encoded object, and marks it as it would be there. It is false if there is no
// such attribute: whoever looks at the whole object can say what there is.
func shelvedAttribute(block *contract.Block, encoded []byte, secret []cty.Path, name string) (cty.Value, bool) {
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
	raw, err := encodedAttribute(encoded, name)
	if err != nil {
		return cty.NilVal, false
	}
	v, err := msgpack.Unmarshal(raw, ty)
	if err != nil {
		return cty.NilVal, false
	}
	secret = slices.DeleteFunc(slices.Clone(secret), func(path cty.Path) bool {
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
