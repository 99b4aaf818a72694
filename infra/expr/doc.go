// Package expr parses `${…}` expressions in the arguments of infrastructure. Before evaluation it
// returns the objects that an expression refers to. Evaluation returns the value, or as much of it as is
// known.
//
// The expressions are CEL over provider values (go-cty). A result that needs an unknown value is
// unknown, and a result that comes from a sensitive value is sensitive.
//
// The package does no I/O. DESIGN.md describes the syntax, the limits, and why expressions are rarely
// compiled.
package expr
