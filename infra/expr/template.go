package expr

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// Template is a parsed string of an object's spec: literal text, expressions, or both. It is
// immutable and safe for concurrent use.
type Template struct {
	language *Language
	parts    []part
}

// part is literal text or an expression.
type part struct {
	text       string
	expression *expression
}

// expression is the content of ${ and }. A hundred thousand are kept in memory, so it holds the
// shape to look up its program and not the program itself.
type expression struct {
	text string
	parsedExpression
}

// IsTemplate reports whether the string contains ${: an expression, an escape, or a mistake.
func IsTemplate(text string) bool { return strings.Contains(text, "${") }

// Template parses a string of an object in the namespace. The error is an *Error.
func (l *Language) Template(text, namespace string) (*Template, error) {
	t, err := l.parseTemplate(text, namespace)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (l *Language) parseTemplate(text, namespace string) (*Template, *Error) {
	out := &Template{language: l}
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
			return nil, &Error{Position: -1, Problem: fmt.Sprintf("the string has more than %d parts: split it", maxExpressions)}
		}
		rest = rest[at+2+length:]
	}
	flush()
	return out, nil
}

// expression parses the text after ${ and returns its length including the closing brace.
func (l *Language) expression(text, namespace string) (*expression, int, *Error) {
	pieces, closed, err := tokens(text)
	switch {
	case err != nil:
		err.Expression, err.unterminated = text, true
		return nil, 0, err
	case len(pieces) == 0:
		return nil, 0, &Error{Expression: text[:closed], Position: -1,
			Problem: `${} is empty: write a reference such as ${TYPE["name"].attribute}, or $${ for a literal ${`}
	}
	e := &expression{text: text[:closed]}
	var places []replacement
	if e.parsedExpression, places, err = find(e.text, pieces, namespace, l.intern); err == nil && !e.traversal {
		var p *program
		if p, err = l.program(e.shape); err == nil {
			e.shape = p.shape // share one string among all expressions of the shape
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

// located translates an error about the shape into one about the original text.
func (e *expression) located(err *Error, places []replacement) *Error {
	out := *err
	for _, p := range places {
		switch {
		case err.Position >= p.shapeEnd:
			out.Position = err.Position - p.shapeEnd + p.textEnd
		case err.Position >= p.shape:
			out.Position = p.text
		}
	}
	for i := len(e.targets) - 1; i >= 0; i-- {
		out.Problem = strings.ReplaceAll(out.Problem, parameter+strconv.Itoa(i), e.targets[i].local())
	}
	return &out
}

// Literal returns the string if it has no expression.
func (t *Template) Literal() (string, bool) {
	switch {
	case len(t.parts) == 0:
		return "", true
	case len(t.parts) == 1 && t.parts[0].expression == nil:
		return t.parts[0].text, true
	}
	return "", false
}

// References returns the references of the string in order. An object occurs once for each part
// that is used.
func (t *Template) References() []Reference {
	var out []Reference
	for _, p := range t.parts {
		if p.expression != nil {
			out = append(out, p.expression.references...)
		}
	}
	return out
}

// Scope resolves references during evaluation.
type Scope struct {
	// Lookup returns the attributes of an object as a cty object, with unknown values unknown and
	// sensitive ones marked. It is only called for objects that are needed, or for all if the
	// result is unknown. If the object does not exist, the error should name the remedy; it is
	// shown with the place of the reference.
	Lookup func(Ref) (cty.Value, error)
	// Attribute, if not nil, returns one attribute of the Lookup result with its marks, where that
	// is cheaper than the whole object. If it returns false, Lookup is called.
	Attribute func(ref Ref, name string) (cty.Value, bool)
	// Call calls a function of a provider with known arguments without marks. An error other than a
	// *providerapi.FunctionError is shown whatever the arguments are, and must not quote them.
	Call func(f Function, arguments []cty.Value) (cty.Value, error)
	// Interrupted, if not nil, is polled by long evaluations. If it returns true, they fail.
	Interrupted func() bool
}

// Value evaluates the string. A single expression keeps its own type, which the caller converts;
// anything else is a string. Parts that are not known yet make the result unknown. If any value
// that was read is marked, the whole result is marked. The error is an *Error.
func (t *Template) Value(from Scope) (cty.Value, error) {
	v, err := t.value(from)
	if err != nil {
		return cty.NilVal, err
	}
	return v, nil
}

func (t *Template) value(from Scope) (cty.Value, *Error) {
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
		s, err := stringify(v)
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
		// The text before the first unknown part is known.
		return cty.UnknownVal(cty.String).Refine().NotNull().StringPrefix(text.String()).NewValue().WithMarks(marks...), nil
	}
	return cty.StringVal(text.String()).WithMarks(marks...), nil
}

// stringify converts a value for use within text.
func stringify(v cty.Value) (cty.Value, *Error) {
	ty := v.Type()
	switch {
	case !v.IsKnown() && ty == cty.DynamicPseudoType:
		return cty.UnknownVal(cty.String), nil
	case !ty.IsPrimitiveType() && ty != cty.DynamicPseudoType:
		return cty.NilVal, &Error{Position: -1, Problem: "is " + describe(ty) + ", which cannot be part of a string: use jsonencode(…), or join(…) for a list of strings"}
	case v.IsKnown() && v.IsNull():
		return cty.NilVal, &Error{Position: -1, Problem: "is null, which cannot be part of a string: provide a default, as in has(x.y) ? x.y : \"none\""}
	}
	s, err := convert.Convert(v, cty.String)
	if err != nil {
		return cty.NilVal, &Error{Position: -1, Problem: "cannot be converted to a string"}
	}
	return s, nil
}

// describe names a type for an error.
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
