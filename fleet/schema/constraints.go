package schema

import (
	"fmt"
	"math"
	"slices"
)

// A constraint is one constraint of a schema on values of certain kinds.
type constraint struct {
	reason Reason
	what   string
	// met reports whether the constraints of p imply this one.
	met func(p *Props) bool
	// add adds it to p. It reports whether p can still accept a value.
	add func(p *Props) bool
}

// constrain adds the constraints of next to result. A constraint is implied if one of the conjuncts
// of the result (the schema itself and its allOf) implies it.
func (c *comparison) constrain(at location, result, next *Props) {
	for _, d := range constraintsOf(next, kindsOf(result)) {
		switch {
		case d.met(result):
		case !c.narrow:
			c.refuse(at, d.reason, "must have %s in the other schema", d.what)
		case !d.add(result):
			c.refuse(at, NothingLeft, "must have %s in the other schema, which no value can have here", d.what)
		}
	}
}

// conjuncts returns the schemas that every value of p has to satisfy: p itself, and its allOf,
// recursively.
func conjuncts(p *Props) []*Props {
	all := []*Props{p}
	for i := range p.AllOf {
		all = append(all, conjuncts(&p.AllOf[i])...)
	}
	return all
}

func anyConjunct(p *Props, implies func(*Props) bool) bool {
	return slices.ContainsFunc(conjuncts(p), implies)
}

// addAllOf adds q to p without changing existing constraints.
func addAllOf(p *Props, q Props) bool {
	p.AllOf = append(p.AllOf, q)
	return true
}

// constraintsOf returns the constraints of p on values of the given kinds. Types, formats,
// properties and items are structure and compared elsewhere.
func constraintsOf(p *Props, k valueKinds) []constraint {
	var all []constraint
	if len(p.Enum) > 0 {
		all = append(all, enumConstraint(p))
	}
	if k&isNumber != 0 {
		all = append(all, numberConstraints(p)...)
	}
	if k&isString != 0 {
		all = append(all, atLeast("minLength", p.MinLength, func(q *Props) **int64 { return &q.MinLength })...)
		all = append(all, atMost("maxLength", p.MaxLength, func(q *Props) **int64 { return &q.MaxLength })...)
		if p.Pattern != "" {
			all = append(all, patternConstraint(p.Pattern))
		}
	}
	if k&isArray != 0 {
		all = append(all, atLeast("minItems", p.MinItems, func(q *Props) **int64 { return &q.MinItems })...)
		all = append(all, atMost("maxItems", p.MaxItems, func(q *Props) **int64 { return &q.MaxItems })...)
	}
	if k&isObject != 0 {
		all = append(all, atLeast("minProperties", p.MinProperties, func(q *Props) **int64 { return &q.MinProperties })...)
		all = append(all, atMost("maxProperties", p.MaxProperties, func(q *Props) **int64 { return &q.MaxProperties })...)
	}
	return all
}

// enumConstraint: a null never passes an enum of the schema itself, while allOf does not apply to
// nulls.
func enumConstraint(p *Props) constraint {
	within := func(q *Props) bool {
		return len(q.Enum) > 0 && !slices.ContainsFunc(q.Enum, func(v jsonValue) bool { return !contains(p.Enum, v) })
	}
	return constraint{
		reason: EnumDiffers,
		what:   fmt.Sprintf("one of %d listed values", len(p.Enum)),
		met: func(q *Props) bool {
			if takesNull(q) {
				return within(q)
			}
			return anyConjunct(q, within)
		},
		add: func(q *Props) bool {
			if len(q.Enum) == 0 {
				q.Enum = slices.Clone(p.Enum)
				return true
			}
			q.Enum = slices.DeleteFunc(slices.Clone(q.Enum), func(v jsonValue) bool { return !contains(p.Enum, v) })
			return len(q.Enum) > 0
		},
	}
}

