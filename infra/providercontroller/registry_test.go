package providercontroller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/zclconf/go-cty/cty"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func network(name string) expr.Ref {
	return expr.Ref{Kind: expr.Resource, Type: "demo_network", Namespace: "shop", Name: name}
}

func TestInstalledServedAndOpened(t *testing.T) {
	s := newTestEnv(t)
	s.provider("demo")
	metrics := NewMetrics()
	r := s.start("", func(c *Config) { c.Metrics = metrics })
	contains(t, s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonInstalled), "version 1.0.0 from filesystem mirror", "by first")
	contains(t, s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed), "12 resource types and 2 data sources are served in demo.providers.atoll.dev")
	p := s.get("demo")
	if p.Status.Digest != testMirror.made.H1 || p.Status.Protocol != 6 || p.Status.ResourceTypes != 12 || p.Status.DataSources != 2 ||
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
	_, err = r.Kind(expr.Ref{Type: "demo_netwrok"})
	if !errors.Is(err, infra.ErrNotServed) {
		t.Error(err)
	}

	// It uses the ProviderConfig of the namespace.
	world := s.world()
	s.secret("shop", "key", map[string]string{"token": "tell-nobody"})
	s.config("shop", "demo", "directory: "+world+"\ntoken: {secretKeyRef: {name: key, key: token}}")
	opened, revision, err := r.Open(t.Context(), "demo", "shop", "demo")
	if err != nil {
		t.Fatal(err)
	}
	again, same, err := r.Open(t.Context(), "demo", "shop", "demo")
	if err != nil || again != opened || same != revision {
		t.Errorf("opened again, it differs: %v, %s and %s", err, revision, same)
	}
	ask := func(p providerapi.Provider) error {
		diagnostics, err := p.ValidateResource(t.Context(), "demo_network", &providerapi.Configuration{Value: emptyConfig(t, served)})
		if err != nil || !diagnostics.Failed() {
			return errors.Join(err, errors.New("it accepts a network without a name"))
		}
		return nil
	}
	if err := ask(opened); err != nil {
		t.Error(err)
	}

	if err := testutil.CollectAndCompare(metrics, strings.NewReader(`# HELP atoll_infra_provider_calls_total Calls of providers that ended, by method and result.
# TYPE atoll_infra_provider_calls_total counter
atoll_infra_provider_calls_total{method="ValidateResource",provider="demo",result="error"} 1
# HELP atoll_infra_provider_configurations_total Providers that were started and configured for a ProviderConfig, by result.
# TYPE atoll_infra_provider_configurations_total counter
atoll_infra_provider_configurations_total{provider="demo",result="ok"} 1
# HELP atoll_infra_provider_installed 1 if the Provider's package is installed on this server.
# TYPE atoll_infra_provider_installed gauge
atoll_infra_provider_installed{provider="demo"} 1
`), "atoll_infra_provider_calls_total", "atoll_infra_provider_configurations_total", "atoll_infra_provider_installed"); err != nil {
		t.Error(err)
	}

	// A changed Secret causes a new configuration. Holders of the old one can still use it.
	s.secret("shop", "key", map[string]string{"token": "another"})
	var changed providerapi.Provider
	fakeapi.Eventually(t, "the changed Secret is used", func() error {
		var now string
		if changed, now, err = r.Open(t.Context(), "demo", "shop", "demo"); err != nil || now == revision {
			return errors.Join(err, errors.New("the same revision"))
		}
		return nil
	})
	if changed == opened {
		t.Error("another configuration has the same provider")
	}
	if err := errors.Join(ask(opened), ask(changed)); err != nil {
		t.Error(err)
	}

	// The old one is closed after a time without calls.
	r.instances.sweep(time.Now().Add(retiredTimeout + time.Second))
	if err := ask(opened); !errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), "retry") {
		t.Errorf("the old one: %v", err)
	}
	if err := ask(changed); err != nil {
		t.Error(err)
	}
}

// TestOpenLatest: Open may use a configuration that was read a moment ago, OpenLatest never does. The clock stands
// still, so that this moment does not end.
func TestOpenLatest(t *testing.T) {
	s := newTestEnv(t)
	s.provider("demo")
	r := s.start("", withClock(testingclock.NewFakeClock(time.Now())))
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonInstalled)
	s.config("shop", "demo", "directory: "+s.world())
	_, first, err := r.OpenLatest(t.Context(), "demo", "shop", "demo")
	if err != nil {
		t.Fatal(err)
	}
	s.config("shop", "demo", "directory: "+s.world())
	if _, revision, err := r.Open(t.Context(), "demo", "shop", "demo"); err != nil || revision != first {
		t.Errorf("Open read the configuration again: %v", err)
	}
	latest, second, err := r.OpenLatest(t.Context(), "demo", "shop", "demo")
	if err != nil || second == first {
		t.Errorf("OpenLatest returned the former configuration: %v", err)
	}
	if provider, revision, err := r.Open(t.Context(), "demo", "shop", "demo"); err != nil || revision != second || provider != latest {
		t.Errorf("Open after OpenLatest returned the former configuration: %v", err)
	}
	s.api.Delete(v1alpha1.ProviderConfigResource, "shop", "demo")
	_, _, err = r.OpenLatest(t.Context(), "demo", "shop", "demo")
	if err == nil {
		t.Fatal("OpenLatest returned a provider of a deleted ProviderConfig")
	}
	contains(t, err.Error(), `ProviderConfig "demo" in namespace "shop" not found`)
}

