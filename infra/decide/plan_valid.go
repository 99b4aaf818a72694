package decide

import (
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// assertPlanValid lists where a planned value breaks the plugin protocol. A provider may fill in
// computed attributes that the configuration leaves out, with a value or as unknown. A configured
// argument must be planned as configured, or keep its prior value if the provider considers both
// equivalent. The values have no marks.
//
// Elements of sets cannot be matched with each other, so their contents are not checked.
func assertPlanValid(block *providerapi.Block, prior, config, planned cty.Value) []Problem {
	c := &planCheck{}
	c.object(providerapi.BlockLevel(block), prior, config, planned, nil)
	return c.problems
}

// planCheck collects problems. They name paths and types but never values, which may be secret.
type planCheck struct{ problems []Problem }

func (c *planCheck) report(path cty.Path, format string, args ...any) {
	c.problems = append(c.problems, Problem{Path: path, Text: fmt.Sprintf(format, args...)})
}

func (c *planCheck) object(l providerapi.Level, prior, config, planned cty.Value, path cty.Path) {
	switch {
	case planned.IsNull() && config.IsNull():
		return
	case planned.IsNull():
		c.report(path, "is configured, but planned as absent")
		return
	case config.IsNull():
		c.report(path, "is not configured, but planned as present")
		return
	}
	c.attributes(l.Attributes, prior, config, planned, path)
	for i := range l.Blocks {
		n := &l.Blocks[i]
		c.blocks(n, blockOf(prior, n), blockOf(config, n), blockOf(planned, n), attributeStep(path, n.Name))
	}
}

func (c *planCheck) attributes(all []providerapi.Attribute, prior, config, planned cty.Value, path cty.Path) {
	for i := range all {
		a := &all[i]
		w := attributeOf(config, a)
		if a.Computed && w.IsNull() {
			continue // the provider decides
		}
		v := attributeOf(planned, a)
		if w.IsNull() && v.IsNull() || v.RawEquals(w) {
			continue // the common case: no path has to be built
		}
		c.attribute(a, attributeOf(prior, a), w, v, attributeStep(path, a.Name))
	}
}

func (c *planCheck) attribute(a *providerapi.Attribute, prior, config, planned cty.Value, path cty.Path) {
	switch {
	case equalUnrefined(planned, config):
	case !prior.IsNull() && !config.IsNull() && equalUnrefined(planned, prior):
	case a.Computed && (!a.Optional || config.IsNull()):
	case config.IsNull():
		c.report(path, "has a planned value, but is neither computed nor configured")
	case planned.IsNull() && a.WriteOnly:
	case a.Nested != nil:
		c.nested(a.Nested, prior, config, planned, path)
	case prior.IsNull():
		c.report(path, "has a planned value that differs from the configuration")
	default:
		c.report(path, "has a planned value that is neither the configured nor the prior value")
	}
}

// nested checks an attribute with nested attributes. config is not null.
func (c *planCheck) nested(o *providerapi.Object, prior, config, planned cty.Value, path cty.Path) {
	switch {
	case planned.IsNull():
		c.report(path, "is configured, but planned as absent")
		return
	case !planned.IsKnown():
		c.report(path, "is configured, but planned as unknown")
		return
	case o.Nesting == providerapi.NestingSingle || o.Nesting == providerapi.NestingGroup:
		c.attributes(o.Attributes, prior, config, planned, path)
		return
	case o.Nesting == providerapi.NestingSet:
		// Unknown elements may turn out to be equal to others.
		if possible := planned.Length().Range().Includes(config.Length()); possible.IsKnown() && possible.False() {
			c.report(path, "has a planned number of elements that differs from the configuration")
		}
		return
	case !config.IsKnown():
		c.report(path, "is unknown in the configuration, but planned as known")
		return
	case length(planned) != length(config):
		c.report(path, "has %d planned elements, but %d in the configuration", length(planned), length(config))
		return
	}
	for it := planned.ElementIterator(); it.Next(); {
		key, v := it.Element()
		at := indexStep(path, key)
		w, found := element(config, key)
		if !found {
			c.report(at, "is planned, but not configured")
			continue
		}
		p, found := element(prior, key)
		if !found {
			p = cty.NullVal(v.Type())
		}
		if v.IsNull() || w.IsNull() {
			if v.IsNull() != w.IsNull() {
				c.report(at, "is null in only one of configuration and plan")
			}
			continue
		}
		c.attributes(o.Attributes, p, w, v, at)
	}
}

func (c *planCheck) blocks(n *providerapi.NestedBlock, prior, config, planned cty.Value, path cty.Path) {
	switch {
	case planned.RawEquals(config):
		return
	case !config.IsKnown():
		c.report(path, "the number of blocks is unknown in the configuration, but planned as known")
		return
	case !planned.IsKnown():
		c.report(path, "a collection of blocks cannot be planned as unknown; only the attributes in them can")
		return
	}
	l := providerapi.BlockLevel(&n.Block)
	if n.Nesting == providerapi.NestingSingle || n.Nesting == providerapi.NestingGroup {
		c.object(l, prior, config, planned, path)
		return
	}
	if planned.IsNull() {
		c.report(path, "no blocks must be planned as an empty collection, not as null")
		return
	}
	// A set of blocks can shrink when unknown values turn out to be equal.
	if n.Nesting != providerapi.NestingSet && length(planned) != length(config) {
		c.report(path, "%d blocks are planned, but %d configured", length(planned), length(config))
		return
	}
	for it := planned.ElementIterator(); it.Next(); {
		key, v := it.Element()
		at := indexStep(path, key)
		if !v.IsKnown() {
			c.report(at, "a block cannot be planned as unknown; only the attributes in it can")
			continue
		}
		if n.Nesting == providerapi.NestingSet {
			continue
		}
		w, found := element(config, key)
		if !found {
			c.report(at, "a block is planned that is not configured")
			continue
		}
		p, found := element(prior, key)
		if !found {
			p = cty.NullVal(v.Type())
		}
		c.object(l, p, w, v, at)
	}
}

// writeOnlyReturned lists write-only values that a provider returned. They would be stored and
// shown.
func writeOnlyReturned(block *providerapi.Block, v cty.Value) []Problem {
	l := providerapi.BlockLevel(block)
	if !hasWriteOnly(l) {
		return nil
	}
	c := &planCheck{}
	c.writeOnly(l, v, nil)
	return c.problems
}

func (c *planCheck) writeOnly(l providerapi.Level, v cty.Value, path cty.Path) {
	if v.IsNull() || !v.IsKnown() {
		return
	}
	for i := range l.Attributes {
		a := &l.Attributes[i]
		of, at := v.GetAttr(a.Name), attributeStep(path, a.Name)
		if a.WriteOnly && !of.IsNull() {
			c.report(at, "is write-only, but the provider returned a value")
		} else if a.Nested != nil {
			c.writeOnlyIn(a.Nested.Nesting, providerapi.ObjectLevel(a.Nested), of, at)
		}
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		c.writeOnlyIn(n.Nesting, providerapi.BlockLevel(&n.Block), v.GetAttr(n.Name), attributeStep(path, n.Name))
	}
}

func (c *planCheck) writeOnlyIn(nesting providerapi.Nesting, l providerapi.Level, v cty.Value, path cty.Path) {
	if v.IsNull() || !v.IsKnown() || !hasWriteOnly(l) {
		return
	}
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		c.writeOnly(l, v, path)
		return
	}
	for it := v.ElementIterator(); it.Next(); {
		key, one := it.Element()
		c.writeOnly(l, one, indexStep(path, key))
	}
}

func hasWriteOnly(l providerapi.Level) bool {
	for i := range l.Attributes {
		a := &l.Attributes[i]
		if a.WriteOnly || a.Nested != nil && hasWriteOnly(providerapi.ObjectLevel(a.Nested)) {
			return true
		}
	}
	for i := range l.Blocks {
		if hasWriteOnly(providerapi.BlockLevel(&l.Blocks[i].Block)) {
			return true
		}
	}
	return false
}
