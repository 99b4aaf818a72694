package planner

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
)

// maxRetained is how many decoded planned values are kept: some 25 KiB each, for a large type.
const maxRetained = 1000

// encodeValue encodes the value that dependents will see, which takes a tenth of the memory. Some
// values stay decoded, because along a chain the dependent uses them at once.
func (r *run) encodeValue(s *slot) {
	d := s.decision
	if d == nil || s.IsData() || s.compared || d.After.IsNull() {
		return
	}
	if r.retained < maxRetained {
		s.retained = true
		r.retained++
		return
	}
	kind, err := r.kind(s.Ref)
	if err != nil {
		return
	}
	if text, err := d.Encoded(kind.Schema.Block.ImpliedType()); err == nil {
		s.encoded = text
		s.decision = &decide.Decision{Address: d.Address, Action: d.Action, Sensitive: d.Sensitive}
	}
}

// manyUsers is how many dependents a value may have before it is decoded once for all of them.
const manyUsers = 32

// attribute returns a single attribute of another slot whose value is encoded or stored. Most
// references are to one attribute. Decoding the whole value takes longer than the rest of an
// evaluation, and ten times the memory until the last dependent has ended.
func (d *decider) attribute(s *slot, ref expr.Ref, name string) (cty.Value, bool) {
	u, found := d.usedSlot(s, ref)
	if !found || d.slots[u].widelyUsed {
		return cty.NilVal, false
	}
	other := &d.slots[u]
	kind, err := d.run.kind(other.Ref)
	switch {
	case err != nil:
	case other.encoded != nil:
		return evaluate.EncodedAttribute(&kind.Schema.Block, other.encoded, other.decision.Sensitive, name)
	case other.hasStoredValue():
		return evaluate.StoredAttribute(kind, other.State.Spec.Current, name)
	}
	return cty.NilVal, false
}

// hasStoredValue reports whether dependents see the value in the state.
func (s *slot) hasStoredValue() bool {
	return s.decision == nil && !s.IsData() && s.State != nil && s.State.Spec.Current != nil
}
