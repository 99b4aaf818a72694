package reference

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// Text is a string of an object's spec, read: text, expressions, or both. It does not
// change and is safe for concurrent use.
type Text struct {
	language *Language
	parts    []part
}

// part is text as it is, or an expression.
type part struct {
	text       string
	expression *expression
}

// expression is what stands between ${ and }. A hundred thousand are kept, so it holds
// what is needed to find its program, and not the program.
type expression struct {
	text string
	parsed
}

// Has tells whether a string is anything but itself: whether Text would find an expression, an
// escape, or a mistake in it.
func Has(text string) bool { return strings.Contains(text, "${") }

// Text reads a string of an object in the namespace. The error is an *Error.
func (l *Language) Text(text, namespace string) (*Text, error) {
	t, err := l.text(text, namespace)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (l *Language) text(text, namespace string) (*Text, *Error) {
	out := &Text{language: l}
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			out.parts = append(out.parts, part{text: literal.String()})
			literal.Reset()
		}
	}
	for rest := text; rest != ""; {
		at := strings.Index(rest, "${")
		if at < 0 {
			literal.WriteString(rest)
			break
		}
		if at > 0 && rest[at-1] == '$' {
			literal.WriteString(rest[:at-1] + "${")
			rest = rest[at+2:]
			continue
		}
		literal.WriteString(rest[:at])
		flush()
		e, length, err := l.expression(rest[at+2:], namespace)
		if err != nil {
			return nil, err
		}
		if out.parts = append(out.parts, part{expression: e}); len(out.parts) > maxExpressions {
			return nil, &Error{Position: -1, Problem: fmt.Sprintf("a string has more than %d parts: divide it", maxExpressions)}
		}
		rest = rest[at+2+length:]
	}
	flush()
	return out, nil
}

// expression reads what begins after ${, and tells how long it is with its brace.
func (l *Language) expression(text, namespace string) (*expression, int, *Error) {
	pieces, closed, err := tokens(text)
	switch {
	case err != nil:
		err.Expression, err.open = text, true
		return nil, 0, err
	case len(pieces) == 0:
		return nil, 0, &Error{Expression: text[:closed], Position: -1,
			Problem: `${} is empty: write a reference such as ${TYPE["name"].attribute}, or $${ if ${ is meant as text`}
	}
	e := &expression{text: text[:closed]}
	var places []place
	if e.parsed, places, err = find(e.text, pieces, namespace, l.share); err == nil && !e.plain {
		var p *program
		if p, err = l.program(e.shape); err == nil {
			e.shape = p.shape // the one string for all of the shape
		} else {
			err = e.located(err, places)
		}
	}
	if err != nil {
		err.Expression = e.text
		return nil, 0, err
	}
	return e, closed + 1, nil
}

// located turns a complaint about the shape into one about what was written.
func (e *expression) located(err *Error, places []place) *Error {
	out := *err
	for _, p := range places {
		switch {
		case err.Position >= p.shapeEnd:
			out.Position = err.Position - p.shapeEnd + p.textEnd
		case err.Position >= p.shape:
			out.Position = p.text
		}
	}
	for i := len(e.heads) - 1; i >= 0; i-- {
		out.Problem = strings.ReplaceAll(out.Problem, parameter+strconv.Itoa(i), e.heads[i].local())
	}
	return &out
}

// Literal gives what the string says, if there is no expression in it.
func (t *Text) Literal() (string, bool) {
	switch {
	case len(t.parts) == 0:
		return "", true
	case len(t.parts) == 1 && t.parts[0].expression == nil:
		return t.parts[0].text, true
	}
	return "", false
}

// References are what the string refers to, in its order. An object of which two parts are used
// is there twice.
func (t *Text) References() []Reference {
	var out []Reference
	for _, p := range t.parts {
		if p.expression != nil {
			out = append(out, p.expression.uses...)
		}
	}
	return out
}

// Values is where values come from.
type Values struct {
	// Lookup gives all attributes of an object: an object of cty, with what is not known yet unknown,
	// and what is sensitive marked. It is only asked for what is needed (all, if the result is unknown). If it says that there is none the error
	// should say what to do; it is shown with where the reference is written.
	Lookup func(Ref) (cty.Value, error)
	// Attribute, if not nil, gives one attribute of what Lookup would give, marked as it is there, where that is at hand without all
	// the others. If it is false Lookup is asked.
	Attribute func(ref Ref, name string) (cty.Value, bool)
	// Interrupted, if not nil, is asked now and then by long calculations. If it says so, they end with an error.
	Interrupted func() bool
}

// Value is what the string says. If it is one expression and nothing else, it is a value of the expression's own
// type, for the caller to convert; else it is text. What cannot be known yet is unknown. If anything that was looked
// at is marked, all of the value is. The error is an *Error.
func (t *Text) Value(from Values) (cty.Value, error) {
	v, err := t.value(from)
	if err != nil {
		return cty.NilVal, err
	}
	return v, nil
}

func (t *Text) value(from Values) (cty.Value, *Error) {
	if literal, ok := t.Literal(); ok {
		return cty.StringVal(literal), nil
	}
	if len(t.parts) == 1 {
		return t.language.value(t.parts[0].expression, from)
	}
	var text strings.Builder
	var marks []cty.ValueMarks
	known := true
	for _, p := range t.parts {
		if p.expression == nil {
			if known {
				text.WriteString(p.text)
			}
			continue
		}
		v, err := t.language.value(p.expression, from)
		if err != nil {
			return cty.NilVal, err
		}
		v, mark := v.UnmarkDeep()
		marks = append(marks, mark)
		s, err := inText(v)
		switch {
		case err != nil:
			err.Expression = p.expression.text
			return cty.NilVal, err
		case !s.IsKnown():
			known = false
		case known:
			text.WriteString(s.AsString())
		}
		if text.Len() > maxBytes {
			return cty.NilVal, &Error{Expression: p.expression.text, Position: -1, Problem: tooLarge}
		}
	}
	if !known {
		// What comes before the first unknown part is certain.
		return cty.UnknownVal(cty.String).Refine().NotNull().StringPrefix(text.String()).NewValue().WithMarks(marks...), nil
	}
	return cty.StringVal(text.String()).WithMarks(marks...), nil
}

// inText makes text of a value, to stand within text.
func inText(v cty.Value) (cty.Value, *Error) {
	ty := v.Type()
	switch {
	case !v.IsKnown() && ty == cty.DynamicPseudoType:
		return cty.UnknownVal(cty.String), nil
	case !ty.IsPrimitiveType() && ty != cty.DynamicPseudoType:
		return cty.NilVal, &Error{Position: -1, Problem: "is " + describe(ty) + ", which cannot stand within text: use jsonencode(…), or join(…) on a list of strings"}
	case v.IsKnown() && v.IsNull():
		return cty.NilVal, &Error{Position: -1, Problem: "is null, which cannot stand within text: give another value for that case, as in has(x.y) ? x.y : \"none\""}
	}
	s, err := convert.Convert(v, cty.String)
	if err != nil {
		return cty.NilVal, &Error{Position: -1, Problem: "cannot be made text"}
	}
	return s, nil
}

// describe names a type in an error.
func describe(ty cty.Type) string {
	switch {
	case ty.IsObjectType():
		return "an object"
	case ty.IsMapType():
		return "a map"
	case ty.IsListType(), ty.IsTupleType():
		return "a list"
	case ty.IsSetType():
		return "a set"
	case ty == cty.String:
		return "a string"
	case ty == cty.Number:
		return "a number"
	case ty == cty.Bool:
		return "a bool"
	}
	return ty.FriendlyName()
}