func patternConstraint(pattern string) constraint {
	return constraint{
		reason: PatternDiffers,
		what:   fmt.Sprintf("pattern %q", pattern),
		met:    func(q *Props) bool { return anyConjunct(q, func(r *Props) bool { return r.Pattern == pattern }) },
		add: func(q *Props) bool {
			if q.Pattern == "" {
				q.Pattern = pattern
				return true
			}
			return addAllOf(q, Props{Pattern: pattern})
		},
	}
}

// atLeast and atMost are bounds that are integers. Of two bounds, the tighter one implies the
// other.
func atLeast(name string, bound *int64, of func(*Props) **int64) []constraint {
	return wholeBound(name, bound, of, func(x, y int64) bool { return x >= y })
}

func atMost(name string, bound *int64, of func(*Props) **int64) []constraint {
	return wholeBound(name, bound, of, func(x, y int64) bool { return x <= y })
}

func wholeBound(name string, bound *int64, of func(*Props) **int64, implies func(x, y int64) bool) []constraint {
	if bound == nil {
		return nil
	}
	value := *bound
	return []constraint{{
		reason: BoundsDiffer,
		what:   fmt.Sprintf("%s %d", name, value),
		met: func(q *Props) bool {
			return anyConjunct(q, func(r *Props) bool { x := *of(r); return x != nil && implies(*x, value) })
		},
		add: func(q *Props) bool { *of(q) = &value; return true },
	}}
}

// A limit is a minimum or a maximum of numbers.
type limit struct {
	value     float64
	exclusive bool
	upper     bool
}

// implies follows the validator. It compares an integer with the limit's integer part, and a number
// with the whole limit, so both comparisons have to imply the other limit. A limit beyond the range
// of integers becomes another number there, so it implies only itself.
func (l limit) implies(other limit) bool {
	if math.Abs(l.value) >= math.MaxInt64 || math.Abs(other.value) >= math.MaxInt64 {
		return l == other
	}
	tighter := func(x, y float64) bool {
		if x == y {
			return l.exclusive || !other.exclusive
		}
		return x < y == l.upper
	}
	return tighter(l.value, other.value) && tighter(math.Trunc(l.value), math.Trunc(other.value))
}

func limitsOf(p *Props) []limit {
	var all []limit
	if p.Minimum != nil {
		all = append(all, limit{*p.Minimum, p.ExclusiveMinimum, false})
	}
	if p.Maximum != nil {
		all = append(all, limit{*p.Maximum, p.ExclusiveMaximum, true})
	}
	return all
}

func (l limit) set(p *Props) {
	value := l.value
	if l.upper {
		p.Maximum, p.ExclusiveMaximum = &value, l.exclusive
	} else {
		p.Minimum, p.ExclusiveMinimum = &value, l.exclusive
	}
}

func (l limit) String() string {
	name := "minimum"
	if l.upper {
		name = "maximum"
	}
	if l.exclusive {
		name = "exclusive " + name
	}
	return fmt.Sprintf("%s %v", name, l.value)
}

func numberConstraints(p *Props) []constraint {
	var all []constraint
	for _, l := range limitsOf(p) {
		all = append(all, limitConstraint(l))
	}
	if p.MultipleOf != nil {
		all = append(all, multipleConstraint(*p.MultipleOf))
	}
	return all
}

func limitConstraint(l limit) constraint {
	own := func(q *Props) *limit {
		for _, x := range limitsOf(q) {
			if x.upper == l.upper {
				return &x
			}
		}
		return nil
	}
	return constraint{
		reason: BoundsDiffer,
		what:   l.String(),
		met: func(q *Props) bool {
			return anyConjunct(q, func(r *Props) bool { x := own(r); return x != nil && x.implies(l) })
		},
		add: func(q *Props) bool {
			if x := own(q); (x == nil || l.implies(*x)) && fits(q, l.value) {
				l.set(q)
				return true
			}
			var apart Props
			l.set(&apart)
			return addAllOf(q, apart)
		},
	}
}

