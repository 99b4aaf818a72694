// Package adopt takes over what OpenTofu or Terraform made, from its state file, and gives it back.
//
// Read goes through a file of any size, one resource at a time (file.go). Adopt makes of each an object and a
// ResourceState, so that the first plan has nothing to do (adopt.go): names (names.go), what belongs into
// Secrets (secrets.go), and the references that a state file has forgotten, as far as values still show them
// (candidates.go, recover.go), with depends_on for the rest (depends.go). Export writes a state file of states (export.go).
//
// It is pure: providers, kinds and files are the caller's. DESIGN.md has the choices.
package adopt
