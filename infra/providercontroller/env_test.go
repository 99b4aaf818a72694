package providercontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// testMirror is the mirror with the test provider, built once.
var testMirror struct {
	once sync.Once
	dir  string
	made struct{ Source, Version, ZH, H1, Packed, Unpacked string }
	err  error
}

// launcherArgument makes this test binary a launcher of providers.
const launcherArgument = "provider-launcher"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == launcherArgument {
		if err := plugin.Launch(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if testMirror.dir != "" {
		_ = os.RemoveAll(testMirror.dir)
	}
	os.Exit(code)
}

// mirror builds the test provider into a mirror with packages below packed/.
func mirror(t *testing.T) string {
	t.Helper()
	testMirror.once.Do(func() {
		if testMirror.dir, testMirror.err = os.MkdirTemp("", "atoll-mirror-"); testMirror.err != nil {
			return
		}
		build := exec.Command("go", "-C", "../testproviders", "run", "./mirror", "-dir", testMirror.dir, "-only", "demo")
		build.Stderr = os.Stderr
		out, err := build.Output()
		if err != nil {
			testMirror.err = err
			return
		}
		var all []struct{ Source, Version, ZH, H1, Packed, Unpacked string }
		if testMirror.err = json.Unmarshal(out, &all); testMirror.err == nil {
			testMirror.made = all[0]
		}
	})
	if testMirror.err != nil {
		t.Fatal(testMirror.err)
	}
	return testMirror.dir
}

// testEnv is an API server in memory with the servers that use it.
type testEnv struct {
	t      *testing.T
	api    *fakeapi.Server
	worlds string // the directory that Providers may write to
}

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	return &testEnv{t, fakeapi.New(t, append(fakeapi.CRDs(t, crds...), fakeapi.BuiltIn("", "v1", "Secret", "secrets"),
		fakeapi.BuiltIn(rbacv1.GroupName, "v1", "ClusterRole", "clusterroles"))...), t.TempDir()}
}

// world returns a new directory for the resources of a provider.
func (s *testEnv) world() string {
	s.t.Helper()
	dir, err := os.MkdirTemp(s.worlds, "world-")
	if err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// server is a running Registry.
type server struct {
	*Registry
	stop func()
}

// start runs a server in a directory, or in a new one if dir is "".
func (s *testEnv) start(dir string, change ...func(*Config)) *server {
	s.t.Helper()
	if dir == "" {
		dir = s.t.TempDir()
	}
	run, err := os.MkdirTemp("", "p")
	if err != nil {
		s.t.Fatal(err)
	}
	config := Config{Directory: dir, RunDirectory: run, Mirrors: []string{mirror(s.t)}, Server: "first", Launcher: []string{os.Args[0], launcherArgument}}
	if config.Protected, err = ProtectedPaths(dir); err != nil {
		s.t.Fatal(err)
	}
	for _, f := range change {
		f(&config)
	}
	r, err := New(config)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Connect(Clients{Dynamic: s.api.Dynamic(), Metadata: s.api.Metadata()})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			s.t.Error(err)
		}
	})
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			running.Wait()
			if err := r.Close(); err != nil {
				s.t.Error(err)
			}
			_ = os.RemoveAll(run)
		})
	}
	s.t.Cleanup(stop)
	return &server{r, stop}
}

// elect runs the elected server's work on a server.
func (s *testEnv) elect(r *server) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.RunElected(ctx); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(func() { cancel(); running.Wait() })
}

// provider writes a Provider, or changes it.
func (s *testEnv) provider(name string, change ...func(*v1alpha1.Provider)) {
	s.t.Helper()
	mirror(s.t)
	p := &v1alpha1.Provider{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Provider"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: v1alpha1.ProviderSpec{
			Source: testMirror.made.Source, Version: testMirror.made.Version, Digests: []string{testMirror.made.ZH}, Types: []string{"*"},
			Origin: mirrorAt(filepath.Join(testMirror.dir, "packed")),
			Limits: v1alpha1.ProviderLimits{Parallelism: 4},
			Files:  []v1alpha1.ProviderFile{{Path: s.worlds, Access: v1alpha1.FileReadWrite}},
		},
	}
	s.api.Read(v1alpha1.ProviderResource, "", name, p)
	for _, f := range change {
		f(p)
	}
	s.api.Put(p)
}

// remove deletes a Provider, and its finalizer by hand.
func (s *testEnv) remove(name string) {
	s.t.Helper()
	s.api.Delete(v1alpha1.ProviderResource, "", name)
	s.api.Change(v1alpha1.ProviderResource, "", name, func(u *unstructured.Unstructured) { u.SetFinalizers(nil) })
}

func (s *testEnv) get(name string) *v1alpha1.Provider {
	s.t.Helper()
	p := &v1alpha1.Provider{}
	if !s.api.Read(v1alpha1.ProviderResource, "", name, p) {
		return nil
	}
	return p
}

// await waits until a Provider's condition has the reason, and returns its message.
func (s *testEnv) await(name, condition, reason string) string {
	s.t.Helper()
	var c *metav1.Condition
	fakeapi.Eventually(s.t, fmt.Sprintf("%s of Provider %s is %s", condition, name, reason), func() error {
		p := s.get(name)
		if p == nil {
			return fmt.Errorf("not found")
		}
		c = meta.FindStatusCondition(p.Status.Conditions, condition)
		if c == nil || c.Reason != reason || c.ObservedGeneration != p.Generation {
			return fmt.Errorf("conditions: %+v", p.Status.Conditions)
		}
		return nil
	})
	return c.Message
}

// config writes a ProviderConfig with the name of its Provider.
func (s *testEnv) config(namespace, provider, configuration string) {
	s.t.Helper()
	var given map[string]any
	if err := yaml.Unmarshal([]byte(configuration), &given); err != nil {
		s.t.Fatal(err)
	}
	s.api.Put(map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ProviderConfig", "metadata": map[string]any{"name": provider, "namespace": namespace},
		"spec": map[string]any{"provider": provider, "configuration": given},
	})
}

// secret writes a Secret.
func (s *testEnv) secret(namespace, name string, data map[string]string) {
	s.t.Helper()
	secret := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Data: map[string][]byte{}}
	for key, text := range data {
		secret.Data[key] = []byte(text)
	}
	s.api.Put(secret)
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q does not contain %q", text, word)
		}
	}
}

// withClock sets the clock of a server.
func withClock(c clock.WithTicker) func(*Config) { return func(config *Config) { config.Clock = c } }
