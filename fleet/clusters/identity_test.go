package clusters

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fixture is the controller between a control plane and a fake member.
type fixture struct {
	t       *testing.T
	control *fakeapi.Server
	clock   *clocktesting.FakeClock
	metrics *Metrics
	// serving has, by cluster, whether a syncer runs.
	serving sync.Map

	id     atomic.Value // string: the ID of the member
	denied atomic.Bool  // listing nodes is forbidden
	member *httptest.Server
	leases *fakeapi.Server // of the member
}

// open joins clusters with the given recorded IDs, which all lead to the one member, and runs the
// controller.
func open(t *testing.T, known map[string]string) *fixture {
	t.Helper()
	s := prepare(t, known)
	run(t, s, fleet.ControlPlane{})
	return s
}

// run runs the controller for a control plane.
func run(t *testing.T, s *fixture, by fleet.ControlPlane) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	session := s.session(ctx)
	session.ControlPlane = by
	done := make(chan error, 1)
	go func() { done <- NewController(s.serve, noNamespaces, s.metrics)(ctx, session) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func prepare(t *testing.T, known map[string]string) *fixture {
	t.Helper()
	s := &fixture{t: t, clock: clocktesting.NewFakeClock(time.Now()), metrics: NewMetrics()}
	s.id.Store("id-1")
	s.member = httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(s.member.Close)
	s.control = fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "v1 Secret", "v1 ConfigMap", "coordination.k8s.io/v1 Lease",
		"apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)
	for name, id := range known {
		s.control.Put(s.cluster(name, id))
		s.control.Put(s.secret(name))
	}
	return s
}

func (s *fixture) session(ctx context.Context) *fleet.Session {
	s.t.Helper()
	session, err := fleet.NewSession(ctx, fleet.Config{REST: s.control.Config(), Clock: s.clock, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	return session
}

func (s *fixture) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasPrefix(r.URL.Path, "/apis/coordination.k8s.io/"):
		s.leases.ServeHTTP(w, inJSON(r))
	case r.URL.Path == "/api/v1/nodes" && s.denied.Load():
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
	case r.URL.Path == "/api/v1/nodes":
		_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	case r.URL.Path == "/api/v1/namespaces/kube-system":
		fmt.Fprintf(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":%q}}`, s.id.Load())
	case r.URL.Path == "/version":
		_, _ = io.WriteString(w, `{"gitVersion":"v1.2.3"}`)
	}
}

// inJSON converts the body of a request: clients of built-in types send another encoding.
func inJSON(r *http.Request) *http.Request {
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) == 0 {
		return r
	}
	out := r.Clone(r.Context())
	if object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
		body, _ = json.Marshal(object)
		out.Header.Set("Content-Type", "application/json")
	}
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return out
}

func (s *fixture) serve(ctx context.Context, _ *fleet.Session, cluster string, _ *rest.Config, _ func()) error {
	s.serving.Store(cluster, true)
	<-ctx.Done()
	s.serving.Store(cluster, false)
	return nil
}

func (s *fixture) serves(cluster string) bool {
	running, _ := s.serving.Load(cluster)
	return running == true
}

func (s *fixture) cluster(name, id string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": name, "uid": name, "finalizers": []any{v1alpha1.ClusterFinalizer}},
		"spec":     map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": v1alpha1.SystemNamespace, "name": name}},
		"status":   map[string]any{"id": id}}}
}

