// Package schema makes kinds of the API out of a provider's types, and values of
// the provider out of objects, and back: names (names.go), what kubectl explain
// shows (openapi.go), how server-side apply merges (merge.go), what is accepted
// (validate.go, read.go), and what comes out again: attributes, specs, Secrets
// (write.go). What is secret is known throughout (sensitive.go, mask.go).
//
// It is pure: what an expression or a Secret holds is the caller's to tell.
// DESIGN.md has the choices.
package schema
