package install

import (
	"context"
	"fmt"
	"net/url"
)

// Package is what to look for.
type Package struct {
	Source   Source
	Version  Version
	Platform Platform
}

func (p Package) String() string {
	return fmt.Sprintf("%s %s for %s", p.Source, p.Version, p.Platform)
}

func (p Package) check() error {
	if err := p.Source.check(); err != nil {
		return err
	}
	if _, err := ParseVersion(string(p.Version)); err != nil {
		return err
	}
	return p.Platform.check()
}

// archiveName is what every origin calls a package's archive.
func (p Package) archiveName() string {
	return fmt.Sprintf("terraform-provider-%s_%s_%s.zip", p.Source.Type, p.Version, p.Platform)
}

// Origin is where packages come from. It is safe for concurrent use. Its answers decide
// nothing: what it leads to is held against the digests that the caller requires.
type Origin interface {
	// Versions are those that it has of a provider, for any platform, lowest first.
	// ErrNotFound if it does not know the provider.
	Versions(ctx context.Context, source Source) ([]Version, error)
	// Find tells where a package is. ErrNotFound if it is not there, ErrRefused if what the
	// origin says of it contradicts itself. Both methods can be repeated.
	Find(ctx context.Context, p Package) (Found, error)
	// String says which it is, without credentials.
	String() string
}

// Found is where a package is: one of Archive, Directory and URL.
type Found struct {
	// Archive and Directory are paths below Root, which nothing in them leads out of.
	Root, Archive, Directory string
	// URL of an archive.
	URL *url.URL
	// Claimed are digests by the origin's own account. If there are any, one of them has
	// to match, besides one that is required.
	Claimed []Digest
	// Signature is what is known of who made it.
	Signature Signature
}

// Signature is what an origin's signature says.
type Signature struct {
	State SignatureState
	// Key is the ID of the key that it was made with.
	Key string
}

// SignatureState is whether a package is signed.
type SignatureState string

const (
	// SignatureNone is of origins that have no signatures: mirrors. The digest alone
	// decided.
	SignatureNone SignatureState = "None"
	// SignatureNoKey is of a registry that has no key for the provider, so that its
	// signature, if any, proves nothing. The digest alone decided.
	SignatureNoKey SignatureState = "NoKey"
	// SignatureVerified is of a signature by a key that the registry names.
	SignatureVerified SignatureState = "Verified"
)
