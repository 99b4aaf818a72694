// Package reference reads `${…}` in the arguments of infrastructure: which objects
// an expression refers to, before anything has a value, and its value, once they
// have, or as much of it as is known.
//
// The expressions are CEL, over the values of providers (go-cty): what is unknown
// makes unknown what needs it, and what is sensitive makes sensitive what came from it.
//
// It is pure. See DESIGN.md for what a user writes, the limits, and why nearly no
// expression is ever compiled.
package reference
