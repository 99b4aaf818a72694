package decide

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// normalizeBlocks corrects the values of providers on the oldest SDK: the absence of blocks is an
// empty collection, not null. The value has the block's type and is wholly known.
func normalizeBlocks(block *providerapi.Block, v cty.Value) cty.Value {
	if v.IsNull() {
		return cty.NullVal(block.ImpliedType())
	}
	if len(block.Blocks) == 0 {
		return v
	}
	of := v.AsValueMap()
	for i := range block.Blocks {
		n := &block.Blocks[i]
		if !n.Block.ImpliedType().HasDynamicTypes() { // that SDK has no dynamic types
			of[n.Name] = normalizeNested(n, of[n.Name])
		}
	}
	return cty.ObjectVal(of)
}

func normalizeNested(n *providerapi.NestedBlock, v cty.Value) cty.Value {
	switch n.Nesting {
	case providerapi.NestingMap:
		return v // that SDK has no maps of blocks
	case providerapi.NestingSingle:
		return normalizeBlocks(&n.Block, v)
	case providerapi.NestingGroup:
		if v.IsNull() {
			return n.Absent()
		}
		return normalizeBlocks(&n.Block, v)
	}
	if length(v) == 0 {
		return n.Absent()
	}
	elements := make([]cty.Value, 0, length(v))
	for it := v.ElementIterator(); it.Next(); {
		_, one := it.Element()
		elements = append(elements, normalizeBlocks(&n.Block, one))
	}
	if n.Nesting == providerapi.NestingSet {
		return cty.SetVal(elements)
	}
	return cty.ListVal(elements)
}