// TestFunctions: functions of a provider are called without any configuration.
func TestFunctions(t *testing.T) {
	s := newTestEnv(t)
	s.provider("demo")
	r := s.start("")
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	text := func(all ...string) (out []cty.Value) {
		for _, one := range all {
			out = append(out, cty.StringVal(one))
		}
		return out
	}
	got, err := r.CallFunction(t.Context(), "demo", "label", text("Shop", "db", "1"))
	if err != nil || !got.RawEquals(cty.StringVal("shop-db-1")) {
		t.Errorf("%#v, %v", got, err)
	}
	for _, c := range []struct {
		provider, function string
		arguments          []cty.Value
		want               string
	}{
		{"demo", "label", text(""), "argument 1: the prefix is empty"},
		{"demo", "label", nil, "takes 1 arguments, got 0"},
		{"demo", "label", []cty.Value{cty.EmptyObjectVal}, "argument 1: prefix must be string, got object"},
		{"demo", "label", []cty.Value{cty.NullVal(cty.String)}, "prefix must not be null"},
		{"demo", "lable", text("a"), `has no function "lable": use one of label`},
		{"gone", "label", text("a"), `Provider "gone" not found`},
	} {
		if _, err := r.CallFunction(t.Context(), c.provider, c.function, c.arguments); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s.%s: %v, want %s", c.provider, c.function, err, c.want)
		}
	}
}

