package schema

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// A Rule is one entry of x-kubernetes-validations.
type Rule = apiextensionsv1.ValidationRule

// rules gives the result the rules of both schemas. A rule means the same in two schemas only if
// the fields that it reads have the same types: 3 / 2 is 1 for an integer and 1.5 for a number, and
// lists that are sets are equal in any order.
func (c *comparison) rules(at location, result, a, b *Props) {
	held := a
	if c.narrow {
		held = result
		for _, rule := range a.XValidations {
			c.sameMeaning(at, rule, a, result)
		}
	}
	for _, rule := range b.XValidations {
		known := slices.ContainsFunc(a.XValidations, func(r Rule) bool { return sameRule(r, rule) })
		switch {
		case !known && !c.narrow:
			c.refuse(at, RuleDiffers, "must satisfy a rule of the other schema: %s", brief(rule.Rule))
		case c.sameMeaning(at, rule, b, held) && !known:
			result.XValidations = append(result.XValidations, rule)
		}
	}
}

func sameRule(a, b Rule) bool {
	return a.Rule == b.Rule && (a.OptionalOldSelf != nil && *a.OptionalOldSelf) == (b.OptionalOldSelf != nil && *b.OptionalOldSelf)
}

func (c *comparison) sameMeaning(at location, rule Rule, source, result *Props) bool {
	h := readingOf(rule)
	if h.whole && sameShape(h, source, result) {
		return true
	}
	if !h.whole && sameFields(at, h, source, result) {
		return true
	}
	c.refuse(at, RuleDiffers, "has a rule that may read fields with different types in the two schemas: %s", brief(rule.Rule))
	return false
}

// sameFields compares the fields that a rule reads, for a rule that reads only certain fields of
// self.
func sameFields(at location, h reading, source, result *Props) bool {
	if !sameFrame(source, result) {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(source.Properties)) {
		s := source.Properties[name]
		r, kept := result.Properties[name]
		if h.reads(name) && (!kept || !sameShape(h, &s, &r)) {
			return false
		}
	}
	for name := range result.Properties {
		if _, ok := source.Properties[name]; !ok && h.reads(name) && !(at.root && isMetaField(name)) {
			return false
		}
	}
	return sameValues(h, source, result)
}

// sameShape reports whether a rule sees the same types in both. Fields of source that the result
// dropped are in no object, so they matter only to a rule that names them.
func sameShape(h reading, source, result *Props) bool {
	if !sameFrame(source, result) {
		return false
	}
	for name, s := range source.Properties {
		r, kept := result.Properties[name]
		switch {
		case !kept && h.mentions(name), kept && !sameShape(h, &s, &r):
			return false
		}
	}
	for name := range result.Properties {
		if _, ok := source.Properties[name]; !ok {
			return false
		}
	}
	return sameValues(h, source, result)
}

// sameFrame compares two schemas without their children.
func sameFrame(source, result *Props) bool {
	return baseOf(source) == baseOf(result) && sameType(source, result) &&
		preserves(source) == preserves(result) && source.XEmbeddedResource == result.XEmbeddedResource &&
		listTypeOf(source) == listTypeOf(result) && sameWords(source.XListMapKeys, result.XListMapKeys)
}

// sameType compares the types, because some formats change the type of a string.
func sameType(source, result *Props) bool {
	typed := func(p *Props) string {
		switch f := formatOf(p); f {
		case "byte", "date", "datetime", "duration":
			return f
		}
		return ""
	}
	return typed(source) == typed(result)
}

// sameValues compares items and map values.
func sameValues(h reading, source, result *Props) bool {
	si, ri := itemsOf(source), itemsOf(result)
	if (si == nil) != (ri == nil) || si != nil && !sameShape(h, si, ri) {
		return false
	}
	se, re := source.AdditionalProperties, result.AdditionalProperties
	switch {
	case se == nil || re == nil:
		return se == re
	case se.Schema == nil || re.Schema == nil:
		return se.Schema == re.Schema && se.Allows == re.Allows
	}
	return sameShape(h, se.Schema, re.Schema)
}

// A reading is what a rule may read. It is found without parsing, because a rule names every field
// that it reads.
type reading struct {
	// whole: the rule may read self as a whole, or its keys.
	whole bool
	// first are the fields of self that it reads otherwise.
	first map[string]bool
	// words are all names in the rule, including those in strings and comments.
	words map[string]bool
}

func readingOf(rule Rule) reading {
	text := rule.Rule + "\n" + rule.MessageExpression + "\n" + rule.FieldPath
	h := reading{first: map[string]bool{}, words: map[string]bool{}}
	word := regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	member := regexp.MustCompile(`^\.([A-Za-z_][A-Za-z0-9_]*)`)
	for _, span := range word.FindAllStringIndex(text, -1) {
		w := text[span[0]:span[1]]
		h.words[w] = true
		if w != "self" && w != "oldSelf" {
			continue
		}
		if span[0] > 0 && text[span[0]-1] == '.' {
			continue // a field of that name
		}
		next := member.FindStringSubmatch(text[span[1]:])
		if next == nil || strings.HasPrefix(text[span[1]+len(next[0]):], "(") {
			h.whole = true
			continue
		}
		h.first[next[1]] = true
	}
	// Fields that are not named by a path from self: see mentions.
	for _, w := range word.FindAllString(rule.FieldPath, -1) {
		h.first[w] = true
	}
	h.whole = h.whole || len(h.first) == 0
	return h
}

// reads reports whether the rule may read a field of self.
func (h reading) reads(name string) bool {
	return h.whole || h.first[name] || !plain(name)
}

// mentions reports whether the rule may name a field anywhere.
func (h reading) mentions(name string) bool {
	return h.words[name] || !plain(name)
}

// plain reports whether a rule spells the name of a field unchanged. Other names are escaped, or
// cannot be read.
func plain(name string) bool {
	return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name) && !strings.Contains(name, "__") && !slices.Contains(reserved(), name)
}

func reserved() []string {
	return []string{
		"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
		"loop", "package", "namespace", "return", "var", "void", "while",
	}
}

// brief shortens a rule for a message.
func brief(rule string) string {
	rule = strings.Join(strings.Fields(rule), " ")
	if letters := []rune(rule); len(letters) > 120 {
		return string(letters[:120]) + "…"
	}
	return rule
}

// hasRules reports whether there is a rule anywhere in p.
func hasRules(p *Props) bool { return len(p.XValidations) > 0 || anyBelow(p, hasRules) }

// transitionsBelow reports whether a rule below p reads oldSelf.
func transitionsBelow(p *Props) bool {
	return anyBelow(p, func(q *Props) bool {
		return slices.ContainsFunc(q.XValidations, func(r Rule) bool { return readingOf(r).words["oldSelf"] }) || transitionsBelow(q)
	})
}

// anyBelow reports whether a property, the items or the values of p match.
func anyBelow(p *Props, is func(*Props) bool) bool {
	for _, q := range p.Properties {
		if is(&q) {
			return true
		}
	}
	return p.Items != nil && p.Items.Schema != nil && is(p.Items.Schema) ||
		p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil && is(p.AdditionalProperties.Schema)
}