func (s *fixture) secret(name string) *unstructured.Unstructured {
	kubeconfig := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {token: swordfish}}]}`, s.member.URL)
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"namespace": v1alpha1.SystemNamespace, "name": name}, "type": v1alpha1.KubeconfigSecretType,
		"data": map[string]any{v1alpha1.KubeconfigSecretKey: base64.StdEncoding.EncodeToString([]byte(kubeconfig))}}}
}

func (s *fixture) now(name string) *v1alpha1.Cluster {
	s.t.Helper()
	c := &v1alpha1.Cluster{}
	s.control.Read(v1alpha1.ClusterResource, "", name, c)
	return c
}

// waitReady advances the clock until a Cluster's condition Ready has the reason and its message has
// the words.
func (s *fixture) waitReady(name, reason string, words ...string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, fmt.Sprintf("%s is %s with %q", name, reason, words), func() error {
		s.clock.Step(time.Second)
		ready := meta.FindStatusCondition(s.now(name).Status.Conditions, v1alpha1.ClusterReady)
		lacks := func(word string) bool { return !strings.Contains(ready.Message, word) }
		if ready == nil || ready.Reason != reason || slices.ContainsFunc(words, lacks) {
			return fmt.Errorf("its condition is %+v", ready)
		}
		return nil
	})
}

// TestAnotherClusterIsNotServed: whether the kubeconfig leads elsewhere, or the member lost its
// datastore, nothing is written to the new cluster until a user accepts it.
func TestAnotherClusterIsNotServed(t *testing.T) {
	s := open(t, map[string]string{"east": ""})
	s.waitReady("east", v1alpha1.ReasonClusterReady)
	fakeapi.Until(t, "the syncer runs", func() bool { return s.serves("east") })
	s.id.Store("id-2")
	s.waitReady("east", v1alpha1.ReasonWrongCluster, "UID id-2, expected id-1", "atoll join east", "kubectl annotate cluster east fleet.atoll.dev/accept-id=id-2")
	fakeapi.Until(t, "the syncer has stopped", func() bool { return !s.serves("east") })
	if id := s.now("east").Status.ID; id != "id-1" {
		t.Errorf("the recorded ID was replaced by %q", id)
	}
	s.id.Store("id-1")
	s.waitReady("east", v1alpha1.ReasonClusterReady)
	fakeapi.Until(t, "the syncer runs again", func() bool { return s.serves("east") })

	s.id.Store("id-2")
	s.waitReady("east", v1alpha1.ReasonWrongCluster)
	s.control.Change(v1alpha1.ClusterResource, "", "east", func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{v1alpha1.AcceptIDAnnotation: "id-2"})
	})
	s.waitReady("east", v1alpha1.ReasonClusterReady)
	fakeapi.Until(t, "the syncer runs for the accepted cluster", func() bool { return s.serves("east") })
	if id := s.now("east").Status.ID; id != "id-2" {
		t.Errorf("its ID is %q", id)
	}
}

// TestTheIDIsRecordedOnce: another cluster answers before the cache has the ID of the first.
func TestTheIDIsRecordedOnce(t *testing.T) {
	s := prepare(t, map[string]string{"east": ""})
	c := newController(t.Context(), s.session(t.Context()), s.serve, noNamespaces, s.metrics)
	outdated, _ := c.Clusters.Get("east")
	ready := func(id string) result {
		return result{at: s.clock.Now(), ready: true, reason: v1alpha1.ReasonClusterReady, id: id}
	}
	m := newMemberReconciler(c, "east", false)
	if r := m.identified(ready("id-1"), result{}); !r.ready {
		t.Errorf("the first cluster is rejected: %+v", r)
	}
	if r := m.identified(ready("id-2"), ready("id-1")); r.reason != v1alpha1.ReasonWrongCluster || !strings.Contains(r.message, "UID id-2, expected id-1") {
		t.Errorf("the second cluster is not rejected: %+v", r)
	}
	rejected := result{at: s.clock.Now(), reason: v1alpha1.ReasonWrongCluster, id: "id-2"}
	if r := m.identified(ready("id-1"), rejected); !r.ready {
		t.Errorf("the ID of a rejected cluster is remembered: %+v", r)
	}
	write := func(r result) error {
		_, err := c.writeStatus(t.Context(), outdated, observation{health: health{last: r}, count: func(*v1alpha1.ClusterStatus) {}})
		return err
	}
	if err := write(ready("id-1")); err != nil {
		t.Fatal(err)
	}
	for _, r := range []result{ready("id-2"), rejected} {
		if err := write(r); !apierrors.IsConflict(err) {
			t.Errorf("%s with %s was written although the Cluster has changed: %v", r.reason, r.id, err)
		}
	}
	if id := s.now("east").Status.ID; id != "id-1" {
		t.Errorf("the recorded ID is %q", id)
	}
}

// TestAClusterIsServedOnce: a member's kubeconfig is used under another Cluster's name.
func TestAClusterIsServedOnce(t *testing.T) {
	s := open(t, map[string]string{"east": "id-1", "west": ""})
	s.waitReady("west", v1alpha1.ReasonWrongCluster, "already joined as east", "atoll join west")
	s.waitReady("east", v1alpha1.ReasonClusterReady)
	if s.serves("west") {
		t.Error("the cluster has two syncers")
	}
}

// TestTheControlPlaneIsNoMember: the kubeconfig leads to the API that has the Cluster.
func TestTheControlPlaneIsNoMember(t *testing.T) {
	s := prepare(t, map[string]string{"east": ""})
	s.control.Put(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": metav1.NamespaceSystem, "uid": "id-1"}})
	run(t, s, fleet.ControlPlane{})
	s.waitReady("east", v1alpha1.ReasonWrongCluster, "this control plane itself", "atoll join east")
	if s.serves("east") {
		t.Error("the control plane is its own member")
	}
}

// TestNodesThatMayNotBeSeen: the cluster is synced, and reports that its capacity may be outdated.
func TestNodesThatMayNotBeSeen(t *testing.T) {
	s := open(t, map[string]string{"east": ""})
	s.denied.Store(true)
	s.waitReady("east", v1alpha1.ReasonClusterReady, "grant get, list and watch of nodes")
}

// observe runs the Observer of a cluster in mode Pull until stop is called.
func (s *fixture) observe(self *atomic.Pointer[v1alpha1.Cluster]) (said *atomic.Pointer[fleet.Observation], stop func()) {
	said = &atomic.Pointer[fleet.Observation]{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Observer{Clock: s.clock, Log: slog.New(slog.DiscardHandler),
			Self:   func() (*v1alpha1.Cluster, bool) { return self.Load(), true },
			Report: func(_ context.Context, o fleet.Observation) error { said.Store(&o); return nil },
			Serve:  func(ctx context.Context) error { return s.serve(ctx, nil, "east", nil, nil) },
		}.Run(ctx, &rest.Config{Host: s.member.URL})
	}()
	return said, func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
}

// TestASyncerFindsAnotherCluster: the same check in mode Pull.
func TestASyncerFindsAnotherCluster(t *testing.T) {
	s := &fixture{t: t, clock: clocktesting.NewFakeClock(time.Now())}
	s.id.Store("id-1")
	s.member = httptest.NewServer(http.HandlerFunc(s.answer))
	defer s.member.Close()
	var self atomic.Pointer[v1alpha1.Cluster]
	told := func(id string, ready ...metav1.Condition) {
		self.Store(&v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Status: v1alpha1.ClusterStatus{ID: id, Conditions: ready}})
	}
	told("id-1")
	said, stop := s.observe(&self)
	expect := func(reason string, serves bool, words string) {
		t.Helper()
		fakeapi.Until(t, reason, func() bool {
			s.clock.Step(time.Second)
			o := said.Load()
			return o != nil && o.Reason == reason && strings.Contains(o.Message, words) && s.serves("east") == serves
		})
	}
	expect(v1alpha1.ReasonClusterReady, true, "")
	s.id.Store("id-2")
	expect(v1alpha1.ReasonWrongCluster, false, "atoll join east")
	s.id.Store("id-1")
	expect(v1alpha1.ReasonClusterReady, true, "")
	// The leader overrides it: this cluster has joined under another name.
	told("", metav1.Condition{Type: v1alpha1.ClusterReady, Reason: v1alpha1.ReasonWrongCluster, Message: "joined as west"})
	expect(v1alpha1.ReasonWrongCluster, false, "joined as west")
	told("", metav1.Condition{Type: v1alpha1.ClusterReady, Reason: v1alpha1.ReasonClusterStatusUnknown})
	expect(v1alpha1.ReasonClusterReady, true, "")
	stop()
}

// TestHeartbeats: how the leader interprets the heartbeats of a syncer in mode Pull, and their
// absence.
func TestHeartbeats(t *testing.T) {
	s := prepare(t, map[string]string{"west": "id-1"})
	c := newController(t.Context(), s.session(t.Context()), s.serve, noNamespaces, s.metrics)
	for _, tt := range []struct {
		name   string
		said   fleet.Observation
		age    time.Duration
		id     string
		reason string
		says   string
	}{
		{"it is well", fleet.Observation{Ready: true, Reason: v1alpha1.ReasonClusterReady, ID: "id-2"}, 0, "id-2", v1alpha1.ReasonClusterReady, ""},
		{"it is another", fleet.Observation{Ready: true, Reason: v1alpha1.ReasonClusterReady, ID: "id-3"}, 0, "id-2", v1alpha1.ReasonWrongCluster, "accept-id=id-3"},
		{"it is west", fleet.Observation{Ready: true, Reason: v1alpha1.ReasonClusterReady, ID: "id-1"}, 0, "", v1alpha1.ReasonWrongCluster, "already joined as west"},
		{"it was wrong", fleet.Observation{Reason: v1alpha1.ReasonWrongCluster, ID: "id-2"}, 0, "", v1alpha1.ReasonClusterStatusUnknown, "syncer is starting again"},
		{"it is silent", fleet.Observation{Ready: true, Reason: v1alpha1.ReasonClusterReady}, 2 * v1alpha1.HeartbeatExpiry, "", v1alpha1.ReasonClusterUnreachable, "atoll join east --mode pull"},
	} {
		c.heartbeats = &heartbeats{last: map[string]lastHeartbeat{"east": {at: s.clock.Now().Add(-tt.age), observation: tt.said}}}
		o := c.observePull(&v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Status: v1alpha1.ClusterStatus{ID: tt.id,
			Conditions: []metav1.Condition{{Type: v1alpha1.ClusterReady, Reason: v1alpha1.ReasonClusterReady, Status: metav1.ConditionTrue}}}})
		if o.health.last.reason != tt.reason || !strings.Contains(o.health.last.message, tt.says) {
			t.Errorf("%s: %s: %s", tt.name, o.health.last.reason, o.health.last.message)
		}
	}
}
