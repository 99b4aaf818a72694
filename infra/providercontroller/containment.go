package providercontroller

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/containment"
	"github.com/atoll-dev/atoll/infra/packages"
	"github.com/atoll-dev/atoll/infra/plugin"
)

// containmentOf returns what a Provider's administrator grants, or nil if the provider is not to be
// contained.
func containmentOf(spec *v1alpha1.ProviderSpec, protected []string) *containment.Spec {
	if spec.Containment == v1alpha1.ContainmentNone {
		return nil
	}
	out := &containment.Spec{Protected: protected}
	for _, file := range spec.Files {
		out.Files = append(out.Files, containment.File{Path: file.Path, Access: containment.Access(cmp.Or(file.Access, v1alpha1.FileReadOnly))})
	}
	if spec.Network != nil {
		out.TCPPorts = []uint16{} // none, unless the spec lists some
		for _, port := range spec.Network.TCPPorts {
			out.TCPPorts = append(out.TCPPorts, uint16(port))
		}
	}
	return out
}

// binary returns how to run an installed package.
func (r *Registry) binary(name string, spec *v1alpha1.ProviderSpec, pack *installedPackage) plugin.Binary {
	b := plugin.Binary{Name: name, Path: pack.executable, Containment: containmentOf(spec, r.config.Protected)}
	if pack.development == nil {
		b.Package = r.store.Directory(packages.Digest(pack.Content))
	}
	return b
}

// checkContainment applies a Provider's containment on this server, and returns what holds. It returns
// nil if the provider is not to be contained.
func (r *Registry) checkContainment(ctx context.Context, b plugin.Binary) (*v1alpha1.ProviderContainment, error) {
	got, err := r.host.CheckContainment(ctx, b)
	if err != nil || got == nil {
		return nil, err
	}
	return &v1alpha1.ProviderContainment{User: got.User, Enforced: got.Enforced, NotEnforced: got.NotEnforced}, nil
}

// startFailure is the failure of a package that is installed and does not start.
func startFailure(err error, installed *packageRecord) *failure {
	f := &failure{reason: v1alpha1.ReasonDoesNotStart, message: err.Error(), installed: installed}
	if errors.Is(err, plugin.ErrNotContained) {
		f.reason = v1alpha1.ReasonNotContained
	}
	return f
}

// ProtectedPaths returns the absolute path of a directory, and its real path if that differs, for Config.Protected.
func ProtectedPaths(dir string) ([]string, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if real := resolved(absolute); real != absolute {
		return []string{absolute, real}, nil
	}
	return []string{absolute}, nil
}
