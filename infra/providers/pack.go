package providers

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
	"github.com/atoll-dev/atoll/infra/install"
	"github.com/atoll-dev/atoll/infra/provider"
	"github.com/atoll-dev/atoll/infra/schema"
)

// known is what is kept of a package over restarts.
type known struct {
	// Provider that it was installed for. Another of the same name has nothing to do with it.
	Provider types.UID `json:"provider"`
	Source   string    `json:"source"`
	Version  string    `json:"version"`
	// Content is the package's h1: digest, or dev: and the SHA-256 of a program in development.
	Content   string `json:"content"`
	Signature string `json:"signature,omitempty"`
	From      string `json:"from"`
}

// pack is a package of which is known what it has. It is not changed once made.
type pack struct {
	known
	executable  string // "" if it is only known from before
	development *developed
	catalog     *provider.Catalog
	names       []schema.Name
}

// developed tells whether a program in development was built anew.
type developed struct {
	size     int64
	modified time.Time
}

// revision is the same in all servers on which the same is installed.
func (k *known) revision() string {
	sum := sha256.Sum256([]byte(k.Source + "\n" + k.Version + "\n" + k.Content))
	return hex.EncodeToString(sum[:16])
}

// failure is why a Provider's package cannot be used.
type failure struct {
	reason, message string
	// installed is of a package that is there and good, but does not start.
	installed *known
	// lasting is of what only another spec, or another start of the server, can change.
	lasting bool
}

func (f *failure) Error() string { return f.message }

// install brings what a Provider asks for, and finds out what it has.
func (r *Registry) install(ctx context.Context, p *v1alpha1.Provider, progress func(install.StepProgress)) (*pack, *failure) {
	got, fresh, err := r.fetch(ctx, &p.Spec, progress)
	if err != nil {
		return nil, failureOf(err)
	}
	out := &pack{known: known{
		Provider: p.UID, Source: p.Spec.Source, Version: p.Spec.Version, Content: string(got.Content),
		Signature: signatureText(got.Signature), From: got.From,
	}, executable: got.Executable, development: fresh}
	if fresh != nil {
		if out.Content, err = contentOfFile(got.Executable); err != nil {
			return nil, failureOf(err)
		}
	}
	if out.catalog, err = r.catalogOf(ctx, p, out); err != nil {
		return nil, &failure{reason: v1alpha1.ReasonDoesNotStart, message: err.Error(), installed: &out.known}
	}
	out.names = schema.Names(out.catalog.Resources(), out.catalog.DataSources())
	return out, nil
}

func (r *Registry) fetch(ctx context.Context, spec *v1alpha1.ProviderSpec, progress func(install.StepProgress)) (install.Installed, *developed, error) {
	if spec.Origin.Development != nil {
		if !r.config.Development {
			return install.Installed{}, nil, fmt.Errorf("spec.origin.development: %w: this server runs no programs that nobody has verified, unless it is started with --allow-development-providers", errNotAllowed)
		}
		got, err := install.Develop(spec.Origin.Development.Path)
		if err != nil {
			return got, nil, err
		}
		fresh, err := developedAt(got.Executable)
		return got, fresh, err
	}
	request, err := r.request(spec)
	if err != nil {
		return install.Installed{}, nil, err
	}
	request.Progress = progress
	got, err := r.installer.Install(ctx, request)
	return got, nil, err
}

func developedAt(program string) (*developed, error) {
	info, err := os.Stat(program)
	if err != nil {
		return nil, err
	}
	return &developed{info.Size(), info.ModTime()}, nil
}

// rebuilt tells whether a program in development is no longer what it was.
func (p *pack) rebuilt() bool {
	if p.development == nil {
		return false
	}
	now, err := developedAt(p.executable)
	return err != nil || *now != *p.development
}

func contentOfFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return "dev:" + hex.EncodeToString(hash.Sum(nil)), nil
}

// catalogOf takes what is kept, and asks the provider only if nothing is.
func (r *Registry) catalogOf(ctx context.Context, p *v1alpha1.Provider, of *pack) (*provider.Catalog, error) {
	if catalog, err := r.memory.catalog(of.Content); err == nil {
		return catalog, nil
	}
	catalog, err := r.host.Catalog(ctx, provider.Binary{Name: p.Name, Path: of.executable}, environment(&p.Spec))
	if err != nil {
		return nil, err
	}
	if err := r.memory.keepCatalog(of.Content, catalog); err != nil {
		// It is asked again after a restart.
		r.config.Log.Warn("what a provider has cannot be kept", "provider", p.Name, "error", err)
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

func signatureText(s install.Signature) string {
	switch s.State {
	case install.SignatureVerified:
		return "verified, key " + s.Key
	case install.SignatureNoKey:
		return "the registry names no key; the digest decided"
	}
	return ""
}

// failureOf sorts the errors of package install by what there is to do about them.
func failureOf(err error) *failure {
	f := &failure{reason: v1alpha1.ReasonUnreachable, message: err.Error()}
	var digest *install.DigestError
	switch {
	case errors.As(err, &digest):
		f.reason = v1alpha1.ReasonDigestMismatch
	case errors.Is(err, install.ErrRefused):
		f.reason = v1alpha1.ReasonBadPackage
	case errors.Is(err, install.ErrNotFound):
		f.reason = v1alpha1.ReasonNotFound
	case errors.Is(err, install.ErrInvalid):
		f.reason, f.lasting = v1alpha1.ReasonInvalid, true
	case errors.Is(err, errNotAllowed):
		f.reason, f.lasting = v1alpha1.ReasonNotAllowed, true
	}
	return f
}
