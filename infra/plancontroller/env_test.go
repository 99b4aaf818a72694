package plancontroller

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	fleetv1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/placing"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// testEnv is a reconciler with an API server in memory.
type testEnv struct {
	t          *testing.T
	server     *fakeapi.Server
	api        clients
	kube       kubernetes.Interface
	dyn        dynamic.Interface
	inventory  *fakeInventory
	engine     *fakeEngine
	reconciler *reconciler
	stop       func()
	onLargeRun func(bool) func()
}

// syncedFeed is a feed that is always current.
type syncedFeed struct{ drifted map[expr.Ref]bool }

func (f syncedFeed) WaitCurrent(context.Context) error { return nil }
func (f syncedFeed) Drifted(ref expr.Ref) bool         { return f.drifted[ref] }

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	s := &testEnv{t: t, inventory: newFakeInventory(), engine: &fakeEngine{}}
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	s.server = fakeapi.New(t, append(fakeapi.CRDs(t, crds...), fakeapi.BuiltIn("", "v1", "Namespace", "namespaces"),
		fakeapi.BuiltIn("", "v1", "ConfigMap", "configmaps"), fakeapi.BuiltIn("", "v1", "Secret", "secrets"), fakeapi.BuiltIn("", "v1", "Event", "events"),
		fakeapi.BuiltIn("events.k8s.io", "v1", "Event", "events"), fakeapi.BuiltIn("apps", "v1", "Deployment", "deployments"),
		fakeapi.Custom("ResourceBinding", fleetv1.ResourceBindingResource))...)
	s.dyn = s.server.Dynamic()
	if s.kube, err = kubernetes.NewForConfig(s.server.Config()); err != nil {
		t.Fatal(err)
	}
	s.api = newClients(s.dyn)
	s.server.Put(fields{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": "shop"}})
	return s
}

// begin runs a reconciler until stop or the end of the test.
func (s *testEnv) begin() {
	s.t.Helper()
	language, err := expr.New()
	if err != nil {
		s.t.Fatal(err)
	}
	shared := newSession(sessionConfig{
		dynamic: s.dyn, kube: s.kube, inventory: s.inventory, workloads: placing.New(s.dyn, clock.RealClock{}),
		clock: clock.RealClock{}, log: slog.New(slog.DiscardHandler), metrics: NewMetrics(),
	})
	s.reconciler = newReconciler(shared, engineConfig{
		engine: s.engine, feed: syncedFeed{}, objects: apistore.NewObjects(s.dyn, s.kube, clock.RealClock{}),
		types: fakeTypes{}, kinds: fakeTypes{}, language: language, journal: "me", onLargeRun: s.onLargeRun,
		impersonate: func(*v1alpha1.Person) (dynamic.Interface, error) { return s.dyn, nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r := s.reconciler
	go func() { defer close(done); r.run(ctx) }()
	var once sync.Once
	s.stop = func() { once.Do(func() { cancel(); <-done }) }
	s.t.Cleanup(s.stop)
}

// make creates an object as a user would.
func (s *testEnv) make(kind, name string, spec fields) {
	s.t.Helper()
	s.server.Put(fields{"apiVersion": "infra.atoll.dev/v1alpha1", "kind": kind, "metadata": fields{"name": name, "namespace": "shop"}, "spec": spec})
}

// count returns the number of objects of a resource.
func (s *testEnv) count(resource kschema.GroupVersionResource) int {
	return len(s.server.List(resource))
}

// events returns the reasons of the recorded events.
func (s *testEnv) events() (reasons []string) {
	for _, e := range s.server.List(corev1.SchemeGroupVersion.WithResource("events")) {
		reasons = append(reasons, e.Object["reason"].(string))
	}
	return reasons
}
