// Package statefile imports resources from an OpenTofu or Terraform state file, and exports them to
// one.
//
// Read reads a file of any size, one resource at a time (file.go). Adopt converts each resource to
// an object and a ResourceState, such that the first plan has no changes (adopt.go). It chooses
// names (names.go), moves secrets into Secrets (secrets.go), and recovers the references that a
// state file does not contain as far as values still show them (candidates.go, recover.go). The
// other dependencies become depends_on (depends.go). Export writes a state file from ResourceStates
// (export.go).
//
// The package does no I/O of its own: the caller supplies providers, resource types and files.
// DESIGN.md has the design decisions.
package statefile
