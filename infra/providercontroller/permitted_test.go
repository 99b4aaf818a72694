package providercontroller

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// TestPermitted: a workspace runs only programs that the administrator of the server permits, from where the source says whose they are.
func TestPermitted(t *testing.T) {
	permitted, err := ParsePermitted([]string{"hashicorp/random", "Example.com/acme/*"})
	if err != nil {
		t.Fatal(err)
	}
	registry := v1alpha1.ProviderOrigin{Registry: &v1alpha1.ProviderRegistry{}}
	mirror := v1alpha1.ProviderOrigin{FilesystemMirror: &v1alpha1.FilesystemMirror{Path: "/mirror"}}
	for _, c := range []struct {
		spec v1alpha1.ProviderSpec
		want string // "" if it is permitted
	}{
		{v1alpha1.ProviderSpec{Source: "hashicorp/random", Origin: registry}, ""},
		{v1alpha1.ProviderSpec{Source: "Hashicorp/Random", Origin: mirror}, ""},
		{v1alpha1.ProviderSpec{Source: "registry.opentofu.org:443/hashicorp/random", Origin: registry}, ""},
		{v1alpha1.ProviderSpec{Source: "example.com/acme/anything", Origin: registry, Containment: v1alpha1.ContainmentDefault}, ""},
		{v1alpha1.ProviderSpec{Source: "hashicorp/null", Origin: registry}, "spec.source"},
		{v1alpha1.ProviderSpec{Source: "acme/random", Origin: registry}, "--flag"},
		{v1alpha1.ProviderSpec{Source: "example.com:8443/acme/anything", Origin: registry}, "spec.source"},
		{v1alpha1.ProviderSpec{Source: "example.com/acme/*", Origin: registry}, "spec.source"},
		{v1alpha1.ProviderSpec{Source: "hashicorp/random", Origin: v1alpha1.ProviderOrigin{NetworkMirror: &v1alpha1.NetworkMirror{URL: "https://evil.example"}}}, "spec.origin"},
		{v1alpha1.ProviderSpec{Source: "hashicorp/random", Origin: v1alpha1.ProviderOrigin{Development: &v1alpha1.DevelopmentBinary{Path: "/bin/sh"}}}, "spec.origin"},
		{v1alpha1.ProviderSpec{Source: "hashicorp/random", Origin: registry, Containment: v1alpha1.ContainmentNone}, "spec.containment"},
		{v1alpha1.ProviderSpec{Source: "hashicorp/random", Origin: registry, Files: []v1alpha1.ProviderFile{{Path: "/etc"}}}, "spec.files"},
	} {
		problems := permitted.Check(&c.spec, "--flag")
		if c.want == "" && len(problems) > 0 || c.want != "" && (len(problems) == 0 || !strings.Contains(problems.ToAggregate().Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.spec, problems, c.want)
		}
	}
	if problems := (Permitted)(nil).Check(&v1alpha1.ProviderSpec{Source: "hashicorp/random", Origin: registry}, "--flag"); len(problems) != 1 {
		t.Errorf("without permitted sources: %v", problems)
	}
	for _, bad := range []string{"", "random", "*", "*/*", "a/b/c/d", "hashicorp/ran*", "hashicorp/*/x"} {
		if got, err := ParsePermitted([]string{bad}); err == nil {
			t.Errorf("%q was accepted as %v", bad, got)
		}
	}
}
