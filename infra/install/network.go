package install

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// NetworkMirror is a web server that speaks OpenTofu's provider network mirror protocol. It
// serves providers of any host.
type NetworkMirror struct {
	client *Client
	base   *url.URL
}

// NewNetworkMirror makes one of the mirror's address, which may hold a user and a password.
func NewNetworkMirror(client *Client, address string) (*NetworkMirror, error) {
	base, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%w: the mirror's address cannot be read; it is of the form https://HOST/PATH/", ErrInvalid)
	}
	if base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("%w: the mirror's address %s ends with its path: what follows would not be sent", ErrInvalid, mask(base))
	}
	if err := client.checkURL(base); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(base.Path, "/") {
		base = base.JoinPath("/")
	}
	return &NetworkMirror{client: client, base: base}, nil
}

func (m *NetworkMirror) String() string { return "network mirror " + mask(m.base) }

// Versions are those of all platforms: the mirror does not tell which are of which.
func (m *NetworkMirror) Versions(ctx context.Context, source Source) ([]Version, error) {
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

// Find reads the version's own file.
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
	at, err := m.client.refer(from, archive.URL)
	if err != nil {
		return Found{}, fmt.Errorf("%s, %s: %w", m, p, err)
	}
	found := Found{URL: at, Signature: Signature{State: SignatureNone}}
	for _, text := range archive.Hashes {
		// Schemes that are not known do not say anything yet.
		if digest, err := ParseDigest(text); err == nil {
			found.Claimed = append(found.Claimed, digest)
		}
	}
	return found, nil
}

func (m *NetworkMirror) at(source Source, name string) *url.URL {
	return m.base.JoinPath(source.Host, source.Namespace, source.Type, name)
}

// refer resolves an address that a document has, which may be relative to the document's own.
func (c *Client) refer(from *url.URL, text string) (*url.URL, error) {
	to, err := url.Parse(text)
	if err != nil || text == "" {
		return nil, errors.New("the answer has no readable address of what was asked for")
	}
	at := from.ResolveReference(to)
	return at, c.checkURL(at)
}
