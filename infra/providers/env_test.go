package providers

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
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// testMirror is the mirror with the test provider, built once.
var testMirror struct {
	once sync.Once
	dir  string
	made struct{ Source, Version, ZH, H1, Packed, Unpacked string }
	err  error
}

func TestMain(m *testing.M) {
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

// testEnv is a fake API with the servers that use it.
type testEnv struct {
	t        *testing.T
	dynamic  *dynamicfake.FakeDynamicClient
	metadata *metadatafake.FakeMetadataClient
	versions int
}

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &testEnv{
		t: t,
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[runtimeschema.GroupVersionResource]string{
			v1alpha1.ProviderResource: "ProviderList", v1alpha1.ProviderConfigResource: "ProviderConfigList",
			secretResource(): "SecretList", rbacv1.SchemeGroupVersion.WithResource("clusterroles"): "ClusterRoleList",
		}),
		metadata: metadatafake.NewSimpleMetadataClient(scheme),
	}
	s.dynamic.PrependReactor("update", "*", s.updateStatus)
	return s
}

// updateStatus updates a status like an API server. The fake client would replace the whole object,
// and revert a spec that changed since the writer read it.
func (s *testEnv) updateStatus(action clienttesting.Action) (bool, runtime.Object, error) {
	update := action.(clienttesting.UpdateAction)
	if update.GetSubresource() != "status" {
		return false, nil, nil
	}
	written := update.GetObject().(*unstructured.Unstructured)
	stored, err := s.dynamic.Tracker().Get(update.GetResource(), update.GetNamespace(), written.GetName())
	if err != nil {
		return true, nil, err
	}
	object := stored.DeepCopyObject().(*unstructured.Unstructured)
	if status, has := written.Object["status"]; has {
		object.Object["status"] = runtime.DeepCopyJSONValue(status)
	}
	return true, object, s.dynamic.Tracker().Update(update.GetResource(), object, update.GetNamespace())
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
	config := Config{Directory: dir, RunDirectory: run, Mirrors: []string{mirror(s.t)}, Server: "first"}
	for _, f := range change {
		f(&config)
	}
	r, err := New(config)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Connect(Clients{Dynamic: s.dynamic, Metadata: s.metadata})
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

func (s *testEnv) put(resource runtimeschema.GroupVersionResource, o *unstructured.Unstructured) {
	s.t.Helper()
	s.versions++
	o.SetResourceVersion(fmt.Sprint(s.versions))
	client := s.dynamic.Resource(resource).Namespace(o.GetNamespace())
	_, err := client.Update(s.t.Context(), o, metav1.UpdateOptions{})
	if err != nil {
		_, err = client.Create(s.t.Context(), o, metav1.CreateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// provider writes a Provider. A change of the spec raises its generation.
func (s *testEnv) provider(name string, change ...func(*v1alpha1.Provider)) {
	s.t.Helper()
	mirror(s.t)
	p := &v1alpha1.Provider{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Provider"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1,
			CreationTimestamp: metav1.NewTime(time.Now().Truncate(time.Second))},
		Spec: v1alpha1.ProviderSpec{
			Source: testMirror.made.Source, Version: testMirror.made.Version, Digests: []string{testMirror.made.ZH}, Types: []string{"*"},
			Origin: mirrorAt(filepath.Join(testMirror.dir, "packed")),
			Limits: v1alpha1.ProviderLimits{Parallelism: 4},
		},
	}
	if live := s.get(name); live != nil {
		p = live
		p.Generation++
	}
	for _, f := range change {
		f(p)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
	if err != nil {
		s.t.Fatal(err)
	}
	s.put(v1alpha1.ProviderResource, &unstructured.Unstructured{Object: content})
}

func (s *testEnv) get(name string) *v1alpha1.Provider {
	s.t.Helper()
	u, err := s.dynamic.Resource(v1alpha1.ProviderResource).Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	p := &v1alpha1.Provider{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, p); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// await waits until a Provider's condition has the reason, and returns its message.
func (s *testEnv) await(name, condition, reason string) string {
	s.t.Helper()
	var c *metav1.Condition
	s.until(fmt.Sprintf("%s of Provider %s is %s", condition, name, reason), func() error {
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

func (s *testEnv) until(what string, check func() error) {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond) // poll interval; the result does not depend on it
	}
}

// config writes a ProviderConfig with the name of its Provider.
func (s *testEnv) config(namespace, provider, configuration string) {
	s.t.Helper()
	var given map[string]any
	if err := yaml.Unmarshal([]byte(configuration), &given); err != nil {
		s.t.Fatal(err)
	}
	s.put(v1alpha1.ProviderConfigResource, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ProviderConfig",
		"metadata": map[string]any{"name": provider, "namespace": namespace, "uid": "uid", "generation": int64(s.versions + 1)},
		"spec":     map[string]any{"provider": provider, "configuration": given},
	}})
}

// secret writes a Secret to both fake clients.
func (s *testEnv) secret(namespace, name string, data map[string]string) {
	s.t.Helper()
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID("uid-" + name)}, Data: map[string][]byte{},
	}
	for key, text := range data {
		secret.Data[key] = []byte(text)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(secret)
	if err != nil {
		s.t.Fatal(err)
	}
	s.put(secretResource(), &unstructured.Unstructured{Object: content})
	bare := &metav1.PartialObjectMetadata{TypeMeta: secret.TypeMeta, ObjectMeta: secret.ObjectMeta}
	bare.ResourceVersion = fmt.Sprint(s.versions)
	client := s.metadata.Resource(secretResource()).Namespace(namespace).(metadatafake.MetadataClient)
	if _, err := client.UpdateFake(bare, metav1.UpdateOptions{}); err != nil {
		if _, err := client.CreateFake(bare, metav1.CreateOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
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
