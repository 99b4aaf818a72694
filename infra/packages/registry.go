package packages

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Registry is the registry of the provider's own host, accessed by OpenTofu's provider registry
// protocol. The host announces the registry's address (service discovery).
type Registry struct{ client *Client }

// NewRegistry creates a Registry.
func NewRegistry(client *Client) *Registry { return &Registry{client} }

func (r *Registry) String() string { return "registry" }

// Versions returns the versions for all platforms that support a protocol of Atoll.
func (r *Registry) Versions(ctx context.Context, source Address) ([]Version, error) {
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
		if version, err := ParseVersion(one.Version); err == nil && isSupported(one.Protocols) {
			versions = append(versions, version)
		}
	}
	return sortVersions(versions), nil
}

// packageResponse is a registry's answer about a package.
type packageResponse struct {
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

// Find requests the package, and verifies the signature of its checksum if the registry names a
// key.
func (r *Registry) Find(ctx context.Context, p Package) (Found, error) {
	if err := p.check(); err != nil {
		return Found{}, err
	}
	base, err := r.discover(ctx, p.Source)
	if err != nil {
		return Found{}, err
	}
	var answer packageResponse
	at := base.JoinPath(p.Source.Namespace, p.Source.Type, string(p.Version), "download", p.Platform.OS, p.Platform.Arch)
	from, err := r.client.object(ctx, at, &answer)
	if err != nil {
		return Found{}, fmt.Errorf("registry, %s: %w", p, err)
	}
	found, err := r.check(ctx, p, from, &answer)
	if err != nil {
		return Found{}, fmt.Errorf("registry, %s: %w", p, err)
	}
	return found, nil
}

func (r *Registry) check(ctx context.Context, p Package, from *url.URL, answer *packageResponse) (Found, error) {
	if answer.OS != p.Platform.OS || answer.Arch != p.Platform.Arch {
		return Found{}, fmt.Errorf("%w: the registry answered with a package for %q", ErrRefused, truncate(answer.OS+"_"+answer.Arch))
	}
	if !isSupported(answer.Protocols) {
		return Found{}, fmt.Errorf("%w: the provider supports the protocols %s; Atoll supports 5 and 6", ErrRefused, truncate(strings.Join(answer.Protocols, ", ")))
	}
	claimed, err := ParseDigest(archiveScheme + strings.ToLower(answer.Shasum))
	if err != nil {
		return Found{}, fmt.Errorf("%w: the registry's shasum is not a SHA-256 checksum", ErrRefused)
	}
	found := Found{Claimed: []Digest{claimed}}
	if found.URL, err = r.client.resolve(from, answer.DownloadURL); err != nil {
		return Found{}, err
	}
	if len(answer.SigningKeys.GPG) == 0 {
		found.Signature = Signature{State: SignatureNoKey}
		return found, nil
	}
	found.Signature, err = r.verify(ctx, from, answer, claimed)
	return found, err
}

// verify verifies the signature of the list of checksums, and compares the package's checksum with
// the list.
func (r *Registry) verify(ctx context.Context, from *url.URL, answer *packageResponse, claimed Digest) (Signature, error) {
	read := func(what, address string) ([]byte, error) {
		at, err := r.client.resolve(from, address)
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
		return Signature{}, fmt.Errorf("%w: the signature of SHA256SUMS is invalid: %s", ErrRefused, truncate(err.Error()))
	}
	signed := checksumOf(sums, answer.Filename)
	if signed != hex.EncodeToString(claimed.sum()) {
		return Signature{}, fmt.Errorf("%w: the registry's digest %s of %q differs from %q in the signed list", ErrRefused, claimed, truncate(answer.Filename), truncate(signed))
	}
	return Signature{State: SignatureVerified, Key: key}, nil
}

// checksumOf returns a file's checksum in the output of sha256sum. It returns "" if there is none,
// or two different ones.
func checksumOf(sums []byte, file string) string {
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

// discover returns the address of a host's registry.
func (r *Registry) discover(ctx context.Context, source Address) (*url.URL, error) {
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
		return nil, fmt.Errorf("%w: %s is not a provider registry; a mirror may have its providers", ErrNotFound, source.Host)
	}
	base, err := r.client.resolve(from, address)
	if err != nil {
		return nil, fmt.Errorf("registry, %s: %w", source, err)
	}
	return base, nil
}

// isSupported reports whether one of the protocols is 5 or 6. An empty list is accepted.
func isSupported(protocols []string) bool {
	return len(protocols) == 0 || slices.ContainsFunc(protocols, func(p string) bool {
		major, _, _ := strings.Cut(p, ".")
		return major == "5" || major == "6"
	})
}
