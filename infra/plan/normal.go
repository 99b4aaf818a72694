package plan

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// normal puts right what providers on the oldest library say of blocks: none is an
// empty collection and not null. The value is of the block's type, and wholly known.
func normal(block *contract.Block, v cty.Value) cty.Value {
	if v.IsNull() {
		return cty.NullVal(block.ImpliedType())
	}
	if len(block.Blocks) == 0 {
		return v
	}
	of := v.AsValueMap()
	for i := range block.Blocks {
		n := &block.Blocks[i]
		if !n.Block.ImpliedType().HasDynamicTypes() { // which that library does not have
			of[n.Name] = normalBlocks(n, of[n.Name])
		}
	}
	return cty.ObjectVal(of)
}

func normalBlocks(n *contract.NestedBlock, v cty.Value) cty.Value {
	switch n.Nesting {
	case contract.NestingMap:
		return v // nor that
	case contract.NestingSingle:
		return normal(&n.Block, v)
	case contract.NestingGroup:
		if v.IsNull() {
			return n.None()
		}
		return normal(&n.Block, v)
	}
	if length(v) == 0 {
		return n.None()
	}
	elements := make([]cty.Value, 0, length(v))
	for it := v.ElementIterator(); it.Next(); {
		_, one := it.Element()
		elements = append(elements, normal(&n.Block, one))
	}
	if n.Nesting == contract.NestingSet {
		return cty.SetVal(elements)
	}
	return cty.ListVal(elements)
}
