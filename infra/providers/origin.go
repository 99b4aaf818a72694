package providers

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/install"
)

// defaultRegistry is the host of sources that name none: OpenTofu's.
const defaultRegistry = "registry.opentofu.org"

// wanted stands for all of a spec that decides what is installed. The rest can change
// without anything being installed anew.
func wanted(spec *v1alpha1.ProviderSpec) string {
	digests := slices.Clone(spec.Digests)
	slices.Sort(digests)
	text, err := json.Marshal([]any{strings.ToLower(spec.Source), spec.Version, digests, spec.Origin})
	if err != nil {
		return err.Error() // strings alone are in it, which have JSON
	}
	return string(text)
}

// request turns a spec into what is to be installed. What it names was written by somebody who may run
// programs here, and all the same only where whoever runs the server allows it.
func (r *Registry) request(spec *v1alpha1.ProviderSpec) (install.Request, error) {
	request := install.Request{Package: install.Package{Platform: install.ThisPlatform()}}
	var err error
	if request.Package.Source, err = install.ParseAddress(spec.Source, defaultRegistry); err != nil {
		return request, fmt.Errorf("spec.source: %w", err)
	}
	if request.Package.Version, err = install.ParseVersion(spec.Version); err != nil {
		return request, fmt.Errorf("spec.version: %w", err)
	}
	for i, text := range spec.Digests {
		digest, err := install.ParseDigest(text)
		if err != nil {
			return request, fmt.Errorf("spec.digests[%d]: %w", i, err)
		}
		request.Digests = append(request.Digests, digest)
	}
	request.Origin, err = r.origin(&spec.Origin)
	return request, err
}

// errNotAllowed is of what this server was not started to allow.
var errNotAllowed = errors.New("not allowed")

func (r *Registry) origin(o *v1alpha1.ProviderOrigin) (install.Origin, error) {
	switch {
	case o.FilesystemMirror != nil:
		directory, err := r.allowedMirror(o.FilesystemMirror.Path)
		if err != nil {
			return nil, err
		}
		return install.FilesystemMirror{Directory: directory}, nil
	case o.NetworkMirror != nil:
		mirror, err := install.NewNetworkMirror(r.client, o.NetworkMirror.URL)
		if err != nil {
			return nil, fmt.Errorf("spec.origin.networkMirror.url: %w", err)
		}
		return mirror, nil
	case o.Registry != nil:
		return install.NewRegistry(r.client), nil
	}
	return nil, fmt.Errorf("spec.origin: %w: name one of filesystemMirror, networkMirror, registry and development", install.ErrInvalid)
}

// allowedMirror gives where a path leads, if that is allowed. A link below an allowed directory may lead
// anywhere, so what counts is not how the path is written.
func (r *Registry) allowedMirror(path string) (string, error) {
	real := resolved(filepath.Clean(path))
	for _, allowed := range r.config.Mirrors {
		if below, err := filepath.Rel(resolved(allowed), real); err == nil && filepath.IsLocal(below) {
			return real, nil
		}
	}
	// Whether there is anything is nobody's business where it is not allowed.
	return "", fmt.Errorf("spec.origin.filesystemMirror.path: %w: %s is not below a directory that this server was started to take packages from: start it with --provider-mirror %s",
		errNotAllowed, path, path)
}

// resolved is where a path leads, or the path itself if it leads nowhere.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}