// TestEqualConfigurationsShareAProcess: namespaces with the same configuration have one provider, also if
// they open it at the same time. When one of them changes, the others keep it.
func TestEqualConfigurationsShareAProcess(t *testing.T) {
	s := newTestEnv(t)
	s.provider("demo")
	r := s.start("")
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	world := s.world()
	const namespaces = 12
	for n := range namespaces {
		namespace, token := fmt.Sprint("team-", n), "the-same-token"
		if n == namespaces-1 {
			token = "another-token"
		}
		s.secret(namespace, "key", map[string]string{"token": token})
		s.config(namespace, "demo", "directory: "+world+"\ntoken: {secretKeyRef: {name: key, key: token}}")
	}
	opened := make([]providerapi.Provider, namespaces)
	revisions := make([]string, namespaces)
	var all sync.WaitGroup
	for n := range namespaces {
		all.Go(func() {
			var err error
			if opened[n], revisions[n], err = r.Open(t.Context(), "demo", fmt.Sprint("team-", n), "demo"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for n := 1; n < namespaces; n++ {
		if same := opened[n] == opened[0]; same != (n < namespaces-1) {
			t.Errorf("team-%d has the provider of team-0: %v", n, same)
		}
		if revisions[n] == revisions[0] {
			t.Errorf("the revision of team-%d is that of team-0, although their Secrets are others", n)
		}
	}
	if got := len(r.instances.providers); got != 2 {
		t.Errorf("%d providers run", got)
	}

	s.secret("team-0", "key", map[string]string{"token": "another-token"})
	fakeapi.Eventually(t, "team-0 has the provider of its new configuration", func() error {
		now, _, err := r.Open(t.Context(), "demo", "team-0", "demo")
		if err == nil && now != opened[namespaces-1] {
			err = errors.New("another provider")
		}
		return err
	})
	r.instances.sweep(time.Now().Add(retiredTimeout + time.Second))
	if now, _, err := r.Open(t.Context(), "demo", "team-1", "demo"); err != nil || now != opened[0] {
		t.Errorf("team-1 has another provider, %v", err)
	}
	if got := len(r.instances.providers); got != 2 {
		t.Errorf("%d providers run", got)
	}
}

// emptyConfig returns the configuration of a resource without any argument.
func emptyConfig(t *testing.T, served *infra.ServedKind) cty.Value {
	t.Helper()
	values := map[string]cty.Value{}
	for name, ty := range served.Schema.Block.ImpliedType().AttributeTypes() {
		values[name] = cty.NullVal(ty)
	}
	return cty.ObjectVal(values)
}

func TestOpenErrorsNameTheRemedy(t *testing.T) {
	s := newTestEnv(t)
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
	contains(t, open("aws", "aws"), `Provider "aws" not found`)
	contains(t, open("demo", "other"), `ProviderConfig "other" in namespace "shop" not found`, "spec.provider: demo")
	contains(t, open("demo", "demo"), `ProviderConfig "demo" in namespace "shop" not found`, "create it", "spec.configuration.directory")

	s.config("shop", "demo", "directory: relative")
	contains(t, open("demo", "demo"), `the provider rejected ProviderConfig "demo" in namespace "shop"`, "The directory cannot be opened")
	s.config("shop", "demo", "directory: "+s.world()+"\ntoken: literal-secret")
	message := open("demo", "demo")
	contains(t, message, "spec.configuration.token", "secretKeyRef")
	if strings.Contains(message, "literal-secret") {
		t.Errorf("%q reveals a secret", message)
	}
	s.config("shop", "demo", "directory: "+s.world()+"\ntoken: {secretKeyRef: {name: none, key: k}}")
	contains(t, open("demo", "demo"), `Secret "none" not found`)
	s.secret("shop", "none", map[string]string{"k": "wrong", "message": "do-not-tell"})
	contains(t, open("demo", "demo"), "The token is refused")
	s.config("shop", "demo", "directory: "+s.world()+"\ntoken: {secretKeyRef: {name: none, key: q}}")
	contains(t, open("demo", "demo"), `Secret "none" has no key "q"`)
	// A value from a Secret is masked even if the provider does not declare it sensitive.
	s.config("shop", "demo", "directory: "+s.world()+"\nfail_configure: {secretKeyRef: {name: none, key: message}}")
	message = open("demo", "demo")
	contains(t, message, "The configuration fails: (sensitive)")
	if strings.Contains(message, "do-not-tell") {
		t.Errorf("%q reveals a secret", message)
	}
	// The ProviderConfig of another Provider.
	s.config("shop", "random", "directory: "+s.world())
	contains(t, open("demo", "random"), "configures Provider random, not demo")
}

func TestRejectedPackages(t *testing.T) {
	s := newTestEnv(t)
	other := "zh:" + strings.Repeat("0", 64)
	s.provider("wrong", func(p *v1alpha1.Provider) { p.Spec.Digests = []string{other} })
	s.provider("missing", func(p *v1alpha1.Provider) { p.Spec.Version = "9.9.9" })
	s.provider("elsewhere", func(p *v1alpha1.Provider) { p.Spec.Origin = mirrorAt("/etc") })
	s.provider("developed", func(p *v1alpha1.Provider) {
		p.Spec.Digests = nil
		p.Spec.Origin = v1alpha1.ProviderOrigin{Development: &v1alpha1.DevelopmentBinary{Path: "/bin/true"}}
	})
	r := s.start("")
	contains(t, s.await("wrong", v1alpha1.ProviderInstalled, v1alpha1.ReasonDigestMismatch), "first: ", testMirror.made.ZH)
	contains(t, s.await("missing", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotFound), "9.9.9")
	contains(t, s.await("elsewhere", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotAllowed), "--provider-mirror /etc")
	contains(t, s.await("developed", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotAllowed), "--allow-development-providers")
	contains(t, s.await("wrong", v1alpha1.ProviderServed, v1alpha1.ReasonNotInstalled), "see condition Installed")
	<-r.Synced() // although none is served
	if groups := r.Groups(); len(groups) > 0 {
		t.Errorf("it serves %v", groups)
	}
	_, _, err := r.Open(t.Context(), "wrong", "shop", "wrong")
	if !errors.Is(err, providerapi.ErrNotCalled) {
		t.Error(err)
	}
	// A corrected spec is tried at once.
	s.provider("wrong", func(p *v1alpha1.Provider) { p.Spec.Digests = append(p.Spec.Digests, testMirror.made.H1) })
	s.await("wrong", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
}

func TestDevelopment(t *testing.T) {
	s := newTestEnv(t)
	mirror(t)
	programs, err := filepath.Glob(filepath.Join(testMirror.made.Unpacked, "terraform-provider-*"))
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
	s.provider("demo", develop(broken), func(p *v1alpha1.Provider) {
		p.Spec.Files = append(p.Spec.Files, v1alpha1.ProviderFile{Path: "/usr/bin"}) // the shell
	})
	s.start("", func(c *Config) { c.Development = true })
	contains(t, s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonDoesNotStart), "this is no provider")
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonInstalled)
	s.provider("demo", develop(programs[0]))
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	if digest := s.get("demo").Status.Digest; !strings.HasPrefix(digest, "dev:") {
		t.Errorf("the digest of an unverified program is %s", digest)
	}
}

// Types stay served over a restart even if the mirror and the store are gone, but the package is
// not run.
func TestTypesStayServedAfterRestart(t *testing.T) {
	s := newTestEnv(t)
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
	if !errors.Is(err, providerapi.ErrNotCalled) {
		t.Errorf("it runs an unverified package: %v", err)
	}
	second.stop()

	// With the mirror the package is installed again. The cached catalog makes a process unnecessary.
	third := s.start(dir)
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonInstalled)
	// A new Provider of the same name does not use the cache.
	third.stop()
	s.remove("demo")
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

func TestModifiedPackageIsReinstalled(t *testing.T) {
	s := newTestEnv(t)
	dir := t.TempDir()
	s.provider("demo")
	r := s.start(dir)
	s.await("demo", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	s.config("shop", "demo", "directory: "+s.world())
	programs, err := filepath.Glob(filepath.Join(dir, "store", "packages", "*", "terraform-provider-*"))
	if err != nil || len(programs) != 1 {
		t.Fatal(programs, err)
	}
	if err := errors.Join(os.Chmod(filepath.Dir(programs[0]), 0o755), os.Remove(programs[0]), os.WriteFile(programs[0], []byte("#!/bin/sh\n"), 0o555)); err != nil {
		t.Fatal(err)
	}
	_, _, err = r.Open(t.Context(), "demo", "shop", "demo")
	if !errors.Is(err, providerapi.ErrNotCalled) {
		t.Errorf("a modified package: %v", err)
	}
	fakeapi.Eventually(t, "it is reinstalled", func() error {
		_, _, err := r.Open(t.Context(), "demo", "shop", "demo")
		return err
	})
}

func TestTypeTaken(t *testing.T) {
	s := newTestEnv(t)
	s.provider("old", func(p *v1alpha1.Provider) { p.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0)) })
	s.provider("young")
	r := s.start("")
	s.await("old", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	contains(t, s.await("young", v1alpha1.ProviderServed, v1alpha1.ReasonTypeTaken), "Provider old", "spec.types of young")
	r.SetRejectedGroups(map[string]string{"old.providers.atoll.dev": "the group is served by a CRD"})
	contains(t, s.await("old", v1alpha1.ProviderServed, v1alpha1.ReasonGroupTaken), "served by a CRD")
	r.SetRejectedGroups(nil)
	s.await("old", v1alpha1.ProviderServed, v1alpha1.ReasonServed)
	s.provider("old", func(p *v1alpha1.Provider) { p.Spec.Types = []string{"demo_network"} })
	s.provider("young", func(p *v1alpha1.Provider) { p.Spec.Types = []string{"demo_f*", "demo_x"} })
	contains(t, s.await("young", v1alpha1.ProviderServed, v1alpha1.ReasonServed), "2 resource types and 1 data sources", "no type matches demo_x")
	_, err := r.Kind(expr.Ref{Type: "demo_server"})
	contains(t, err.Error(), "its spec.types does not select it")

	// A deleted Provider is no longer served.
	s.remove("old")
	fakeapi.Eventually(t, "it is forgotten", func() error {
		if _, err := r.Kind(network("x")); err == nil {
			return errors.New("it is still served")
		}
		return nil
	})
}

// A package that the mirror gets later is installed without any user action.
func TestRetries(t *testing.T) {
	s := newTestEnv(t)
	clock := testingclock.NewFakeClock(time.Now())
	late := t.TempDir()
	s.provider("demo", func(p *v1alpha1.Provider) { p.Spec.Origin = mirrorAt(late) })
	s.start("", withClock(clock), func(c *Config) { c.Mirrors = []string{late} })
	s.await("demo", v1alpha1.ProviderInstalled, v1alpha1.ReasonNotFound)
	if err := os.CopyFS(late, os.DirFS(filepath.Join(testMirror.dir, "packed"))); err != nil {
		t.Fatal(err)
	}
	fakeapi.Eventually(t, "it is installed", func() error {
		clock.Step(firstRetry)
		c := s.get("demo").Status.Conditions[0]
		if c.Reason != v1alpha1.ReasonInstalled {
			return errors.New(c.Message)
		}
		return nil
	})
}

func TestOpenWaitsForTheInstallation(t *testing.T) {
	s := newTestEnv(t)
	r := s.start("")
	<-r.Synced()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // the package is verified, started, and asked for its types
	defer cancel()
	s.config("shop", "demo", "directory: "+s.world())
	s.provider("demo")
	fakeapi.Eventually(t, "the Provider is known", func() error {
		if _, ok := r.localStatusOf("demo"); !ok {
			return errors.New("not yet")
		}
		return nil
	})
	if _, _, err := r.Open(ctx, "demo", "shop", "demo"); err != nil {
		t.Error(err)
	}
}
