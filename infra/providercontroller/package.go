package providercontroller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/packages"
	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/infra/schema"
)

// packageRecord is the part of a package that is kept over restarts.
type packageRecord struct {
	// Provider is the UID of the Provider that the package was installed for. A new Provider of the
	// same name does not use it.
	Provider types.UID `json:"provider"`
	Source   string    `json:"source"`
	Version  string    `json:"version"`
	// Content is the package's h1: digest, or dev: and the SHA-256 of a development program.
	Content   string `json:"content"`
	Signature string `json:"signature,omitempty"`
	From      string `json:"from"`
}

// installedPackage is a package with its types. It is immutable.
type installedPackage struct {
	packageRecord
	executable  string // "" if it is only known from before a restart
	development *fileVersion
	catalog     *plugin.Catalog
	names       []schema.Name
	containment *v1alpha1.ProviderContainment // nil if it is not contained
}

// fileVersion shows whether a development program was rebuilt.
type fileVersion struct {
	size     int64
	modified time.Time
}

// revision is the same on all servers that have the same package installed.
func (k *packageRecord) revision() string {
	sum := sha256.Sum256([]byte(k.Source + "\n" + k.Version + "\n" + k.Content))
	return hex.EncodeToString(sum[:16])
}

// failure is the reason why a Provider's package cannot be used.
type failure struct {
	reason, message string
	// installed is set if the package is valid and installed, but does not start.
	installed *packageRecord
	// permanent means that only another spec or other server flags can help.
	permanent bool
}

func (f *failure) Error() string { return f.message }

// install installs a Provider's package and determines its types.
func (r *Registry) install(ctx context.Context, p *v1alpha1.Provider, progress func(packages.StepProgress)) (*installedPackage, *failure) {
	if r.config.Permit != nil {
		if err := r.config.Permit(&p.Spec); err != nil {
			return nil, failureOf(fmt.Errorf("%w: %w", errNotAllowed, err))
		}
	}
	got, fresh, err := r.fetch(ctx, &p.Spec, progress)
	if err != nil {
		return nil, failureOf(err)
	}
	out := &installedPackage{packageRecord: packageRecord{
		Provider: p.UID, Source: p.Spec.Source, Version: p.Spec.Version, Content: string(got.Content),
		Signature: signatureText(got.Signature), From: got.From,
	}, executable: got.Executable, development: fresh}
	if fresh != nil {
		if out.Content, err = contentOfFile(got.Executable); err != nil {
			return nil, failureOf(err)
		}
	}
	binary := r.binary(p.Name, &p.Spec, out)
	// Its types can be known from before, so that it does not start here.
	if out.containment, err = r.checkContainment(ctx, binary); err != nil {
		return nil, startFailure(err, &out.packageRecord)
	}
	if out.catalog, err = r.catalogOf(ctx, binary, &p.Spec, out); err != nil {
		return nil, startFailure(err, &out.packageRecord)
	}
	out.names = schema.Names(out.catalog.Resources(), out.catalog.DataSources())
	return out, nil
}

func (r *Registry) fetch(ctx context.Context, spec *v1alpha1.ProviderSpec, progress func(packages.StepProgress)) (packages.Installed, *fileVersion, error) {
	if spec.Origin.Development != nil {
		if !r.config.Development {
			return packages.Installed{}, nil, fmt.Errorf("spec.origin.development: %w: this server does not run unverified programs: start it with --allow-development-providers", errNotAllowed)
		}
		got, err := packages.Develop(spec.Origin.Development.Path)
		if err != nil {
			return got, nil, err
		}
		fresh, err := fileVersionOf(got.Executable)
		return got, fresh, err
	}
	request, err := r.request(spec)
	if err != nil {
		return packages.Installed{}, nil, err
	}
	request.Progress = progress
	got, err := r.installer.Install(ctx, request)
	return got, nil, err
}

func fileVersionOf(program string) (*fileVersion, error) {
	info, err := os.Stat(program)
	if err != nil {
		return nil, err
	}
	return &fileVersion{info.Size(), info.ModTime()}, nil
}

// rebuilt reports whether a development program has changed.
func (p *installedPackage) rebuilt() bool {
	if p.development == nil {
		return false
	}
	now, err := fileVersionOf(p.executable)
	return err != nil || *now != *p.development
}

func contentOfFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // read only
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return "dev:" + hex.EncodeToString(hash.Sum(nil)), nil
}

// catalogOf returns the cached catalog of a package, or asks the provider for it.
func (r *Registry) catalogOf(ctx context.Context, binary plugin.Binary, spec *v1alpha1.ProviderSpec, of *installedPackage) (*plugin.Catalog, error) {
	if catalog, err := r.cache.catalog(of.Content); err == nil {
		return catalog, nil
	}
	catalog, err := r.host.Catalog(ctx, binary, environment(spec))
	if err != nil {
		return nil, err
	}
	if err := r.cache.keepCatalog(of.Content, catalog); err != nil {
		// The provider is asked again after a restart.
		r.config.Log.Warn("cache provider catalog failed", "provider", binary.Name, "error", err)
	}
	return catalog, nil
}

func environment(spec *v1alpha1.ProviderSpec) map[string]string {
	env := make(map[string]string, len(spec.Process.Environment))
	for _, v := range spec.Process.Environment {
		env[v.Name] = v.Value
	}
	return env
}

func signatureText(s packages.Signature) string {
	switch s.State {
	case packages.SignatureVerified:
		return "verified, key " + s.Key
	case packages.SignatureNoKey:
		return "the registry has no signing key; verified by digest"
	}
	return ""
}

// failureOf classifies the errors of package install by their remedy.
func failureOf(err error) *failure {
	f := &failure{reason: v1alpha1.ReasonUnreachable, message: err.Error()}
	var digest *packages.DigestError
	switch {
	case errors.As(err, &digest):
		f.reason = v1alpha1.ReasonDigestMismatch
	case errors.Is(err, packages.ErrRefused):
		f.reason = v1alpha1.ReasonBadPackage
	case errors.Is(err, packages.ErrNotFound):
		f.reason = v1alpha1.ReasonNotFound
	case errors.Is(err, packages.ErrInvalid):
		f.reason, f.permanent = v1alpha1.ReasonInvalid, true
	case errors.Is(err, errNotAllowed):
		f.reason, f.permanent = v1alpha1.ReasonNotAllowed, true
	}
	return f
}
