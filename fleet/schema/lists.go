package schema

import (
	"slices"
	"strings"
)

// list compares items, and how lists are merged.
func (c *comparison) list(at location, result, a, b *Props) {
	if baseOf(result) != "array" && baseOf(result) != anything {
		return // a string that accepts lists because of its format
	}
	c.items(at, result, a, b)
	if result.Type == "array" && !preserves(b) {
		result.XPreserveUnknownFields = nil // otherwise it would apply to the items
	}
	la, lb := listTypeOf(a), listTypeOf(b)
	switch {
	case la == lb && (la != "map" || sameWords(a.XListMapKeys, b.XListMapKeys)):
		if result.XListType == nil {
			result.XListType = b.XListType
		}
	case la == "map" && lb == "map" && c.keys(result, a, b):
	case lb == "atomic":
		// Entries are unique in the result, which an atomic list accepts. In the cluster only the
		// syncer applies it, so it is sent whole.
	case la == "atomic" && c.narrow:
		result.XListType, result.XListMapKeys = b.XListType, slices.Clone(b.XListMapKeys)
	default:
		c.refuse(at, ListTypeDiffers, "is a list of type %s%s in one schema and %s%s in the other",
			la, inBrackets(a.XListMapKeys), lb, inBrackets(b.XListMapKeys))
	}
	c.checkListType(at, result)
}

// keys keeps the shared keys: entries with different values of some keys differ in the whole key,
// too. Transition rules depend on the identity of an entry, so they prevent this.
func (c *comparison) keys(result, a, b *Props) bool {
	shared := inBoth(a.XListMapKeys, b.XListMapKeys)
	if len(shared) == 0 || !c.narrow && len(shared) < len(a.XListMapKeys) || transitionsBelow(a) || transitionsBelow(b) {
		return false
	}
	if c.narrow {
		result.XListMapKeys = shared
	}
	return true
}

func listTypeOf(p *Props) string {
	if p.XListType == nil {
		return "atomic"
	}
	return *p.XListType
}

func (c *comparison) items(at location, result, a, b *Props) {
	ia, ib := itemsOf(a), itemsOf(b)
	below := at.down(a, b, "*", "[*]")
	switch {
	case ib == nil:
		// next keeps all content of the list.
	case ia == nil:
		if !c.narrow {
			c.refuse(below, UnknownFieldsDiffer, "may have any content, which the other schema restricts")
			return
		}
		result.Items = b.Items.DeepCopy()
	default:
		met := c.intersect(below, ia, ib)
		c.valueDefault(below, met, ia, ib)
		if c.narrow {
			result.Items.Schema = met
		}
	}
}

// itemsOf returns the schema of the items. A list passes preserved unknown fields on to its items;
// properties do not.
func itemsOf(p *Props) *Props {
	if p.Items == nil || p.Items.Schema == nil {
		return nil
	}
	items := p.Items.Schema
	switch b := baseOf(items); {
	case preserves(p) && (b == "object" || b == "array"):
		return preserve(items)
	default:
		return items
	}
}

// checkListType checks the requirements of a CRD for sets and maps, because fields that were
// dropped from the items can violate them.
func (c *comparison) checkListType(at location, p *Props) {
	kind := listTypeOf(p)
	if !c.narrow || kind == "atomic" {
		return
	}
	items := itemsOf(p)
	if items == nil || p.Type != "array" || items.Nullable {
		c.refuse(at, ListTypeDiffers, "cannot be a list of type %s, because its items may be null or have any type", kind)
		return
	}
	if kind == "set" {
		if baseOf(items) == "object" && mapTypeOf(items) != "atomic" || baseOf(items) == "array" && listTypeOf(items) != "atomic" {
			c.refuse(at, ListTypeDiffers, "cannot be a set, because its items are not atomic")
		}
		return
	}
	for _, key := range p.XListMapKeys {
		k, ok := items.Properties[key]
		switch {
		case !ok || k.Nullable || baseOf(&k) == "object" || baseOf(&k) == "array" || baseOf(&k) == anything:
			c.refuse(at, ListTypeDiffers, "cannot be a map with key %s, which is not a scalar in both schemas", key)
		case defaultOf(&k) == nil && !slices.Contains(items.Required, key):
			c.refuse(at, ListTypeDiffers, "cannot be a map with key %s, which is neither required nor has a default", key)
		}
	}
}

func sameWords(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func inBrackets(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return " " + "[" + strings.Join(words, ", ") + "]"
}
