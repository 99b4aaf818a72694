package providers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/reference"
)

func network(name string) reference.Ref {
	return reference.Ref{Kind: reference.Resource, Type: "demo_network", Namespace: "shop", Name: name}
}

func TestInstalledServedAndOpened(t *testing.T) {
	s := newStage(t)
	s.provider("demo")
	r := s.start("")
	contains(t, s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonInstalled), "version 1.0.0 from filesystem mirror", "by first")
	contains(t, s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed), "12 resource types and 2 data sources are served in demo.providers.atoll.dev")
	p := s.see("demo")
	if p.Status.Digest != built.made.H1 || p.Status.Protocol != 6 || p.Status.ResourceTypes != 12 || p.Status.DataSources != 2 ||
		p.Status.Group != "demo.providers.atoll.dev" || len(p.Finalizers) != 1 {
		t.Errorf("%+v %v", p.Status, p.Finalizers)
	}
	<-r.Synced()
	served, err := r.Kind(network("main"))
	if err != nil || served.Kind.Kind != "Network" || served.Provider != "demo" || served.Schema.Block.Attribute("cidr") == nil {
		t.Fatalf("%+v %v", served, err)
	}
	if by, ok := r.ByPlural("demo.providers.atoll.dev", "datafiles"); !ok || !by.Data || by.Type != "demo_file" {
		t.Errorf("%+v", by)
	}
	_, err = r.Kind(reference.Ref{Type: "demo_netwrok"})
	if !errors.Is(err, infra.ErrNotServed) {
		t.Error(err)
	}

	// It is configured as the namespace has it.
	world := t.TempDir()
	s.secret("shop", "key", map[string]string{"token": "tell-nobody"})
	s.config("shop", "demo", "directory: "+world+"\ntoken: {secretKeyRef: {name: key, key: token}}")
	opened, revision, err := r.Open(t.Context(), "demo", "shop", "demo")
	if err != nil {
		t.Fatal(err)
	}
	again, same, err := r.Open(t.Context(), "demo", "shop", "demo")
	if err != nil || again != opened || same != revision {
		t.Errorf("asked again, it is another: %v, %s and %s", err, revision, same)
	}
	ask := func(p contract.Provider) error {
		said, err := p.ValidateResource(t.Context(), "demo_network", &contract.Configuration{Value: emptyConfig(t, served)})
		if err != nil || !said.Failed() {
			return errors.Join(err, errors.New("it takes a network without a name"))
		}
		return nil
	}
	if err := ask(opened); err != nil {
		t.Error(err)
	}

	// A Secret that changes has it configured anew, and who holds the former goes on.
	s.secret("shop", "key", map[string]string{"token": "another"})
	var changed contract.Provider
	s.until("the Secret is taken in", func() error {
		var now string
		if changed, now, err = r.Open(t.Context(), "demo", "shop", "demo"); err != nil || now == revision {
			return errors.Join(err, errors.New("the same revision"))
		}
		return nil
	})
	if changed == opened {
		t.Error("another configuration is the same provider")
	}
	if err := errors.Join(ask(opened), ask(changed)); err != nil {
		t.Error(err)
	}

	// When nobody has called the former for a while, it is gone.
	r.opened.sweep(time.Now().Add(goesRetired + time.Second))
	if err := ask(opened); !errors.Is(err, contract.ErrNotAsked) || !strings.Contains(err.Error(), "ask again") {
		t.Errorf("the former one: %v", err)
	}
	if err := ask(changed); err != nil {
		t.Error(err)
	}
}

// emptyConfig is of a resource of which nothing is written.
func emptyConfig(t *testing.T, served *infra.ServedKind) cty.Value {
	t.Helper()
	values := map[string]cty.Value{}
	for name, ty := range served.Schema.Block.ImpliedType().AttributeTypes() {
		values[name] = cty.NullVal(ty)
	}
	return cty.ObjectVal(values)
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	s := newStage(t)
	s.provider("demo")
	r := s.start("")
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	open := func(provider, config string) string {
		t.Helper()
		_, _, err := r.Open(t.Context(), provider, "shop", config)
		if err == nil {
			t.Fatalf("%s of %s is opened", config, provider)
		}
		return err.Error()
	}
	contains(t, open("aws", "aws"), `there is no Provider "aws"`)
	contains(t, open("demo", "other"), `there is no ProviderConfig "other" of namespace "shop"`, "spec.provider: demo")
	contains(t, open("demo", "demo"), `there is no ProviderConfig "demo"`, "make one", "spec.configuration.directory")

	s.config("shop", "demo", "directory: relative")
	contains(t, open("demo", "demo"), `the provider refuses ProviderConfig "demo" of namespace "shop"`, "The directory cannot be opened")
	s.config("shop", "demo", "directory: /tmp\ntoken: literal-secret")
	said := open("demo", "demo")
	contains(t, said, "spec.configuration.token", "secretKeyRef")
	if strings.Contains(said, "literal-secret") {
		t.Errorf("%q tells a secret", said)
	}
	s.config("shop", "demo", "directory: /tmp\ntoken: {secretKeyRef: {name: none, key: k}}")
	contains(t, open("demo", "demo"), `there is no Secret "none"`)
	s.secret("shop", "none", map[string]string{"k": "wrong", "message": "do-not-tell"})
	contains(t, open("demo", "demo"), "The token is refused")
	s.config("shop", "demo", "directory: /tmp\ntoken: {secretKeyRef: {name: none, key: q}}")
	contains(t, open("demo", "demo"), `Secret "none" has no key "q"`)
	// What the provider does not call sensitive is masked all the same, if it came from a Secret.
	s.config("shop", "demo", "directory: /tmp\nfail_configure: {secretKeyRef: {name: none, key: message}}")
	said = open("demo", "demo")
	contains(t, said, "The configuration fails: (sensitive)")
	if strings.Contains(said, "do-not-tell") {
		t.Errorf("%q tells a secret", said)
	}
	// Of another Provider.
	s.config("shop", "random", "directory: /tmp")
	contains(t, open("demo", "random"), "is of Provider random, and not of demo")
}

