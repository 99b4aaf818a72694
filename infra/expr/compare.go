package expr

import (
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// equal compares like CEL, but also decides comparisons with unknown parts: two lists differ if one
// known pair of elements differs.
func equal(a, b ref.Val, left *workLimit) ref.Val {
	left.spend(1, 0)
	if types.IsUnknownOrError(a) {
		return a
	}
	if types.IsUnknownOrError(b) {
		return b
	}
	if x, ok := a.(traits.Lister); ok {
		y, ok := b.(traits.Lister)
		if !ok || x.Size() != y.Size() {
			return types.False
		}
		i := types.Int(0)
		return every(x.Size().(types.Int), func() ref.Val { i++; return equal(x.Get(i-1), y.Get(i-1), left) })
	}
	if x, ok := a.(traits.Mapper); ok {
		y, ok := b.(traits.Mapper)
		if !ok || x.Size() != y.Size() {
			return types.False
		}
		keys := x.Iterator()
		return every(x.Size().(types.Int), func() ref.Val {
			key := keys.Next()
			if y.Contains(key) != types.True {
				return types.False
			}
			return equal(x.Get(key), y.Get(key), left)
		})
	}
	return types.Equal(a, b)
}

// every returns true if all are true, false if one is false, and otherwise the first other result.
func every(count types.Int, next func() ref.Val) ref.Val {
	var out ref.Val = types.True
	for range int(count) {
		switch v := next(); {
		case v == types.False:
			return v
		case v != types.True && out == types.True:
			out = v
		}
	}
	return out
}

// containsValue returns whether a list has the value as an element, or a map has it as a key.
func containsValue(all, one ref.Val, left *workLimit) ref.Val {
	if m, ok := all.(traits.Mapper); ok {
		return m.Contains(one)
	}
	list, ok := all.(traits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(all)
	}
	var out ref.Val = types.False
	for it := list.Iterator(); it.HasNext() == types.True; {
		switch v := equal(it.Next(), one, left); {
		case v == types.True:
			return v
		case v != types.False && out == types.False:
			out = v
		}
	}
	return out
}
