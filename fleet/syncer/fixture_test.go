package syncer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fixture is a syncer of cluster "east" between a control plane and a member, with a journal of
// its requests to either.
type fixture struct {
	t               *testing.T
	control, member *fakeapi.Server
	syncer          *Syncer
	markers         int
	window          time.Duration // how long removals wait for others

	mu       sync.Mutex
	journal  []string // writes
	reads    []string // ConfigMaps that were read one by one in the member
	down     bool     // nothing listens at the member's address
	watchErr error    // the member's response to watch requests, if set
	// refuse, if set, returns the member's response to a request, or nil if it is served as usual.
	refuse func(fakeapi.Request) *metav1.Status
}

// newFixture starts a syncer with the given objects in the control plane and in the member.
func newFixture(t *testing.T, control, member []*unstructured.Unstructured) *fixture {
	t.Helper()
	s := &fixture{t: t}
	s.start(control, member)
	return s
}

func (s *fixture) start(control, member []*unstructured.Unstructured) {
	t := s.t
	t.Helper()
	builtIn := fakeapi.BuiltIns("v1 ConfigMap", "v1 Namespace", "v1 Event", "v1 Pod", "v1 Service", "apps/v1 Deployment", "batch/v1 Job", "discovery.k8s.io/v1 EndpointSlice", "apiextensions.k8s.io/v1 CustomResourceDefinition")
	s.control = fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), builtIn...)...)
	s.member = fakeapi.New(t, append(builtIn, fakeapi.Custom("Widget", widgets))...)
	for _, o := range append(control, cluster()) {
		s.put(o)
	}
	for _, o := range member {
		s.member.Put(o)
	}
	s.control.OnRequest(func(r fakeapi.Request) *metav1.Status { return s.observe("control", r) })
	s.member.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if s.refuse != nil {
			if status := s.refuse(r); status != nil {
				return status
			}
		}
		return s.observe("member", r)
	})

	ctx, stop := context.WithCancel(t.Context())
	log := slog.New(slog.DiscardHandler)
	session, err := fleet.NewSession(ctx, fleet.Config{REST: s.control.Config(), Clock: clock.RealClock{}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	access := s.member.Config()
	if s.down {
		access.Host = "127.0.0.1:1"
	}
	s.syncer, err = newSyncer(view.NewLocal(session, "east"), Options{Cluster: "east", Clock: session.Clock, Log: log, Metrics: NewMetrics()}, access)
	if err != nil {
		t.Fatal(err)
	}
	s.syncer.breaker.batchWindow, s.syncer.breaker.recheckInterval = s.window, 50*time.Millisecond
	s.syncer.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](10*time.Millisecond, 50*time.Millisecond))
	done := make(chan struct{})
	go func() { defer close(done); _ = s.syncer.run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

// put stores an object in the control plane. The entries in a new binding's status are those of the
// clusters' syncers, as if earlier ones had written them.
func (s *fixture) put(o *unstructured.Unstructured) {
	s.t.Helper()
	status := o.Object["status"]
	if o.GetKind() != "ResourceBinding" || status == nil || o.GetManagedFields() != nil {
		s.control.Put(o)
		return
	}
	bare := o.DeepCopy()
	delete(bare.Object, "status")
	s.control.Put(bare)
	states, _, _ := unstructured.NestedSlice(o.Object, "status", "clusters")
	for _, state := range states {
		entry := object(o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName(), "", map[string]any{"status": map[string]any{"clusters": []any{state}}})
		manager := fmt.Sprint(FieldManager, "-", state.(map[string]any)["name"])
		if err := fleet.ApplyStatus(s.t.Context(), s.control.Dynamic().Resource(v1alpha1.ResourceBindingResource).Namespace(o.GetNamespace()), entry, manager); err != nil {
			s.t.Fatal(err)
		}
	}
}

// observe records a request to the control plane or the member in the journal. Markers are left
// out.
func (s *fixture) observe(where string, r fakeapi.Request) *metav1.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case where == "member" && s.watchErr != nil && r.Verb == "watch":
		var refusal *apierrors.StatusError
		errors.As(s.watchErr, &refusal)
		return &refusal.ErrStatus
	case r.Namespace == markers:
		return nil
	}
	what := fmt.Sprintf("%s %s %s", where, r.Verb, r.Name)
	switch r.Verb {
	case "get":
		if where == "member" && r.Resource == configMaps {
			s.reads = append(s.reads, what)
		}
	case "delete":
		uid, _, _ := unstructured.NestedString(r.Object, "preconditions", "uid")
		s.journal = append(s.journal, what+" uid="+uid)
	case "apply":
		if where == "control" {
			entries, _, _ := unstructured.NestedSlice(r.Object, "status", "clusters")
			if len(entries) == 0 {
				what += " no entry"
			}
			for _, e := range entries {
				what += fmt.Sprintf(" %v", e.(map[string]any)["reason"])
			}
		}
		if r.DryRun {
			what += " dry"
		}
		s.journal = append(s.journal, what)
	case "patch":
		s.journal = append(s.journal, what)
	}
	return nil
}

func (s *fixture) writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.journal)
}

