// Package packages installs provider packages on this machine. A provider is a program that runs
// with the credentials of its user, so a package is only unpacked if its digest is pinned, and only
// run if it still has that digest.
//
// An Origin locates packages: a mirror in a file system or on a web server, or a registry. An
// Installer fetches a package, checks it against the required digests, unpacks it, and puts it into
// a Store, from where it is run. Layouts, protocols and digests are OpenTofu's, so that existing
// mirrors and lock files can be used.
package packages

import "errors"

// ErrNotFound reports a provider, version or platform that an origin does not have.
var ErrNotFound = errors.New("not found")

// ErrRefused reports a package that must not be used: it has none of the required digests, its
// signature is invalid, or its archive violates the rules of unpacking. Retrying does not help.
var ErrRefused = errors.New("refused")

// ErrInvalid reports a malformed source, version, platform, digest or address. No request was made.
var ErrInvalid = errors.New("invalid")
