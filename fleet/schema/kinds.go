package schema

import (
	"slices"
	"strings"
)

// A base is the type of a value as a schema declares it. A CRD has no others.
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

// meet returns the type that both accept, ignoring null.
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

// set sets the type of p to t, which is narrower than its current one.
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

// valueKinds are the kinds of values that a validator distinguishes: each constraint applies to
// some kinds, and ignores the others.
type valueKinds uint8

const (
	isObject valueKinds = 1 << iota
	isArray
	isString
	isNumber
	isBoolean
)

// kindsOf returns the kinds of values that p accepts.
func kindsOf(p *Props) valueKinds {
	switch baseOf(p) {
	case "object":
		return isObject
	case "array":
		return isArray
	case "string":
		if formatOf(p) != "" {
			// The validator of all API servers accepts lists as strings if a format is set.
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

// takesNull reports whether p accepts a null in a list, where it is not removed.
func takesNull(p *Props) bool {
	return (p.Nullable || baseOf(p) == anything) && len(p.Enum) == 0
}

// formatOf returns the format of p if API servers enforce it, and otherwise "". Other formats are
// only annotations, and a CRD may have any.
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

// stringFormats are the formats that an API server of 1.36 enforces, without hyphens. Older ones
// enforce fewer.
func stringFormats() []string {
	return []string{
		"bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3", "uuid4", "uuid5",
		"isbn", "isbn10", "isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password", "date", "duration",
		"datetime", "k8sshortname", "k8slongname",
	}
}

// format restricts the values to those that have the formats of both.
func (c *comparison) format(at location, result, a, b *Props) {
	meeting, fa, fb := baseOf(result), formatOf(a), formatOf(b)
	loose := fa != "" && baseOf(a) == anything || fb != "" && baseOf(b) == anything
	switch {
	case meeting == "string":
		c.stringFormat(at, result, a, b)
	case loose && (meeting != anything || fb != "" && fa != fb):
		// A format without a type rejects non-strings, so it cannot be combined with another type.
		c.refuse(at, FormatDiffers, "has format %q without a type in one schema and is %s in the other", a.Format+b.Format, meeting)
	case meeting == "integer" || meeting == "number":
		c.numberFormat(at, result, b)
	case meeting == intOrString && fb != "" && fa != fb:
		// In allOf, the place for a second format, it would reject integers.
		if fa != "" || !c.narrow {
			c.refuse(at, FormatDiffers, "must have format %s in the other schema", fb)
			return
		}
		result.Format = b.Format
	}
}

// numberFormat: int32 is narrower than int64, and float than double. The range of a float contains
// every integer.
func (c *comparison) numberFormat(at location, result, b *Props) {
	fb := formatOf(b)
	if formatOf(result) == "" {
		result.Format = "" // of another type, or only an annotation
	}
	tighter := fb == "int32" && baseOf(result) == "integer" && formatOf(result) != "int32" ||
		fb == "float" && baseOf(result) == "number" && formatOf(result) != "float"
	if !tighter {
		return
	}
	if !c.narrow {
		c.refuse(at, FormatDiffers, "must have format %s in the other schema", fb)
		return
	}
	result.Format = b.Format
}

// stringFormat: a string with a format also accepts lists (kindsOf). Unless both do, the formats go
// into allOf, where that does not happen.
func (c *comparison) stringFormat(at location, result, a, b *Props) {
	fa, fb := formatOf(a), formatOf(b)
	lists := kindsOf(result)&isArray != 0 && (kindsOf(a)&isArray == 0 || kindsOf(b)&isArray == 0)
	unmet := fb != "" && !hasFormat(result, fb)
	if !lists && !unmet {
		return
	}
	if !c.narrow {
		if unmet {
			c.refuse(at, FormatDiffers, "must have format %s in the other schema", fb)
		} else {
			c.refuse(at, FormatDiffers, "has format %s, with which API servers also accept lists, and the other schema does not", fa)
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
