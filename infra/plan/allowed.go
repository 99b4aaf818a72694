package plan

import (
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// forbidden lists what a provider must not have planned. It may fill in what it
// computes and nobody wrote, with a value or as unknown. What is written it keeps, or
// keeps the old value if to it both mean the same. The values have no marks.
//
// Elements of sets cannot be matched, so what is within them is the provider's word.
func forbidden(block *contract.Block, prior, config, planned cty.Value) []Problem {
	c := &planCheck{}
	c.object(blockLevel(block), prior, config, planned, nil)
	return c.problems
}

// planCheck collects problems. They name paths and types and no values, which may be secret.
type planCheck struct{ problems []Problem }

func (c *planCheck) report(path cty.Path, format string, args ...any) {
	c.problems = append(c.problems, Problem{Path: path, Text: fmt.Sprintf(format, args...)})
}

func (c *planCheck) object(l level, prior, config, planned cty.Value, path cty.Path) {
	switch {
	case planned.IsNull() && config.IsNull():
		return
	case planned.IsNull():
		c.report(path, "is written, and planned not to be")
		return
	case config.IsNull():
		c.report(path, "is not written, and planned to be")
		return
	}
	c.attributes(l.attributes, prior, config, planned, path)
	for i := range l.blocks {
		n := &l.blocks[i]
		c.blocks(n, blockOf(prior, n), blockOf(config, n), blockOf(planned, n), attributeStep(path, n.Name))
	}
}

func (c *planCheck) attributes(all []contract.Attribute, prior, config, planned cty.Value, path cty.Path) {
	for i := range all {
		a := &all[i]
		w := attributeOf(config, a)
		if a.Computed && w.IsNull() {
			continue // it is for the provider to say
		}
		v := attributeOf(planned, a)
		if w.IsNull() && v.IsNull() || v.RawEquals(w) {
			continue // nearly always, and without a path to be built
		}
		c.attribute(a, attributeOf(prior, a), w, v, attributeStep(path, a.Name))
	}
}

func (c *planCheck) attribute(a *contract.Attribute, prior, config, planned cty.Value, path cty.Path) {
	switch {
	case same(planned, config):
	case !prior.IsNull() && !config.IsNull() && same(planned, prior):
	case a.Computed && (!a.Optional || config.IsNull()):
	case config.IsNull():
		c.report(path, "has a planned value, although it is not computed and nothing is written")
	case planned.IsNull() && a.WriteOnly:
	case a.Nested != nil:
		c.nested(a.Nested, prior, config, planned, path)
	case prior.IsNull():
		c.report(path, "is planned to be something else than what is written")
	default:
		c.report(path, "is planned to be neither what is written nor what it was")
	}
}

// nested checks an attribute that has attributes. Config is not null.
func (c *planCheck) nested(o *contract.Object, prior, config, planned cty.Value, path cty.Path) {
	switch {
	case planned.IsNull():
		c.report(path, "is written, and planned not to be")
		return
	case !planned.IsKnown():
		c.report(path, "is written, and planned as unknown")
		return
	case o.Nesting == contract.NestingSingle || o.Nesting == contract.NestingGroup:
		c.attributes(o.Attributes, prior, config, planned, path)
		return
	case o.Nesting == contract.NestingSet:
		// Elements that are not known yet may turn out to be one and the same.
		if possible := planned.Length().Range().Includes(config.Length()); possible.IsKnown() && possible.False() {
			c.report(path, "is not planned with as many elements as are written")
		}
		return
	case !config.IsKnown():
		c.report(path, "is not known yet, and planned as known")
		return
	case length(planned) != length(config):
		c.report(path, "is planned with %d elements, and written with %d", length(planned), length(config))
		return
	}
	for it := planned.ElementIterator(); it.Next(); {
		key, v := it.Element()
		at := indexStep(path, key)
		w, found := element(config, key)
		if !found {
			c.report(at, "is planned, and not written")
			continue
		}
		p, found := element(prior, key)
		if !found {
			p = cty.NullVal(v.Type())
		}
		if v.IsNull() || w.IsNull() {
			if v.IsNull() != w.IsNull() {
				c.report(at, "is null either as written or as planned, and not both")
			}
			continue
		}
		c.attributes(o.Attributes, p, w, v, at)
	}
}

func (c *planCheck) blocks(n *contract.NestedBlock, prior, config, planned cty.Value, path cty.Path) {
	switch {
	case planned.RawEquals(config):
		return
	case !config.IsKnown():
		c.report(path, "how many blocks there are is not known yet, and planned as known")
		return
	case !planned.IsKnown():
		c.report(path, "blocks cannot be planned as unknown, only what is in them")
		return
	}
	l := blockLevel(&n.Block)
	if n.Nesting == contract.NestingSingle || n.Nesting == contract.NestingGroup {
		c.object(l, prior, config, planned, path)
		return
	}
	if planned.IsNull() {
		c.report(path, "no blocks are planned as null instead of an empty collection")
		return
	}
	// A number of blocks in a set can shrink when values become known and equal.
	if n.Nesting != contract.NestingSet && length(planned) != length(config) {
		c.report(path, "%d blocks are planned, and %d written", length(planned), length(config))
		return
	}
	for it := planned.ElementIterator(); it.Next(); {
		key, v := it.Element()
		at := indexStep(path, key)
		if !v.IsKnown() {
			c.report(at, "a block cannot be planned as unknown, only what is in it")
			continue
		}
		if n.Nesting == contract.NestingSet {
			continue
		}
		w, found := element(config, key)
		if !found {
			c.report(at, "a block is planned that is not written")
			continue
		}
		p, found := element(prior, key)
		if !found {
			p = cty.NullVal(v.Type())
		}
		c.object(l, p, w, v, at)
	}
}

// writeOnlyKept lists write-only values that a provider gave back. They would be stored and shown.
func writeOnlyKept(block *contract.Block, v cty.Value) []Problem {
	l := blockLevel(block)
	if !hasWriteOnly(l) {
		return nil
	}
	c := &planCheck{}
	c.writeOnly(l, v, nil)
	return c.problems
}

func (c *planCheck) writeOnly(l level, v cty.Value, path cty.Path) {
	if v.IsNull() || !v.IsKnown() {
		return
	}
	for i := range l.attributes {
		a := &l.attributes[i]
		of, at := v.GetAttr(a.Name), attributeStep(path, a.Name)
		if a.WriteOnly && !of.IsNull() {
			c.report(at, "is write-only, and the provider gave it back")
		} else if a.Nested != nil {
			c.writeOnlyIn(a.Nested.Nesting, objectLevel(a.Nested), of, at)
		}
	}
	for i := range l.blocks {
		n := &l.blocks[i]
		c.writeOnlyIn(n.Nesting, blockLevel(&n.Block), v.GetAttr(n.Name), attributeStep(path, n.Name))
	}
}

func (c *planCheck) writeOnlyIn(nesting contract.Nesting, l level, v cty.Value, path cty.Path) {
	if v.IsNull() || !v.IsKnown() || !hasWriteOnly(l) {
		return
	}
	if nesting == contract.NestingSingle || nesting == contract.NestingGroup {
		c.writeOnly(l, v, path)
		return
	}
	for it := v.ElementIterator(); it.Next(); {
		key, one := it.Element()
		c.writeOnly(l, one, indexStep(path, key))
	}
}

func hasWriteOnly(l level) bool {
	for i := range l.attributes {
		a := &l.attributes[i]
		if a.WriteOnly || a.Nested != nil && hasWriteOnly(objectLevel(a.Nested)) {
			return true
		}
	}
	for i := range l.blocks {
		if hasWriteOnly(blockLevel(&l.blocks[i].Block)) {
			return true
		}
	}
	return false
}
