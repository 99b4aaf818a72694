package packages

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// NetworkMirror is a web server that implements OpenTofu's provider network mirror protocol. It can
// serve providers of any host.
type NetworkMirror struct {
	client *Client
	base   *url.URL
}

// NewNetworkMirror creates a NetworkMirror. The address may include a user name and a password.
func NewNetworkMirror(client *Client, address string) (*NetworkMirror, error) {
	base, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%w: the mirror's address is malformed; the form is https://HOST/PATH/", ErrInvalid)
	}
	if base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("%w: the mirror's address %s must not have a query or a fragment", ErrInvalid, redactURL(base))
	}
	if err := client.checkURL(base); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(base.Path, "/") {
		base = base.JoinPath("/")
	}
	return &NetworkMirror{client: client, base: base}, nil
}

func (m *NetworkMirror) String() string { return "network mirror " + redactURL(m.base) }

// Versions returns the versions for all platforms: the mirror's list does not distinguish them.
func (m *NetworkMirror) Versions(ctx context.Context, source Address) ([]Version, error) {
	if err := source.check(); err != nil {
		return nil, err
	}
	var index struct {
		Versions map[string]struct{} `json:"versions"`
	}
	if _, err := m.client.object(ctx, m.at(source, "index.json"), &index); err != nil {
		return nil, fmt.Errorf("%s, %s: %w", m, source, err)
	}
	var versions []Version
	for text := range index.Versions {
		if version, err := ParseVersion(text); err == nil {
			versions = append(versions, version)
		}
	}
	return sortVersions(versions), nil
}

// Find reads the document of the version.
func (m *NetworkMirror) Find(ctx context.Context, p Package) (Found, error) {
	if err := p.check(); err != nil {
		return Found{}, err
	}
	var version struct {
		Archives map[string]struct {
			URL    string   `json:"url"`
			Hashes []string `json:"hashes"`
		} `json:"archives"`
	}
	from, err := m.client.object(ctx, m.at(p.Source, string(p.Version)+".json"), &version)
	if err != nil {
		return Found{}, fmt.Errorf("%s, %s: %w", m, p, err)
	}
	archive, ok := version.Archives[p.Platform.String()]
	if !ok {
		return Found{}, fmt.Errorf("%w: %s has %s %s, but not for %s", ErrNotFound, m, p.Source, p.Version, p.Platform)
	}
	at, err := m.client.resolve(from, archive.URL)
	if err != nil {
		return Found{}, fmt.Errorf("%s, %s: %w", m, p, err)
	}
	found := Found{URL: at, Signature: Signature{State: SignatureNone}}
	for _, text := range archive.Hashes {
		// Digests of unknown schemes are ignored.
		if digest, err := ParseDigest(text); err == nil {
			found.Claimed = append(found.Claimed, digest)
		}
	}
	return found, nil
}

func (m *NetworkMirror) at(source Address, name string) *url.URL {
	return m.base.JoinPath(source.Host, source.Namespace, source.Type, name)
}

// resolve resolves an address in a document, which may be relative to the document's own.
func (c *Client) resolve(from *url.URL, text string) (*url.URL, error) {
	to, err := url.Parse(text)
	if err != nil || text == "" {
		return nil, errors.New("the answer has no valid address of the requested file")
	}
	at := from.ResolveReference(to)
	return at, c.checkURL(at)
}
