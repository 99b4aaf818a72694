package providercontroller

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/containment"
)

// TestNotContained: a provider that this kernel cannot contain is installed and not served, until its
// Provider says that it need not be contained.
func TestNotContained(t *testing.T) {
	s := newTestEnv(t)
	s.provider("demo")
	r := s.start("", func(c *Config) { c.Machine = &containment.Machine{System: "linux"} })
	contains(t, s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonNotContained), "first: ", "this kernel has no Landlock", "spec.containment: None")
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonInstalled)
	if groups := r.Groups(); len(groups) > 0 {
		t.Errorf("it serves %v", groups)
	}
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Containment, p.Spec.Files = v1alpha1.ContainmentNone, nil })
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	if c := s.get("demo").Status.Containment; c != nil {
		t.Errorf("status.containment is %+v", c)
	}
	s.config("shop", "demo", "directory: "+s.world())
	if _, _, err := r.Open(t.Context(), "demo", "shop", "demo"); err != nil {
		t.Error(err)
	}
	// Its types are known now, and it does not start to serve them.
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Containment = v1alpha1.ContainmentDefault })
	contains(t, s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonNotContained), "its types stay served")
	_, _, err := r.Open(t.Context(), "demo", "shop", "demo")
	if err == nil {
		t.Error("it can be opened")
	}
}

// TestContainmentIsReported: the status has what holds, and follows spec.files.
func TestContainmentIsReported(t *testing.T) {
	s := newTestEnv(t)
	s.provider("demo")
	dir := t.TempDir()
	r := s.start(dir)
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	c := s.get("demo").Status.Containment
	if c == nil || !slices.Contains(c.Enforced, containment.PartFiles) || slices.Contains(c.Enforced, containment.PartTCPPorts) {
		t.Fatalf("status.containment is %+v", c)
	}
	s.config("shop", "demo", "directory: "+s.world())
	if _, _, err := r.Open(t.Context(), "demo", "shop", "demo"); err != nil {
		t.Fatal(err)
	}
	s.provider("demo", func(p *v1alpha1.Provider) {
		p.Spec.Files = []v1alpha1.ProviderFile{{Path: filepath.Join(s.worlds, "nowhere")}}
		p.Spec.Network = &v1alpha1.ProviderNetwork{TCPPorts: []int32{443}}
	})
	contains(t, s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonNotContained), "spec.files[0].path", "does not exist on this server")
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Files = []v1alpha1.ProviderFile{{Path: dir}} })
	contains(t, s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonNotContained), "spec.files[0].path", "which has files of the server")
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Files = nil })
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	c = s.get("demo").Status.Containment
	if c == nil || !slices.Contains(slices.Concat(c.Enforced, c.NotEnforced), containment.PartTCPPorts) {
		t.Errorf("status.containment is %+v", c)
	}
	// What its files were is no longer granted.
	s.config("shop", "demo", "directory: "+s.world())
	if _, _, err := r.OpenLatest(t.Context(), "demo", "shop", "demo"); err == nil {
		t.Error("it writes where it is not allowed to")
	}
}