// eventually waits for a condition, and prints the journal on timeout.
func (s *fixture) eventually(what string, ok func() bool) {
	s.t.Helper()
	fakeapi.Eventually(s.t, what, func() error {
		if ok() {
			return nil
		}
		return errors.New("the journal is\n" + strings.Join(s.writes(), "\n"))
	})
}

func (s *fixture) contains(entry string) func() bool {
	return func() bool {
		return slices.ContainsFunc(s.writes(), func(e string) bool { return strings.Contains(e, entry) })
	}
}

// markers is the namespace of objects that show how far the syncer is.
const markers = "marker"

// settle waits until the syncer has handled everything that happened so far, and returns the
// journal, for tests of writes that must not happen. It binds another object, and deletes that in
// the member once the syncer watches it: the syncer learns of both after everything earlier.
func (s *fixture) settle() []string {
	s.t.Helper()
	s.markers++
	name := fmt.Sprint("m", s.markers)
	b := binding(true, nil)
	b.SetNamespace(markers)
	b.SetName("configmap-" + name)
	b.SetUID(types.UID("binding-" + name))
	withSpec(b, "resource", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": name})
	s.control.Put(object("v1", "ConfigMap", markers, name, name, nil))
	s.control.Put(b)
	applied := func(times int) func() bool {
		return func() bool {
			n := 0
			for _, w := range s.member.Writes() {
				if w == "apply configmaps "+markers+"/"+name {
					n++
				}
			}
			return n == times
		}
	}
	s.eventually("the marker is applied", applied(1))
	s.eventually("the marker is watched", s.watches(kindInfo("", "ConfigMap"), types.NamespacedName{Namespace: markers, Name: name}))
	s.member.Delete(configMaps, markers, name)
	s.eventually("the marker is applied again", applied(2))
	return s.writes()
}

// watches returns whether the syncer's cache of the member has an object.
func (s *fixture) watches(k interpret.KindInfo, key types.NamespacedName) func() bool {
	return func() bool { _, seen := s.syncer.member.cached(k, key); return seen }
}

// wroteToMember returns the writes to the member.
func wroteToMember(journal []string) (out []string) {
	for _, entry := range journal {
		if strings.HasPrefix(entry, "member") {
			out = append(out, entry)
		}
	}
	return out
}

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	widgets     = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
)

func kindInfo(group, kind string) interpret.KindInfo {
	k, _ := interpret.Find(schema.GroupKind{Group: group, Kind: kind})
	return k
}

// conf is the member's object, nil if there is none.
func (s *fixture) conf() *unstructured.Unstructured { return s.member.Get(configMaps, "shop", "conf") }

// edit changes an object in the member as another manager.
func (s *fixture) edit(manager string, gvr schema.GroupVersionResource, name string, change func(*unstructured.Unstructured)) {
	s.t.Helper()
	api := s.member.Dynamic().Resource(gvr).Namespace("shop")
	u, err := api.Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	change(u)
	if _, err := api.Update(s.t.Context(), u, metav1.UpdateOptions{FieldManager: manager}); err != nil {
		s.t.Fatal(err)
	}
}

func cluster() *unstructured.Unstructured {
	return object(v1alpha1.Group+"/"+v1alpha1.Version, "Cluster", "", "east", "cluster-uid", nil)
}

func object(apiVersion, kind, namespace, name, uid string, rest map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	for field, value := range rest {
		u.Object[field] = value
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetUID(types.UID(uid))
	return u
}

func configMap(uid string) *unstructured.Unstructured {
	return object("v1", "ConfigMap", "shop", "conf", uid, map[string]any{"data": map[string]any{"a": "b"}})
}

func managed(uid, source string) *unstructured.Unstructured {
	u := configMap(uid)
	u.SetLabels(map[string]string{v1alpha1.ManagedLabel: "true"})
	u.SetAnnotations(map[string]string{v1alpha1.ClusterAnnotation: "east", v1alpha1.SourceUIDAnnotation: source})
	return u
}

func binding(chosen bool, state *v1alpha1.ClusterState) *unstructured.Unstructured {
	b := &v1alpha1.ResourceBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "ResourceBinding"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "configmap-conf", UID: "binding-uid",
			Finalizers: []string{v1alpha1.BindingFinalizer}},
		Spec: v1alpha1.ResourceBindingSpec{Resource: v1alpha1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: "conf", UID: "source"}},
	}
	if chosen {
		b.Spec.Clusters = []v1alpha1.ClusterShare{{Name: "east", Reason: "Scheduled"}}
	}
	if state != nil {
		state.Name = "east"
		b.Status.Clusters = []v1alpha1.ClusterState{*state}
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: m}
}

func objects(o ...*unstructured.Unstructured) []*unstructured.Unstructured { return o }

// state returns the binding's entry of the cluster.
func (s *fixture) state() v1alpha1.ClusterState {
	b := &v1alpha1.ResourceBinding{}
	s.control.Read(v1alpha1.ResourceBindingResource, "shop", "configmap-conf", b)
	state, _ := b.State("east")
	return state
}

func withSpec(b *unstructured.Unstructured, field string, value any) *unstructured.Unstructured {
	if err := unstructured.SetNestedField(b.Object, value, "spec", field); err != nil {
		panic(err)
	}
	return b
}
