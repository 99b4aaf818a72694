package decide

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// ProposedNew returns the proposed state that a provider plans for: the configuration, with prior
// values for computed attributes that are not configured.
//
// Blocks and nested objects are matched one by one: by position in a list, by key in a map, and in
// a set if the prior element could have come from the configured one. Neither value has marks.
// prior is wholly known or wholly unknown. Both have the block's type. Write-only arguments are
// included.
func ProposedNew(block *providerapi.Block, prior, config cty.Value) cty.Value {
	if config.IsNull() && prior.IsNull() {
		return prior
	}
	if isConfig(block, prior, config) {
		return config
	}
	if prior.IsKnown() && prior.IsNull() {
		// So that the code below can read its attributes.
		prior = block.Empty()
	}
	if config.IsNull() || !config.IsKnown() {
		return prior
	}
	return proposedObject(providerapi.BlockLevel(block), prior, config)
}

// isConfig reports whether the proposed state equals the configuration: without prior state there
// is nothing to add to it. Only a group that is not configured, but must never be null, has to be
// added.
func isConfig(block *providerapi.Block, prior, config cty.Value) bool {
	return prior.IsNull() && config.IsKnown() && !config.IsNull() && !hasGroup(block)
}

func hasGroup(block *providerapi.Block) bool {
	for i := range block.Blocks {
		if n := &block.Blocks[i]; n.Nesting == providerapi.NestingGroup || hasGroup(&n.Block) {
			return true
		}
	}
	return false
}

// PlannedDataSource returns the planned value of a data source: its configuration, with computed
// attributes unknown.
func PlannedDataSource(block *providerapi.Block, config cty.Value) cty.Value {
	return ProposedNew(block, cty.UnknownVal(block.ImpliedType()), config)
}

func proposedObject(l providerapi.Level, prior, config cty.Value) cty.Value {
	of := make(map[string]cty.Value, len(l.Attributes)+len(l.Blocks))
	for i := range l.Attributes {
		a := &l.Attributes[i]
		of[a.Name] = proposedAttribute(a, attributeOf(prior, a), attributeOf(config, a))
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		of[n.Name] = proposedBlocks(n, blockOf(prior, n), blockOf(config, n))
	}
	return cty.ObjectVal(of)
}

func proposedAttribute(a *providerapi.Attribute, prior, config cty.Value) cty.Value {
	switch {
	case a.Computed && config.IsNull():
		if a.Optional && a.Nested != nil && wasConfigured(a.Nested, prior) {
			// It was configured and is now removed: keeping it would ignore the removal.
			return config
		}
		return prior
	case a.Nested == nil || config.IsNull() || !config.IsKnown():
		return config
	}
	one := func(prior, config cty.Value) cty.Value {
		if config.IsNull() {
			return config
		}
		return proposedObject(providerapi.ObjectLevel(a.Nested), prior, config)
	}
	return proposedNested(a.Nested.Nesting, providerapi.ObjectLevel(a.Nested), prior, config, one)
}

func proposedBlocks(n *providerapi.NestedBlock, prior, config cty.Value) cty.Value {
	if !config.IsKnown() || config.IsNull() && n.Nesting != providerapi.NestingGroup {
		return config
	}
	one := func(prior, config cty.Value) cty.Value { return ProposedNew(&n.Block, prior, config) }
	return proposedNested(n.Nesting, providerapi.BlockLevel(&n.Block), prior, config, one)
}

func proposedNested(nesting providerapi.Nesting, l providerapi.Level, prior, config cty.Value, one func(prior, config cty.Value) cty.Value) cty.Value {
	switch nesting {
	case providerapi.NestingSingle, providerapi.NestingGroup:
		return one(prior, config)
	case providerapi.NestingSet:
		return proposedSet(l, prior, config, one)
	}
	if length(config) == 0 {
		return config
	}
	n := length(config)
	keys, elements := make([]cty.Value, 0, n), make([]cty.Value, 0, n)
	for it := config.ElementIterator(); it.Next(); {
		key, v := it.Element()
		old, found := element(prior, key)
		switch {
		case found:
			v = one(old, v)
		case !prior.IsKnown() && nesting != providerapi.NestingMap:
			// A list of a data source: its elements are the configured ones with computed attributes added.
			v = one(cty.UnknownVal(v.Type()), v)
		}
		keys, elements = append(keys, key), append(elements, v)
	}
	return collectionLike(config, keys, elements)
}

