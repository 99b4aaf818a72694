package decide

import (
	"fmt"
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// assertCompatible lists where an actual value contradicts the planned one. Known values must be
// equal. Unknown values may have become any value that the plan allowed. The values have no marks.
func assertCompatible(block *providerapi.Block, planned, actual cty.Value) []Problem {
	c := &planCheck{}
	c.compatibleObject(providerapi.BlockLevel(block), planned, actual, nil)
	return c.problems
}

func (c *planCheck) compatibleObject(l providerapi.Level, planned, actual cty.Value, path cty.Path) {
	switch {
	case planned.IsNull() && actual.IsNull():
		return
	case planned.IsNull():
		c.report(path, "was planned as absent, but is present")
		return
	case actual.IsNull():
		c.report(path, "was planned as present, but is absent")
		return
	}
	for i := range l.Attributes {
		a := &l.Attributes[i]
		c.compatibleValue(attributeOf(planned, a), attributeOf(actual, a), path, cty.GetAttrStep{Name: a.Name})
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		c.compatibleBlocks(n, blockOf(planned, n), blockOf(actual, n), attributeStep(path, n.Name))
	}
}

func (c *planCheck) compatibleBlocks(n *providerapi.NestedBlock, planned, actual cty.Value, path cty.Path) {
	l := providerapi.BlockLevel(&n.Block)
	if n.Nesting == providerapi.NestingSingle || n.Nesting == providerapi.NestingGroup {
		if planned.IsKnown() || !actual.IsNull() { // unknown blocks may turn out to be absent
			c.compatibleObject(l, planned, actual, path)
		}
		return
	}
	if !planned.IsKnown() || !actual.IsKnown() || planned.IsNull() || actual.IsNull() {
		return
	}
	if n.Nesting == providerapi.NestingSet {
		c.compatibleSet(planned, actual, path, func(p, a cty.Value) bool {
			one := &planCheck{}
			one.compatibleObject(l, p, a, nil)
			return len(one.problems) == 0
		})
		return
	}
	if length(planned) != length(actual) {
		c.report(path, "%d blocks were planned, but the result has %d", length(planned), length(actual))
		return
	}
	for it := planned.ElementIterator(); it.Next(); {
		key, p := it.Element()
		at := indexStep(path, key)
		if a, found := element(actual, key); found {
			c.compatibleObject(l, p, a, at)
		} else {
			c.report(at, "the planned block is missing")
		}
	}
}

// compatibleValue compares values that the schema describes by their type only. It builds the path
// only to report a problem.
func (c *planCheck) compatibleValue(planned, actual cty.Value, parent cty.Path, last cty.PathStep) {
	if planned.Type() == cty.DynamicPseudoType || planned.RawEquals(actual) {
		return
	}
	path := step(parent, last)
	if len(actual.Type().TestConformance(planned.Type())) > 0 {
		c.report(path, "has type %s, but type %s was planned", actual.Type().FriendlyName(), planned.Type().FriendlyName())
		return
	}
	switch {
	case !planned.IsKnown():
		if possible := planned.Range().Includes(actual); possible.IsKnown() && possible.False() {
			c.report(path, "has a value outside of the planned range")
		}
		return
	case planned.IsNull() && actual.IsNull():
		return
	case planned.IsNull():
		c.report(path, "was planned as null, but has a value")
		return
	case !actual.IsKnown():
		c.report(path, "was planned with a value, but is unknown")
		return
	case actual.IsNull():
		c.report(path, "was planned with a value, but is null")
		return
	}
	c.compatibleKnown(planned, actual, path)
}

func (c *planCheck) compatibleKnown(planned, actual cty.Value, path cty.Path) {
	ty := planned.Type()
	switch {
	case ty.IsPrimitiveType():
		if !actual.Equals(planned).True() {
			c.report(path, "has a value that differs from the planned one")
		}
	case ty.IsObjectType():
		for _, name := range slices.Sorted(maps.Keys(ty.AttributeTypes())) {
			c.compatibleValue(planned.GetAttr(name), actual.GetAttr(name), path, cty.GetAttrStep{Name: name})
		}
	case ty.IsSetType():
		c.compatibleSet(planned, actual, path, func(p, a cty.Value) bool {
			one := &planCheck{}
			one.compatibleValue(p, a, nil, cty.IndexStep{Key: cty.UnknownVal(cty.String)})
			return len(one.problems) == 0
		})
	case ty.IsListType() || ty.IsMapType() || ty.IsTupleType():
		for it := planned.ElementIterator(); it.Next(); {
			key, p := it.Element()
			if a, found := element(actual, key); found {
				c.compatibleValue(p, a, path, cty.IndexStep{Key: key})
			} else {
				c.report(indexStep(path, key), "was planned, but is missing")
			}
		}
		for it := actual.ElementIterator(); it.Next(); {
			key, _ := it.Element()
			if _, found := element(planned, key); !found {
				c.report(indexStep(path, key), "was not planned, but is present")
			}
		}
	}
}

// compatibleSet requires a match in the other set for each element. The actual set may have fewer
// elements than planned, because unknown elements can turn out to be equal, but never more.
func (c *planCheck) compatibleSet(planned, actual cty.Value, path cty.Path, fit func(p, a cty.Value) bool) {
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
		c.report(path, "%s of the planned set have no match in the result", elements(n))
		return
	}
	if n := missing(foundIs); n > 0 {
		c.report(path, "%s of the resulting set were not planned", elements(n))
	}
	if len(is) > len(was) {
		c.report(path, "the set was planned with %s, but has %d", elements(len(was)), len(is))
	}
}

func elements(n int) string {
	if n == 1 {
		return "1 element"
	}
	return fmt.Sprintf("%d elements", n)
}
