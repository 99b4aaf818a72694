package schema

import (
	"fmt"
	"math"
	"slices"
)

// A demand is one constraint of a schema on the values of some kinds.
type demand struct {
	reason Reason
	what   string
	// met tells whether whatever fulfils the constraints of p fulfils it.
	met func(p *Props) bool
	// add lays it on p in addition to what is there. It tells whether
	// anything is left that p can accept.
	add func(p *Props) bool
}

// demand lays on result what next demands. A demand is met if one of the
// constraints that hold for every value (those of the schema itself and of
// its allOf) implies it.
func (c *comparison) demand(at place, result, next *Props) {
	for _, d := range demandsOf(next, kindsOf(result)) {
		switch {
		case d.met(result):
		case !c.narrow:
			c.refuse(at, d.reason, "must have %s in the other", d.what)
		case !d.add(result):
			c.refuse(at, NothingLeft, "must have %s in the other, and no value can have that here", d.what)
		}
	}
}

// conjuncts are the schemas that every value of p has to fulfil: itself, and
// what stands in allOf.
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

// also lays q on p without touching what is there.
func also(p *Props, q Props) bool {
	p.AllOf = append(p.AllOf, q)
	return true
}

// demandsOf lists what p demands of values of such kinds. Types, formats,
// properties and items are compared elsewhere, because they are structure.
func demandsOf(p *Props, k kinds) []demand {
	var all []demand
	if len(p.Enum) > 0 {
		all = append(all, enumDemand(p))
	}
	if k&isNumber != 0 {
		all = append(all, numberDemands(p)...)
	}
	if k&isString != 0 {
		all = append(all, atLeast("minLength", p.MinLength, func(q *Props) **int64 { return &q.MinLength })...)
		all = append(all, atMost("maxLength", p.MaxLength, func(q *Props) **int64 { return &q.MaxLength })...)
		if p.Pattern != "" {
			all = append(all, patternDemand(p.Pattern))
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

// enumDemand: a null never passes an enum of the schema itself, while allOf
// is not asked about nulls.
func enumDemand(p *Props) demand {
	within := func(q *Props) bool {
		return len(q.Enum) > 0 && !slices.ContainsFunc(q.Enum, func(v jsonValue) bool { return !contains(p.Enum, v) })
	}
	return demand{
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

func patternDemand(pattern string) demand {
	return demand{
		reason: PatternDiffers,
		what:   fmt.Sprintf("pattern %q", pattern),
		met:    func(q *Props) bool { return anyConjunct(q, func(r *Props) bool { return r.Pattern == pattern }) },
		add: func(q *Props) bool {
			if q.Pattern == "" {
				q.Pattern = pattern
				return true
			}
			return also(q, Props{Pattern: pattern})
		},
	}
}

// atLeast and atMost are bounds that are whole numbers; of two the tighter
// one says both.
func atLeast(name string, bound *int64, of func(*Props) **int64) []demand {
	return wholeBound(name, bound, of, func(x, y int64) bool { return x >= y })
}

func atMost(name string, bound *int64, of func(*Props) **int64) []demand {
	return wholeBound(name, bound, of, func(x, y int64) bool { return x <= y })
}

func wholeBound(name string, bound *int64, of func(*Props) **int64, implies func(x, y int64) bool) []demand {
	if bound == nil {
		return nil
	}
	value := *bound
	return []demand{{
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

// implies follows the validator: an integer is held against the limit without
// its fraction, a number with it, so both readings have to follow. A limit that
// an integer cannot be held against becomes some other number there.
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

func numberDemands(p *Props) []demand {
	var all []demand
	for _, l := range limitsOf(p) {
		all = append(all, limitDemand(l))
	}
	if p.MultipleOf != nil {
		all = append(all, multipleDemand(*p.MultipleOf))
	}
	return all
}

func limitDemand(l limit) demand {
	own := func(q *Props) *limit {
		for _, x := range limitsOf(q) {
			if x.upper == l.upper {
				return &x
			}
		}
		return nil
	}
	return demand{
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
			return also(q, apart)
		},
	}
}

// multipleDemand: the validator divides floats and allows for an error, so
// nothing follows from another factor.
func multipleDemand(factor float64) demand {
	return demand{
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
			return also(q, Props{MultipleOf: &factor})
		},
	}
}

// fits tells whether the type and format of p take such a bound. Where they
// do not, the validator refuses every number.
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

// usable refuses bounds with which p accepts no number at all: what is meant
// by them is anybody's guess.
func (c *comparison) usable(at place, p *Props) {
	for _, l := range limitsOf(p) {
		if !fits(p, l.value) {
			c.refuse(at, BoundsDiffer, "has a %s, which does not fit its type: API servers refuse every number there", l)
		}
	}
	if factor := indivisible(p); factor != nil {
		c.refuse(at, BoundsDiffer, "has multipleOf %v, with which API servers refuse every integer", *factor)
	}
}

// indivisible gives a factor of which API servers find no value of p to be a multiple.
// In allOf the type is not asked, and an integer is divided by the factor without its
// fraction, which may be zero.
func indivisible(p *Props) *float64 {
	for _, q := range conjuncts(p) {
		if q.MultipleOf != nil && (*q.MultipleOf < 1 && kindsOf(p)&isNumber != 0 && baseOf(p) != "number" || q == p && !fits(p, *q.MultipleOf) || *q.MultipleOf <= 0) {
			return q.MultipleOf
		}
	}
	return nil
}

// relocate moves the bounds of p that its type, narrowed since, no longer
// takes to where the type is not asked.
func relocate(p *Props) {
	for _, l := range limitsOf(p) {
		if fits(p, l.value) {
			continue
		}
		var apart Props
		l.set(&apart)
		also(p, apart)
		if l.upper {
			p.Maximum, p.ExclusiveMaximum = nil, false
		} else {
			p.Minimum, p.ExclusiveMinimum = nil, false
		}
	}
	if p.MultipleOf != nil && !fits(p, *p.MultipleOf) {
		also(p, Props{MultipleOf: p.MultipleOf})
		p.MultipleOf = nil
	}
}

// satisfiable refuses a result that nothing can fulfil, as far as that is
// seen from its own bounds.
func (c *comparison) satisfiable(at place, p *Props) {
	if !c.narrow {
		return
	}
	if factor := indivisible(p); factor != nil {
		c.refuse(at, BoundsDiffer, "would have to be an integer and a multiple of %v, and API servers refuse every integer with that", *factor)
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
