// Package graph puts what depends on each other in order: by small numbers, which stand for
// whatever the caller says, so that a hundred thousand nodes cost megabytes and milliseconds.
//
// A Graph is built once from a list of edges, and answers: which cycles there are, what comes
// before what, what can be done now (Progress), and what is reached from where.
//
// An edge from a to b says that a depends on b: b comes first.
//
// It is pure. See DESIGN.md for how replacements are modelled, and what things cost.
package graph
