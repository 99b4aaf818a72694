package providercontroller

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/packages"
)

// Permitted are the sources of the providers that workspaces may run: HOST/NAMESPACE/TYPE, or HOST/NAMESPACE/* for all of a namespace.
type Permitted []string

// everyType ends the pattern of a whole namespace.
const everyType = "/*"

// ParsePermitted parses sources, as spec.source of a Provider has them. The type may be *.
func ParsePermitted(sources []string) (Permitted, error) {
	var out Permitted
	for _, source := range sources {
		namespace, all := strings.CutSuffix(source, everyType)
		parsed := source
		if all {
			parsed = namespace + "/any"
		}
		if !strings.Contains(source, "/") {
			return nil, fmt.Errorf("source %q of providers for workspaces: write NAMESPACE/TYPE, NAMESPACE/*, or the same after HOST/", source)
		}
		address, err := packages.ParseAddress(parsed, defaultRegistry)
		if err != nil {
			return nil, fmt.Errorf("source %q of providers for workspaces: %w", source, err)
		}
		if all {
			out = append(out, address.Host+"/"+address.Namespace+everyType)
		} else {
			out = append(out, address.String())
		}
	}
	return out, nil
}

// Check returns why a workspace must not run a Provider. flag is the flag of the server that permits sources.
//
// A source says whose program it is only if the package comes from its registry, or from a mirror that the administrator of the server fills: the
// digests are the author's, who could trust any program of a mirror of his own. A provider that is not contained, or may use files, has rights that
// only that administrator gives.
func (p Permitted) Check(spec *v1alpha1.ProviderSpec, flag string) (problems field.ErrorList) {
	at := field.NewPath("spec")
	if !p.permits(spec.Source) {
		problems = append(problems, field.Forbidden(at.Child("source"), fmt.Sprintf("workspaces may not run the provider %s: an administrator of the server permits sources with %s", spec.Source, flag)))
	}
	if spec.Origin.Registry == nil && spec.Origin.FilesystemMirror == nil {
		problems = append(problems, field.Forbidden(at.Child("origin"), "a Provider of a workspace is installed from the registry of its source, or from a directory that the server permits: set registry or filesystemMirror"))
	}
	if spec.Containment == v1alpha1.ContainmentNone {
		problems = append(problems, field.Forbidden(at.Child("containment"), "a provider of a workspace is contained: set Default"))
	}
	if len(spec.Files) > 0 {
		problems = append(problems, field.Forbidden(at.Child("files"), "a provider of a workspace uses no files of the server: remove them"))
	}
	return problems
}

// permits reports whether a source is permitted.
func (p Permitted) permits(source string) bool {
	address, err := packages.ParseAddress(source, defaultRegistry)
	if err != nil {
		return false
	}
	return slices.Contains(p, address.String()) || slices.Contains(p, address.Host+"/"+address.Namespace+everyType)
}