func TestRefusedPackages(t *testing.T) {
	s := newStage(t)
	other := "zh:" + strings.Repeat("0", 64)
	s.provider("wrong", func(p *v1alpha1.Provider) { p.Spec.Digests = []string{other} })
	s.provider("missing", func(p *v1alpha1.Provider) { p.Spec.Version = "9.9.9" })
	s.provider("elsewhere", func(p *v1alpha1.Provider) { p.Spec.Origin = mirrorAt("/etc") })
	s.provider("developed", func(p *v1alpha1.Provider) {
		p.Spec.Digests = nil
		p.Spec.Origin = v1alpha1.ProviderOrigin{Development: &v1alpha1.DevelopmentBinary{Path: "/bin/true"}}
	})
	r := s.start("")
	contains(t, s.await("wrong", v1alpha1.ProviderInstalled, v1alpha1.ReasonDigestMismatch), "first: ", built.made.ZH)
	contains(t, s.await("missing", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotFound), "9.9.9")
	contains(t, s.await("elsewhere", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotAllowed), "--provider-mirror /etc")
	contains(t, s.await("developed", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotAllowed), "--allow-development-providers")
	contains(t, s.await("wrong", v1alpha1.ProviderServed, v1alpha1.ReasonNotInstalled), "Installed says why")
	<-r.Synced() // though none is served
	if groups := r.Groups(); len(groups) > 0 {
		t.Errorf("it serves %v", groups)
	}
	_, _, err := r.Open(t.Context(), "wrong", "shop", "wrong")
	if !errors.Is(err, contract.ErrNotAsked) {
		t.Error(err)
	}
	// A spec that is put right is tried at once.
	s.provider("wrong", func(p *v1alpha1.Provider) { p.Spec.Digests = append(p.Spec.Digests, built.made.H1) })
	s.await("wrong", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
}

func TestDevelopment(t *testing.T) {
	s := newStage(t)
	mirror(t)
	programs, err := filepath.Glob(filepath.Join(built.made.Unpacked, "terraform-provider-*"))
	if err != nil || len(programs) != 1 {
		t.Fatal(programs, err)
	}
	broken := filepath.Join(t.TempDir(), "provider")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho this is no provider >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	develop := func(path string) func(*v1alpha1.Provider) {
		return func(p *v1alpha1.Provider) {
			p.Spec.Digests = nil
			p.Spec.Origin = v1alpha1.ProviderOrigin{Development: &v1alpha1.DevelopmentBinary{Path: path}}
		}
	}
	s.provider("demo", develop(broken))
	s.start("", func(c *Config) { c.Development = true })
	contains(t, s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonDoesNotStart), "this is no provider")
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonInstalled)
	s.provider("demo", develop(programs[0]))
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	if digest := s.see("demo").Status.Digest; !strings.HasPrefix(digest, "dev:") {
		t.Errorf("the digest of what nobody verified is %s", digest)
	}
}

