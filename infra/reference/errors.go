package reference

import (
	"fmt"
	"strings"
)

// shown is how much of an expression an error shows.
const shown = 120

// Error is of an expression that cannot be read, or has no value. It never shows a value
// that is sensitive.
type Error struct {
	// Path is the field that the expression is in, as kubectl shows it; empty if who
	// asked did not say.
	Path string
	// Expression is what stands between ${ and }.
	Expression string
	// Position is where in the expression, in bytes from its start; -1 if all of it is meant.
	Position int
	// Problem says what is wrong, and the remedy.
	Problem string
	// Cause is what the caller's Lookup said, if it is about that.
	Cause error

	open bool // the expression was never closed
}

// Error says where, what and the remedy.
func (e *Error) Error() string {
	var out strings.Builder
	if e.Path != "" {
		out.WriteString(e.Path + ": ")
	}
	text := e.Expression
	if len(text) > shown {
		text = strings.ToValidUTF8(text[:shown], "") + "…"
	}
	if text != "" {
		out.WriteString("${" + text)
		if !e.open {
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

// Unwrap gives what the caller's Lookup said.
func (e *Error) Unwrap() error { return e.Cause }

// in gives the same complaint with the field that it is about.
func (e *Error) in(path string) *Error {
	out := *e
	out.Path = path
	return &out
}
