package install

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Registry is the host of a provider's own source, asked by OpenTofu's provider registry
// protocol. Which address it has the host tells by itself (service discovery).
type Registry struct{ client *Client }

// NewRegistry makes one.
func NewRegistry(client *Client) *Registry { return &Registry{client} }

func (r *Registry) String() string { return "registry" }

// Versions are those of all platforms, with a protocol that Atoll speaks.
func (r *Registry) Versions(ctx context.Context, source Source) ([]Version, error) {
	base, err := r.discover(ctx, source)
	if err != nil {
		return nil, err
	}
	var list struct {
		Versions []struct {
			Version   string   `json:"version"`
			Protocols []string `json:"protocols"`
		} `json:"versions"`
	}
	if _, err := r.client.object(ctx, base.JoinPath(source.Namespace, source.Type, "versions"), &list); err != nil {
		return nil, fmt.Errorf("registry, %s: %w", source, err)
	}
	var versions []Version
	for _, one := range list.Versions {
		if version, err := ParseVersion(one.Version); err == nil && spoken(one.Protocols) {
			versions = append(versions, version)
		}
	}
	return sortVersions(versions), nil
}

// registered is what a registry says of a package.
type registered struct {
	Protocols    []string `json:"protocols"`
	OS           string   `json:"os"`
	Arch         string   `json:"arch"`
	Filename     string   `json:"filename"`
	DownloadURL  string   `json:"download_url"`
	Shasum       string   `json:"shasum"`
	ShasumsURL   string   `json:"shasums_url"`
	SignatureURL string   `json:"shasums_signature_url"`
	SigningKeys  struct {
		GPG []struct {
			Armor string `json:"ascii_armor"`
		} `json:"gpg_public_keys"`
	} `json:"signing_keys"`
}

// Find asks for the package, and verifies the signature of its checksum if the registry
// names a key.
func (r *Registry) Find(ctx context.Context, p Package) (Found, error) {
	if err := p.check(); err != nil {
		return Found{}, err
	}
	base, err := r.discover(ctx, p.Source)
	if err != nil {
		return Found{}, err
	}
	var answer registered
	at := base.JoinPath(p.Source.Namespace, p.Source.Type, string(p.Version), "download", p.Platform.OS, p.Platform.Arch)
	from, err := r.client.object(ctx, at, &answer)
	if err != nil {
		return Found{}, fmt.Errorf("registry, %s: %w", p, err)
	}
	found, err := r.judge(ctx, p, from, &answer)
	if err != nil {
		return Found{}, fmt.Errorf("registry, %s: %w", p, err)
	}
	return found, nil
}

func (r *Registry) judge(ctx context.Context, p Package, from *url.URL, answer *registered) (Found, error) {
	if answer.OS != p.Platform.OS || answer.Arch != p.Platform.Arch {
		return Found{}, fmt.Errorf("%w: the registry answers with a package for %q", ErrRefused, short(answer.OS+"_"+answer.Arch))
	}
	if !spoken(answer.Protocols) {
		return Found{}, fmt.Errorf("%w: the provider speaks the protocols %s; Atoll speaks 5 and 6", ErrRefused, short(strings.Join(answer.Protocols, ", ")))
	}
	claimed, err := ParseDigest(archiveScheme + strings.ToLower(answer.Shasum))
	if err != nil {
		return Found{}, fmt.Errorf("%w: the registry's shasum is no SHA-256", ErrRefused)
	}
	found := Found{Claimed: []Digest{claimed}}
	if found.URL, err = r.client.refer(from, answer.DownloadURL); err != nil {
		return Found{}, err
	}
	if len(answer.SigningKeys.GPG) == 0 {
		found.Signature = Signature{State: SignatureNoKey}
		return found, nil
	}
	found.Signature, err = r.verify(ctx, from, answer, claimed)
	return found, err
}

// verify holds the list of checksums against its signature, and the package's checksum against the
// list.
func (r *Registry) verify(ctx context.Context, from *url.URL, answer *registered, claimed Digest) (Signature, error) {
	read := func(what, address string) ([]byte, error) {
		at, err := r.client.refer(from, address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		text, _, _, err := r.client.document(ctx, at)
		return text, err
	}
	sums, err := read("shasums_url", answer.ShasumsURL)
	if err != nil {
		return Signature{}, err
	}
	signature, err := read("shasums_signature_url", answer.SignatureURL)
	if err != nil {
		return Signature{}, err
	}
	var keys []string
	for _, key := range answer.SigningKeys.GPG {
		keys = append(keys, key.Armor)
	}
	key, err := verifySignature(keys, sums, signature, r.client.clock.Now)
	if err != nil {
		return Signature{}, fmt.Errorf("%w: the signature of SHA256SUMS is not valid: %s", ErrRefused, short(err.Error()))
	}
	signed := sumOf(sums, answer.Filename)
	if signed != hex.EncodeToString(claimed.sum()) {
		return Signature{}, fmt.Errorf("%w: the registry says %s of %q, the signed list %q", ErrRefused, claimed, short(answer.Filename), short(signed))
	}
	return Signature{State: SignatureVerified, Key: key}, nil
}

// sumOf finds a file's line in the output of sha256sum, "" if there is none, or two that differ.
func sumOf(sums []byte, file string) string {
	found := ""
	for line := range strings.Lines(string(sums)) {
		words := strings.Fields(line)
		if len(words) != 2 || strings.TrimPrefix(words[1], "*") != file || file == "" {
			continue
		}
		if found != "" && found != words[0] {
			return ""
		}
		found = words[0]
	}
	return found
}

// discover asks a source's host for the address of its registry.
func (r *Registry) discover(ctx context.Context, source Source) (*url.URL, error) {
	if err := source.check(); err != nil {
		return nil, err
	}
	var services map[string]any
	host := &url.URL{Scheme: "https", Host: source.Host, Path: "/.well-known/terraform.json"}
	from, err := r.client.object(ctx, host, &services)
	if err != nil {
		return nil, fmt.Errorf("registry, %s: %w", source, err)
	}
	address, _ := services["providers.v1"].(string)
	if address == "" {
		return nil, fmt.Errorf("%w: %s serves no providers; a mirror may have them", ErrNotFound, source.Host)
	}
	base, err := r.client.refer(from, address)
	if err != nil {
		return nil, fmt.Errorf("registry, %s: %w", source, err)
	}
	return base, nil
}

// spoken tells whether one of the protocols is 5 or 6. Who says nothing may.
func spoken(protocols []string) bool {
	return len(protocols) == 0 || slices.ContainsFunc(protocols, func(p string) bool {
		major, _, _ := strings.Cut(p, ".")
		return major == "5" || major == "6"
	})
}
