package providercontroller

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/packages"
)

func mirrorAt(path string) v1alpha1.ProviderOrigin {
	return v1alpha1.ProviderOrigin{FilesystemMirror: &v1alpha1.FilesystemMirror{Path: path}}
}

func TestOnlyAllowedMirrors(t *testing.T) {
	dir := resolved(t.TempDir())
	allowed, other := filepath.Join(dir, "allowed"), filepath.Join(dir, "allowed-not")
	for _, d := range []string{filepath.Join(allowed, "deep"), other} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"out": other, "in": filepath.Join(allowed, "deep")} {
		if err := os.Symlink(to, filepath.Join(allowed, link)); err != nil {
			t.Fatal(err)
		}
	}
	r := &Registry{config: Config{Mirrors: []string{allowed}}}
	for path, fine := range map[string]bool{
		allowed: true, allowed + "/": true, allowed + "/deep": true, allowed + "/in": true, allowed + "/deep/..": true,
		allowed + "/not-yet": true,
		other:                false, allowed + "/out": false, allowed + "/..": false, "/": false, "/etc": false, allowed + "/../allowed-not": false,
		allowed + "/out/../..": false,
	} {
		origin := mirrorAt(path)
		_, err := r.origin(&origin)
		if (err == nil) != fine {
			t.Errorf("%s: %v", path, err)
		}
		if err != nil && (!errors.Is(err, errNotAllowed) || !strings.Contains(err.Error(), "--provider-mirror")) {
			t.Errorf("%s: %v: the error does not name the remedy", path, err)
		}
	}
}

func TestInvalidSpecs(t *testing.T) {
	client := packages.NewClient(packages.ClientConfig{})
	defer client.Close()
	r := &Registry{config: Config{Mirrors: []string{"/mirrors"}}, client: client}
	good := v1alpha1.ProviderSpec{Source: "example.com/atoll/demo", Version: "1.0.0", Origin: mirrorAt("/mirrors")}
	if _, err := r.request(&good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*v1alpha1.ProviderSpec){
		"spec.source":     func(s *v1alpha1.ProviderSpec) { s.Source = "example.com/atoll/terraform-provider-demo" },
		"spec.version":    func(s *v1alpha1.ProviderSpec) { s.Version = "1.0" },
		"spec.digests[0]": func(s *v1alpha1.ProviderSpec) { s.Digests = []string{"sha256:x"} },
		"spec.origin: ":   func(s *v1alpha1.ProviderSpec) { s.Origin = v1alpha1.ProviderOrigin{} },
		"spec.origin.networkMirror.url: ": func(s *v1alpha1.ProviderSpec) {
			s.Origin = v1alpha1.ProviderOrigin{NetworkMirror: &v1alpha1.NetworkMirror{URL: "http://example.com/"}}
		},
		"spec.origin.filesystemMirror": func(s *v1alpha1.ProviderSpec) { s.Origin = mirrorAt("/elsewhere") },
	} {
		spec := good
		change(&spec)
		_, err := r.request(&spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s in the error", err, want)
			continue
		}
		if f := failureOf(err); !f.permanent {
			t.Errorf("%v: is retried, although it is permanent", err)
		}
	}
	for name, origin := range map[string]v1alpha1.ProviderOrigin{
		"registry":       {Registry: &v1alpha1.ProviderRegistry{}},
		"network mirror": {NetworkMirror: &v1alpha1.NetworkMirror{URL: "https://mirror.example.com/providers"}},
	} {
		if got, err := r.origin(&origin); err != nil || !strings.Contains(got.String(), name) {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	short := good
	short.Source = "hashicorp/time"
	if got, err := r.request(&short); err != nil || got.Package.Source.Host != defaultRegistry {
		t.Errorf("%v %v: a source without a host must use OpenTofu's registry", got, err)
	}
}
