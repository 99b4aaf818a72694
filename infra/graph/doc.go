// Package graph orders nodes by their dependencies. Nodes are small integers that the caller maps
// to anything, so that a hundred thousand nodes cost megabytes and milliseconds.
//
// A Graph is built once from a list of edges. It finds cycles, orders the nodes, computes which
// nodes are reachable from others, and tracks which nodes can be processed next (Walk).
//
// An edge from a to b means that a depends on b: b comes first.
//
// The package does no I/O and starts no goroutines. See DESIGN.md for the model of replacements and
// for the costs.
package graph
