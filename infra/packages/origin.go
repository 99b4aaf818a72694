package packages

import (
	"context"
	"fmt"
	"net/url"
)

// Package identifies a package.
type Package struct {
	Source   Address
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

// archiveName returns the file name of a package's archive, which is the same in every origin.
func (p Package) archiveName() string {
	return fmt.Sprintf("terraform-provider-%s_%s_%s.zip", p.Source.Type, p.Version, p.Platform)
}

// Origin is a source of packages. It is safe for concurrent use. Origins are not trusted: packages
// are checked against the digests that the caller requires.
type Origin interface {
	// Versions returns the versions of a provider for any platform, lowest first. It returns
	// ErrNotFound if the origin does not have the provider.
	Versions(ctx context.Context, source Address) ([]Version, error)
	// Find locates a package. It returns ErrNotFound if the origin does not have it, and ErrRefused
	// if the origin contradicts itself. Both methods can be repeated.
	Find(ctx context.Context, p Package) (Found, error)
	// String identifies the origin, without credentials.
	String() string
}

// Found is the location of a package: an Archive, a Directory or a URL.
type Found struct {
	// Archive and Directory are paths below Root. Links in them cannot lead out of it.
	Root, Archive, Directory string
	// URL is the address of an archive.
	URL *url.URL
	// Claimed has the digests that the origin claims. If there are any, the package must have one
	// of them, in addition to a required one.
	Claimed []Digest
	// Signature is the verification result of the origin's signature.
	Signature Signature
}

// Signature is the result of verifying a package's signature.
type Signature struct {
	State SignatureState
	// Key is the ID of the signing key.
	Key string
}

// SignatureState is the state of a package's signature.
type SignatureState string

const (
	// SignatureNone means that the origin has no signatures, like mirrors. The digest alone
	// decided.
	SignatureNone SignatureState = "None"
	// SignatureNoKey means that the registry has no key for the provider, so that a signature would
	// prove nothing. The digest alone decided.
	SignatureNoKey SignatureState = "NoKey"
	// SignatureVerified means that the signature was made by a key that the registry names.
	SignatureVerified SignatureState = "Verified"
)
