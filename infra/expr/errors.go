package expr

import (
	"fmt"
	"strings"
)

// maxShown bounds the part of an expression that an error quotes.
const maxShown = 120

// Error describes an expression that cannot be parsed or evaluated. It never contains a sensitive
// value.
type Error struct {
	// Path is the field of the expression, as kubectl shows it. It is empty if the caller did not
	// name one.
	Path string
	// Expression is the text between ${ and }.
	Expression string
	// Position is the byte offset of the problem in the expression, -1 for the whole expression.
	Position int
	// Problem is the problem and its remedy.
	Problem string
	// Cause is the error of the caller's Lookup, if that caused the problem.
	Cause error

	unterminated bool // the closing } is missing
}

// Error returns the place, the problem and the remedy.
func (e *Error) Error() string {
	var out strings.Builder
	if e.Path != "" {
		out.WriteString(e.Path + ": ")
	}
	text := e.Expression
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "…"
	}
	if text != "" {
		out.WriteString("${" + text)
		if !e.unterminated {
			out.WriteString("}")
		}
		if e.Position >= 0 {
			fmt.Fprintf(&out, ", at character %d", e.Position+1)
		}
		out.WriteString(": ")
	}
	out.WriteString(e.Problem)
	return out.String()
}

// Unwrap returns the error of the caller's Lookup.
func (e *Error) Unwrap() error { return e.Cause }

// in returns a copy of the error for the field.
func (e *Error) in(path string) *Error {
	out := *e
	out.Path = path
	return &out
}
