// Package schema serves a provider's resource types as API kinds, and converts between objects and
// the provider's values. It covers names (names.go), OpenAPI for kubectl explain (openapi.go),
// merge types for server-side apply (merge.go), validation and decoding of specs (validate.go,
// read.go), and encoding of values as attributes, specs and Secrets (write.go). Sensitivity is
// tracked throughout (sensitive.go, mask.go).
//
// The package does no I/O: a Resolver of the caller evaluates expressions and reads Secrets.
// DESIGN.md has the design decisions.
package schema
