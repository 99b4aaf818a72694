package plan

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// normal puts right what providers on the oldest library say of blocks: none is an
// empty collection and not null, and a block is never unknown itself. The value is of the
// block's type.
func normal(block *contract.Block, v cty.Value) cty.Value {
	if v == cty.NilVal || v.IsNull() {
		return cty.NullVal(block.ImpliedType())
	}
	if len(block.Blocks) == 0 || !v.IsKnown() {
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
		return v
	case contract.NestingSingle, contract.NestingGroup:
		switch {
		case !v.IsKnown():
			return unknownBlock(&n.Block)
		case v.IsNull() && n.Nesting == contract.NestingGroup:
			return noBlocks(n)
		}
		return normal(&n.Block, v)
	}
	if v.IsKnown() && length(v) == 0 {
		return noBlocks(n)
	}
	var elements []cty.Value
	if !v.IsKnown() {
		elements = []cty.Value{unknownBlock(&n.Block)}
	} else {
		for it := v.ElementIterator(); it.Next(); {
			_, one := it.Element()
			elements = append(elements, normal(&n.Block, one))
		}
	}
	if n.Nesting == contract.NestingSet {
		return cty.SetVal(elements)
	}
	return cty.ListVal(elements)
}

// unknownBlock is one block of which nothing is known, in place of blocks that are unknown.
func unknownBlock(block *contract.Block) cty.Value {
	of := make(map[string]cty.Value, len(block.Attributes)+len(block.Blocks))
	for i := range block.Attributes {
		of[block.Attributes[i].Name] = cty.UnknownVal(block.Attributes[i].Type)
	}
	for i := range block.Blocks {
		n := &block.Blocks[i]
		switch n.Nesting {
		case contract.NestingSingle, contract.NestingGroup:
			of[n.Name] = unknownBlock(&n.Block)
		case contract.NestingMap:
			of[n.Name] = noBlocks(n)
		case contract.NestingSet:
			of[n.Name] = cty.SetVal([]cty.Value{unknownBlock(&n.Block)})
		default:
			of[n.Name] = cty.ListVal([]cty.Value{unknownBlock(&n.Block)})
		}
	}
	return cty.ObjectVal(of)
}