// What was served stays served over a restart, though the mirror and the store are gone; it is not run.
func TestServedFromMemory(t *testing.T) {
	s := newStage(t)
	dir := t.TempDir()
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Types = []string{"demo_network", "demo_file"} })
	first := s.start(dir)
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	before := first.Groups()
	first.stop()
	if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
		t.Fatal(err)
	}
	second := s.start(dir, func(c *Config) { c.Mirrors = nil })
	<-second.Synced()
	after := second.Groups()
	if len(after) != 1 || after[0].Revision != before[0].Revision || len(after[0].Kinds) != 3 {
		t.Fatalf("before %+v, after %+v", before, after)
	}
	contains(t, s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotAllowed), "--provider-mirror")
	if _, err := second.Kind(network("main")); err != nil {
		t.Error(err)
	}
	_, _, err := second.Open(t.Context(), "demo", "shop", "demo")
	if !errors.Is(err, contract.ErrNotAsked) {
		t.Errorf("it runs what it has not verified: %v", err)
	}
	second.stop()

	// With the mirror it is installed again, and starts no process to know what it has.
	third := s.start(dir)
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonInstalled)
	// Another Provider of the same name has nothing to do with what is known.
	third.stop()
	s.provider("demo", func(p *v1alpha1.Provider) {
		p.UID, p.Spec.Digests = "another", []string{"zh:" + strings.Repeat("1", 64)}
	})
	if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
		t.Fatal(err)
	}
	fourth := s.start(dir)
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonDigestMismatch)
	<-fourth.Synced()
	if len(fourth.Groups()) > 0 {
		t.Error("it serves the types of a Provider that is gone")
	}
}

func TestAChangedPackageIsInstalledAnew(t *testing.T) {
	s := newStage(t)
	dir := t.TempDir()
	s.provider("demo")
	r := s.start(dir)
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	s.config("shop", "demo", "directory: "+t.TempDir())
	programs, err := filepath.Glob(filepath.Join(dir, "store", "packages", "*", "terraform-provider-*"))
	if err != nil || len(programs) != 1 {
		t.Fatal(programs, err)
	}
	if err := errors.Join(os.Chmod(filepath.Dir(programs[0]), 0o755), os.Remove(programs[0]), os.WriteFile(programs[0], []byte("#!/bin/sh\n"), 0o555)); err != nil {
		t.Fatal(err)
	}
	_, _, err = r.Open(t.Context(), "demo", "shop", "demo")
	if !errors.Is(err, contract.ErrNotAsked) {
		t.Errorf("a package that was exchanged: %v", err)
	}
	s.until("it is installed anew", func() error {
		_, _, err := r.Open(t.Context(), "demo", "shop", "demo")
		return err
	})
}

func TestTypeTaken(t *testing.T) {
	s := newStage(t)
	s.provider("old", func(p *v1alpha1.Provider) { p.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0)) })
	s.provider("young")
	r := s.start("")
	s.await("old", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	contains(t, s.await("young", v1alpha1.ProviderServed, v1alpha1.ReasonTypeTaken), "Provider old", "spec.types of young")
	r.SetRefused(map[string]string{"old.providers.atoll.dev": "the group is served by a CRD"})
	contains(t, s.await("old", v1alpha1.ProviderServed, v1alpha1.ReasonGroupTaken), "served by a CRD")
	r.SetRefused(nil)
	s.await("old", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	s.provider("old", func(p *v1alpha1.Provider) { p.Spec.Types = []string{"demo_network"} })
	s.provider("young", func(p *v1alpha1.Provider) { p.Spec.Types = []string{"demo_f*", "demo_x"} })
	contains(t, s.await("young", v1alpha1.ProviderServed, v1alpha1.ReasonServed), "2 resource types and 1 data sources", "demo_x selects nothing")
	_, err := r.Kind(reference.Ref{Type: "demo_server"})
	contains(t, err.Error(), "has it, but not among its spec.types")

	// What is gone is not served any more.
	if err := s.dynamic.Resource(v1alpha1.ProviderResource).Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until("it is forgotten", func() error {
		if _, err := r.Kind(network("x")); err == nil {
			return errors.New("it is still served")
		}
		return nil
	})
}

// A mirror that has the package later is found without anybody doing anything.
func TestRetries(t *testing.T) {
	s := newStage(t)
	clock := testingclock.NewFakeClock(time.Now())
	late := t.TempDir()
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Origin = mirrorAt(late) })
	s.start("", withClock(clock), func(c *Config) { c.Mirrors = []string{late} })
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotFound)
	if err := os.CopyFS(late, os.DirFS(filepath.Join(built.dir, "packed"))); err != nil {
		t.Fatal(err)
	}
	s.until("it is installed", func() error {
		clock.Step(firstRetry)
		c := s.see("demo").Status.Conditions[0]
		if c.Reason != v1alpha1.ReasonInstalled {
			return errors.New(c.Message)
		}
		return nil
	})
}

func TestOpenWaitsForTheInstallation(t *testing.T) {
	s := newStage(t)
	r := s.start("")
	<-r.Synced()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // its package is checked, and it is started and asked what it has
	defer cancel()
	s.config("shop", "demo", "directory: "+t.TempDir())
	s.provider("demo")
	s.until("it is known of", func() error {
		if _, ok := r.opinionOf("demo"); !ok {
			return errors.New("not yet")
		}
		return nil
	})
	if _, _, err := r.Open(ctx, "demo", "shop", "demo"); err != nil {
		t.Error(err)
	}
}
