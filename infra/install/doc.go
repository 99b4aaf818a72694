// Package install brings the files of a provider to this machine, or refuses to. An
// installed provider is a program that will be run with credentials of its
// user's, so the default is no: what was not named by its digest is not unpacked, and
// what is not what its digest says is not run.
//
// An Origin tells where a package is: a mirror in a file system or on a web server, or
// a registry. An Installer fetches it, holds it against the digests that are required,
// unpacks it, and puts it into a Store, from where it is run. Layouts, protocols and
// digests are OpenTofu's, so that mirrors and lock files that exist can be used.
package install

import "errors"

// ErrNotFound is of a provider, a version or a platform that an origin does not have.
var ErrNotFound = errors.New("not found")

// ErrRefused is of what was there and must not be used: its digest is none of those that
// are required, its signature is wrong, its archive would write where it should
// not. Another try brings the same.
var ErrRefused = errors.New("refused")

// ErrInvalid is of a source, version, platform, digest or address that is not
// well-formed. Nothing was asked of anybody.
var ErrInvalid = errors.New("invalid")