// multipleConstraint: the validator divides floats with a tolerance, so no other factor implies
// this one.
func multipleConstraint(factor float64) constraint {
	return constraint{
		reason: BoundsDiffer,
		what:   fmt.Sprintf("multipleOf %v", factor),
		met: func(q *Props) bool {
			return anyConjunct(q, func(r *Props) bool { return r.MultipleOf != nil && *r.MultipleOf == factor })
		},
		add: func(q *Props) bool {
			if q.MultipleOf == nil && fits(q, factor) {
				q.MultipleOf = &factor
				return true
			}
			return addAllOf(q, Props{MultipleOf: &factor})
		},
	}
}

// fits reports whether the type and format of p allow such a bound. Otherwise the validator rejects
// every number.
func fits(p *Props, bound float64) bool {
	switch baseOf(p) {
	case "integer":
		most := float64(math.MaxInt64)
		if formatOf(p) == "int32" {
			return bound == math.Trunc(bound) && bound >= math.MinInt32 && bound <= math.MaxInt32
		}
		return bound == math.Trunc(bound) && bound > -most && bound < most
	case "number":
		return formatOf(p) != "float" || math.Abs(bound) <= math.MaxFloat32
	}
	return true
}

// checkBounds refuses bounds with which p accepts no number, because their intent is unknown.
func (c *comparison) checkBounds(at location, p *Props) {
	for _, l := range limitsOf(p) {
		if !fits(p, l.value) {
			c.refuse(at, BoundsDiffer, "has a %s, which does not fit its type: API servers reject every number there", l)
		}
	}
	if factor := indivisible(p); factor != nil {
		c.refuse(at, BoundsDiffer, "has multipleOf %v, with which API servers reject every integer", *factor)
	}
}

// indivisible returns a factor with which API servers accept no value of p. In allOf the type is
// ignored, and an integer is divided by the factor's integer part, which may be zero.
func indivisible(p *Props) *float64 {
	for _, q := range conjuncts(p) {
		if q.MultipleOf != nil && (*q.MultipleOf < 1 && kindsOf(p)&isNumber != 0 && baseOf(p) != "number" || q == p && !fits(p, *q.MultipleOf) || *q.MultipleOf <= 0) {
			return q.MultipleOf
		}
	}
	return nil
}

// relocate moves bounds that no longer fit the narrowed type of p to allOf, where the type is
// ignored.
func relocate(p *Props) {
	for _, l := range limitsOf(p) {
		if fits(p, l.value) {
			continue
		}
		var apart Props
		l.set(&apart)
		addAllOf(p, apart)
		if l.upper {
			p.Maximum, p.ExclusiveMaximum = nil, false
		} else {
			p.Minimum, p.ExclusiveMinimum = nil, false
		}
	}
	if p.MultipleOf != nil && !fits(p, *p.MultipleOf) {
		addAllOf(p, Props{MultipleOf: p.MultipleOf})
		p.MultipleOf = nil
	}
}

// satisfiable refuses a result that no value can satisfy, as far as its own bounds show that.
func (c *comparison) satisfiable(at location, p *Props) {
	if !c.narrow {
		return
	}
	if factor := indivisible(p); factor != nil {
		c.refuse(at, BoundsDiffer, "would have to be an integer and a multiple of %v, with which API servers reject every integer", *factor)
	}
	if p.Minimum != nil && p.Maximum != nil {
		low, high := *p.Minimum, *p.Maximum
		if low > high || low == high && (p.ExclusiveMinimum || p.ExclusiveMaximum) {
			c.refuse(at, NothingLeft, "would have to be at least %v and at most %v", low, high)
		}
	}
	for _, pair := range []struct {
		what      string
		low, high *int64
	}{
		{"characters", p.MinLength, p.MaxLength}, {"items", p.MinItems, p.MaxItems}, {"properties", p.MinProperties, p.MaxProperties},
	} {
		if pair.low != nil && pair.high != nil && *pair.low > *pair.high {
			c.refuse(at, NothingLeft, "would have to have at least %d and at most %d %s", *pair.low, *pair.high, pair.what)
		}
	}
}
