package providercontroller

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/packages"
)

// defaultRegistry is the host of sources without a host, as in OpenTofu.
const defaultRegistry = "registry.opentofu.org"

// installKey identifies the parts of a spec that decide which package is installed, and whether it
// can be contained. Changes of the other parts do not cause a new installation.
func installKey(spec *v1alpha1.ProviderSpec) string {
	digests := slices.Clone(spec.Digests)
	slices.Sort(digests)
	text, err := json.Marshal([]any{strings.ToLower(spec.Source), spec.Version, digests, spec.Origin, spec.Containment, spec.Files, spec.Network})
	if err != nil {
		return err.Error() // strings can always be encoded
	}
	return string(text)
}

// request converts a spec into an install request. The author of a Provider may run programs here,
// but only from places that the operator of the server allows.
func (r *Registry) request(spec *v1alpha1.ProviderSpec) (packages.Request, error) {
	request := packages.Request{Package: packages.Package{Platform: packages.ThisPlatform()}}
	var err error
	if request.Package.Source, err = packages.ParseAddress(spec.Source, defaultRegistry); err != nil {
		return request, fmt.Errorf("spec.source: %w", err)
	}
	if request.Package.Version, err = packages.ParseVersion(spec.Version); err != nil {
		return request, fmt.Errorf("spec.version: %w", err)
	}
	for i, text := range spec.Digests {
		digest, err := packages.ParseDigest(text)
		if err != nil {
			return request, fmt.Errorf("spec.digests[%d]: %w", i, err)
		}
		request.Digests = append(request.Digests, digest)
	}
	request.Origin, err = r.origin(&spec.Origin)
	return request, err
}

// errNotAllowed means that the flags of this server do not allow the origin.
var errNotAllowed = errors.New("not allowed")

func (r *Registry) origin(o *v1alpha1.ProviderOrigin) (packages.Origin, error) {
	switch {
	case o.FilesystemMirror != nil:
		directory, err := r.allowedMirror(o.FilesystemMirror.Path)
		if err != nil {
			return nil, err
		}
		return packages.FilesystemMirror{Directory: directory}, nil
	case o.NetworkMirror != nil:
		mirror, err := packages.NewNetworkMirror(r.client, o.NetworkMirror.URL)
		if err != nil {
			return nil, fmt.Errorf("spec.origin.networkMirror.url: %w", err)
		}
		return mirror, nil
	case o.Registry != nil:
		return packages.NewRegistry(r.client), nil
	}
	return nil, fmt.Errorf("spec.origin: %w: set one of filesystemMirror, networkMirror, registry and development", packages.ErrInvalid)
}

// allowedMirror returns the resolved path if it is allowed. A link below an allowed directory may
// lead anywhere, so the resolved path decides.
func (r *Registry) allowedMirror(path string) (string, error) {
	real := resolved(filepath.Clean(path))
	for _, allowed := range r.config.Mirrors {
		if below, err := filepath.Rel(resolved(allowed), real); err == nil && filepath.IsLocal(below) {
			return real, nil
		}
	}
	// Do not reveal whether a path exists outside of the allowed directories.
	return "", fmt.Errorf("spec.origin.filesystemMirror.path: %w: %s is not within an allowed mirror directory: start the server with --provider-mirror %s",
		errNotAllowed, path, path)
}

// resolved resolves the links in a path. It returns the path itself if it does not exist.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// sourceAddress returns the full address of a provider: HOST/NAMESPACE/TYPE.
func sourceAddress(source string) string {
	address, err := packages.ParseAddress(source, defaultRegistry)
	if err != nil {
		return source // an installed package has a valid one
	}
	return address.String()
}
