package schema

import (
	"slices"
	"strings"
)

// A base is what a schema says about the type of a value. A CRD knows no
// others.
type base string

const (
	anything    base = "anything"
	intOrString base = "integer or string"
)

func baseOf(p *Props) base {
	switch {
	case p.XIntOrString:
		return intOrString
	case p.Type == "":
		return anything
	}
	return base(p.Type)
}

// meet gives what both accept, null apart.
func (t base) meet(other base) (base, bool) {
	narrower := func(x, y base) bool {
		return x == y || y == anything || x == "integer" && (y == "number" || y == intOrString) || x == "string" && y == intOrString
	}
	switch {
	case narrower(t, other):
		return t, true
	case narrower(other, t):
		return other, true
	case t == intOrString && other == "number", t == "number" && other == intOrString:
		return "integer", true
	}
	return "", false
}

// set makes p say t, which is narrower than what it says.
func (t base) set(p *Props) {
	p.XIntOrString = t == intOrString
	p.Type = ""
	if t != intOrString && t != anything {
		p.Type = string(t)
	}
	if p.Type != "object" && p.Type != "array" {
		p.XPreserveUnknownFields = nil
		p.XEmbeddedResource = false
	}
	if p.Type != "" && p.Type != "array" || p.XIntOrString {
		p.Items, p.XListType, p.XListMapKeys = nil, nil, nil
	}
	if p.Type != "" && p.Type != "object" || p.XIntOrString {
		p.Properties, p.AdditionalProperties, p.XMapType = nil, nil, nil
	}
}

// kinds are the sorts of values that a validator tells apart: each constraint
// is about some and lets the others pass.
type kinds uint8

const (
	isObject kinds = 1 << iota
	isArray
	isString
	isNumber
	isBoolean
)

// kindsOf gives the kinds of values that p lets through.
func kindsOf(p *Props) kinds {
	switch baseOf(p) {
	case "object":
		return isObject
	case "array":
		return isArray
	case "string":
		if formatOf(p) != "" {
			// The validator that all API servers have takes lists for
			// strings where a format is set.
			return isString | isArray
		}
		return isString
	case "integer", "number":
		return isNumber
	case "boolean":
		return isBoolean
	case intOrString:
		return isNumber | isString
	}
	if formatOf(p) != "" {
		return isString | isArray
	}
	return isObject | isArray | isString | isNumber | isBoolean
}

// takesNull tells whether a null passes p in a list, where nothing removes it.
func takesNull(p *Props) bool {
	return (p.Nullable || baseOf(p) == anything) && len(p.Enum) == 0
}

// formatOf gives the format of p that API servers enforce, "" if none. Others
// are remarks: a CRD may say anything there.
func formatOf(p *Props) string {
	if p.Format == "" {
		return ""
	}
	switch baseOf(p) {
	case "string", anything, intOrString:
		if f := strings.ReplaceAll(p.Format, "-", ""); slices.Contains(stringFormats(), f) {
			return f
		}
	case "integer":
		if p.Format == "int32" || p.Format == "int64" {
			return p.Format
		}
	case "number":
		if p.Format == "float" || p.Format == "double" {
			return p.Format
		}
	}
	return ""
}

// stringFormats are those that an API server of 1.36 enforces, without their
// hyphens. Older ones enforce fewer.
func stringFormats() []string {
	return []string{
		"bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3", "uuid4", "uuid5",
		"isbn", "isbn10", "isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password", "date", "duration",
		"datetime", "k8sshortname", "k8slongname",
	}
}

// format lets only such values through as have the formats of both.
func (c *comparison) format(at place, result, a, b *Props) {
	meeting, fa, fb := baseOf(result), formatOf(a), formatOf(b)
	loose := fa != "" && baseOf(a) == anything || fb != "" && baseOf(b) == anything
	switch {
	case meeting == "string":
		c.stringFormat(at, result, a, b)
	case loose && (meeting != anything || fb != "" && fa != fb):
		// A format without a type refuses what is no string, so it cannot go
		// where the type is another one.
		c.refuse(at, FormatDiffers, "has format %q without a type in one and is %s in the other", a.Format+b.Format, meeting)
	case meeting == "integer" || meeting == "number":
		c.numberFormat(at, result, b)
	case meeting == intOrString && fb != "" && fa != fb:
		// In allOf, where a second format could go, it would refuse integers.
		if fa != "" || !c.narrow {
			c.refuse(at, FormatDiffers, "must be of format %s in the other", fb)
			return
		}
		result.Format = b.Format
	}
}

// numberFormat: int32 is narrower than int64, float than double; a float's
// range holds every integer.
func (c *comparison) numberFormat(at place, result, b *Props) {
	fb := formatOf(b)
	if formatOf(result) == "" {
		result.Format = "" // of another type, or a remark
	}
	tighter := fb == "int32" && baseOf(result) == "integer" && formatOf(result) != "int32" ||
		fb == "float" && baseOf(result) == "number" && formatOf(result) != "float"
	if !tighter {
		return
	}
	if !c.narrow {
		c.refuse(at, FormatDiffers, "must be of format %s in the other", fb)
		return
	}
	result.Format = b.Format
}

// stringFormat: a string with a format also lets lists through (kindsOf), so
// unless both do, the formats go where that does not happen: into allOf.
func (c *comparison) stringFormat(at place, result, a, b *Props) {
	fa, fb := formatOf(a), formatOf(b)
	lists := kindsOf(result)&isArray != 0 && (kindsOf(a)&isArray == 0 || kindsOf(b)&isArray == 0)
	unmet := fb != "" && !hasFormat(result, fb)
	if !lists && !unmet {
		return
	}
	if !c.narrow {
		if unmet {
			c.refuse(at, FormatDiffers, "must be of format %s in the other", fb)
		} else {
			c.refuse(at, FormatDiffers, "has format %s, with which API servers also take lists, and the other does not", fa)
		}
		return
	}
	result.Format = ""
	for _, p := range []*Props{a, b} {
		if f := formatOf(p); f != "" && !hasFormat(result, f) {
			result.AllOf = append(result.AllOf, Props{Format: p.Format})
		}
	}
}

func hasFormat(p *Props, format string) bool {
	return slices.ContainsFunc(conjuncts(p), func(q *Props) bool { return formatOf(q) == format })
}
