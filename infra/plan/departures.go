package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// departures lists where a value is not what was planned: what was known is the same, what was
// unknown may have become anything that was possible then. The values have no marks.
func departures(block *contract.Block, planned, actual cty.Value) []Problem {
	c := &planCheck{}
	c.keptObject(blockLevel(block), planned, actual, nil)
	return c.problems
}

func (c *planCheck) keptObject(l level, planned, actual cty.Value, path cty.Path) {
	switch {
	case planned.IsNull() && actual.IsNull():
		return
	case planned.IsNull():
		c.report(path, "was planned not to be, and is")
		return
	case actual.IsNull():
		c.report(path, "was planned to be, and is not")
		return
	}
	for i := range l.attributes {
		a := &l.attributes[i]
		c.kept(attributeOf(planned, a), attributeOf(actual, a), path, cty.GetAttrStep{Name: a.Name})
	}
	for i := range l.blocks {
		n := &l.blocks[i]
		c.keptBlocks(n, blockOf(planned, n), blockOf(actual, n), attributeStep(path, n.Name))
	}
}

func (c *planCheck) keptBlocks(n *contract.NestedBlock, planned, actual cty.Value, path cty.Path) {
	l := blockLevel(&n.Block)
	if n.Nesting == contract.NestingSingle || n.Nesting == contract.NestingGroup {
		if planned.IsKnown() || !actual.IsNull() { // unknown blocks may have become none
			c.keptObject(l, planned, actual, path)
		}
		return
	}
	if !planned.IsKnown() || !actual.IsKnown() || planned.IsNull() || actual.IsNull() {
		return
	}
	if n.Nesting == contract.NestingSet {
		c.keptSet(planned, actual, path, func(p, a cty.Value) bool {
			one := &planCheck{}
			one.keptObject(l, p, a, nil)
			return len(one.problems) == 0
		})
		return
	}
	if length(planned) != length(actual) {
		c.report(path, "%d blocks were planned, and there are %d", length(planned), length(actual))
		return
	}
	for it := planned.ElementIterator(); it.Next(); {
		key, p := it.Element()
		at := indexStep(path, key)
		if a, found := element(actual, key); found {
			c.keptObject(l, p, a, at)
		} else {
			c.report(at, "the block was planned, and is not there")
		}
	}
}

// kept compares values of which the schema says no more. The path is only put together
// for what is to be complained about.
func (c *planCheck) kept(planned, actual cty.Value, parent cty.Path, last cty.PathStep) {
	if planned.Type() == cty.DynamicPseudoType || planned.RawEquals(actual) {
		return
	}
	path := step(parent, last)
	if len(actual.Type().TestConformance(planned.Type())) > 0 {
		c.report(path, "is of another type than was planned: %s, not %s", actual.Type().FriendlyName(), planned.Type().FriendlyName())
		return
	}
	switch {
	case !planned.IsKnown():
		if possible := planned.Range().Includes(actual); possible.IsKnown() && possible.False() {
			c.report(path, "is not what the plan promised of an unknown value")
		}
		return
	case planned.IsNull() && actual.IsNull():
		return
	case planned.IsNull():
		c.report(path, "was planned as null, and has a value")
		return
	case !actual.IsKnown():
		c.report(path, "was planned with a value, and is unknown")
		return
	case actual.IsNull():
		c.report(path, "was planned with a value, and is null")
		return
	}
	c.keptKnown(planned, actual, path)
}

func (c *planCheck) keptKnown(planned, actual cty.Value, path cty.Path) {
	ty := planned.Type()
	switch {
	case ty.IsPrimitiveType():
		if !actual.Equals(planned).True() {
			c.report(path, "has another value than was planned")
		}
	case ty.IsObjectType():
		for _, name := range slices.Sorted(maps.Keys(ty.AttributeTypes())) {
			c.kept(planned.GetAttr(name), actual.GetAttr(name), path, cty.GetAttrStep{Name: name})
		}
	case ty.IsSetType():
		c.keptSet(planned, actual, path, func(p, a cty.Value) bool {
			one := &planCheck{}
			one.kept(p, a, nil, cty.IndexStep{Key: cty.UnknownVal(cty.String)})
			return len(one.problems) == 0
		})
	case ty.IsListType() || ty.IsMapType() || ty.IsTupleType():
		for it := planned.ElementIterator(); it.Next(); {
			key, p := it.Element()
			if a, found := element(actual, key); found {
				c.kept(p, a, path, cty.IndexStep{Key: key})
			} else {
				c.report(indexStep(path, key), "was planned, and is not there")
			}
		}
		for it := actual.ElementIterator(); it.Next(); {
			key, _ := it.Element()
			if _, found := element(planned, key); !found {
				c.report(indexStep(path, key), "was not planned, and is there")
			}
		}
	}
}

// keptSet wants for each element of either set one in the other that fits. There may be fewer than
// planned, because what was unknown can turn out to be the same, and never more.
func (c *planCheck) keptSet(planned, actual cty.Value, path cty.Path, fit func(p, a cty.Value) bool) {
	was, is := planned.AsValueSlice(), actual.AsValueSlice()
	foundWas, foundIs := make([]bool, len(was)), make([]bool, len(is))
	for i := range was {
		for j := range is {
			if (!foundWas[i] || !foundIs[j]) && fit(was[i], is[j]) {
				foundWas[i], foundIs[j] = true, true
			}
		}
	}
	missing := func(found []bool) int {
		n := 0
		for _, f := range found {
			if !f {
				n++
			}
		}
		return n
	}
	if n := missing(foundWas); n > 0 {
		c.report(path, "%s of the set were planned, and are not there", elements(n))
		return
	}
	if n := missing(foundIs); n > 0 {
		c.report(path, "%s of the set were not planned, and are there", elements(n))
	}
	if len(is) > len(was) {
		c.report(path, "%s were planned in the set, and there are %d", elements(len(was)), len(is))
	}
}

func elements(n int) string {
	if n == 1 {
		return "1 element"
	}
	return fmt.Sprintf("%d elements", n)
}