// proposedSet takes, for each element, the first unused prior element that could have come from it.
// If several could, they differ only in computed attributes.
func proposedSet(l providerapi.Level, prior, config cty.Value, one func(prior, config cty.Value) cty.Value) cty.Value {
	if length(config) == 0 {
		return config
	}
	var old []cty.Value
	if prior.IsKnown() && !prior.IsNull() {
		old = prior.AsValueSlice()
	}
	elements := make([]cty.Value, 0, length(config))
	for it := config.ElementIterator(); it.Next(); {
		_, v := it.Element()
		match := cty.NullVal(config.Type().ElementType())
		for i, candidate := range old {
			if candidate != cty.NilVal && couldComeFrom(l, candidate, v) {
				match, old[i] = candidate, cty.NilVal
				break
			}
		}
		elements = append(elements, one(match, v))
	}
	return cty.SetVal(elements)
}

// wasConfigured reports whether the value contains anything that the provider does not compute.
func wasConfigured(o *providerapi.Object, v cty.Value) bool {
	if v.IsNull() || !v.IsKnown() {
		return false
	}
	if o.Nesting != providerapi.NestingSingle && o.Nesting != providerapi.NestingGroup {
		for it := v.ElementIterator(); it.Next(); {
			_, one := it.Element()
			if wasConfiguredObject(o, one) {
				return true
			}
		}
		return false
	}
	return wasConfiguredObject(o, v)
}

func wasConfiguredObject(o *providerapi.Object, v cty.Value) bool {
	if v.IsNull() || !v.IsKnown() {
		return false
	}
	for i := range o.Attributes {
		a := &o.Attributes[i]
		of := v.GetAttr(a.Name)
		if of.IsNull() {
			continue
		}
		if !a.Computed || a.Nested != nil && wasConfigured(a.Nested, of) {
			return true
		}
	}
	return false
}

// couldComeFrom reports whether the provider can have made the prior value from the configuration:
// they differ only in computed attributes that are not configured.
func couldComeFrom(l providerapi.Level, old, config cty.Value) bool {
	if equalUnrefined(old, config) || old.IsNull() {
		return true
	}
	if config.IsNull() {
		return false
	}
	for i := range l.Attributes {
		a := &l.Attributes[i]
		o, c := attributeOf(old, a), attributeOf(config, a)
		if !attributeCouldComeFrom(a, o, c) {
			return false
		}
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		o, c := blockOf(old, n), blockOf(config, n)
		if !equalUnrefined(o, c) && !nestedCouldComeFrom(n.Nesting, providerapi.BlockLevel(&n.Block), o, c) {
			return false
		}
	}
	return true
}

func attributeCouldComeFrom(a *providerapi.Attribute, old, config cty.Value) bool {
	switch {
	case equalUnrefined(old, config):
		return true
	case config.Type().IsSetType():
		return false // the elements of one set cannot be matched within those of another
	case a.Nested != nil:
		return nestedCouldComeFrom(a.Nested.Nesting, providerapi.ObjectLevel(a.Nested), old, config)
	}
	return a.Computed && config.IsNull()
}

func nestedCouldComeFrom(nesting providerapi.Nesting, l providerapi.Level, old, config cty.Value) bool {
	if nesting == providerapi.NestingSet {
		return false
	}
	if old.IsNull() {
		return true
	}
	if config.IsNull() {
		return length(old) == 0 && nesting != providerapi.NestingSingle && nesting != providerapi.NestingGroup
	}
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		return couldComeFrom(l, old, config)
	}
	for it := old.ElementIterator(); it.Next(); {
		key, o := it.Element()
		c, found := element(config, key)
		if !config.IsKnown() {
			c, found = cty.UnknownVal(o.Type()), true
		}
		if !found || !couldComeFrom(l, o, c) {
			return false
		}
	}
	return true
}
