package expose

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var (
	leaseResource     = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	apiServices       = kinds()[4].gvr
)

// fixture is the controller between a control plane and members.
type fixture struct {
	t       *testing.T
	control *fakeapi.Server
	silent  atomic.Bool // members list no kinds in discovery
	members map[string]*fakeapi.Server
	// dependents are the objects of members with owners in shared groups.
	dependents []string

	metrics *Metrics
	stop    func() // ends the session of the controller

	mu      sync.Mutex
	journal []string // writes: target, verb, resource, name
}

// open creates a fixture with the given objects in the control plane and in each member.
func open(t *testing.T, control []*unstructured.Unstructured, members map[string][]*unstructured.Unstructured) *fixture {
	t.Helper()
	s := &fixture{t: t, members: map[string]*fakeapi.Server{}, metrics: NewMetrics()}
	for name, objects := range members {
		m := s.serve(name, objects, fakeapi.BuiltIns("v1 Namespace", "v1 Service", "v1 ConfigMap", "v1 Secret", "v1 Pod", "v1 PersistentVolumeClaim", "v1 ServiceAccount",
			"discovery.k8s.io/v1 EndpointSlice", "rbac.authorization.k8s.io/v1 ClusterRole", "apiregistration.k8s.io/v1 APIService",
			"apiextensions.k8s.io/v1 CustomResourceDefinition"))
		m.OnStore(available)
		s.members[name] = m
		control = append(control, cluster(name))
	}
	s.control = s.serve("control", control, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "coordination.k8s.io/v1 Lease",
		"rbac.authorization.k8s.io/v1 ClusterRole", "rbac.authorization.k8s.io/v1 ClusterRoleBinding", "apiextensions.k8s.io/v1 CustomResourceDefinition")...))
	s.start()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.renew(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return s
}

// serve starts an API server whose writes are recorded, except events and renewals of Leases.
func (s *fixture) serve(name string, objects []*unstructured.Unstructured, kinds []fakeapi.Kind) *fakeapi.Server {
	server := fakeapi.New(s.t, kinds...)
	for _, o := range objects {
		server.Put(o)
	}
	server.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if what := r.Resource.Resource; r.Verb != "get" && r.Verb != "list" && r.Verb != "watch" && what != "events" && what != "leases" {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.journal = append(s.journal, strings.Join([]string{name, r.Verb, what, r.Name}, " "))
		}
		return nil
	})
	return server
}

// renew renews the servers' Leases, so that no test depends on being faster than their expiry.
func (s *fixture) renew(ctx context.Context) {
	leases := s.control.Dynamic().Resource(leaseResource).Namespace(v1alpha1.SystemNamespace)
	for tick := time.NewTicker(v1alpha1.MemberEndpointRenew); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, l := range s.control.List(leaseResource) {
				patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, now.Format(time.RFC3339Nano))
				_, _ = leases.Patch(ctx, l.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}) // fails if it is gone
			}
		}
	}
}

func (s *fixture) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.journal)
}

// restart ends the session of the controller and starts another one.
func (s *fixture) restart() {
	s.t.Helper()
	s.stop()
	s.start()
}

// start runs a controller as a new leader would.
func (s *fixture) start() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: s.control.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	c := newController(session, []byte("the CA of Atoll"), func(c *v1alpha1.Cluster) (memberAccess, error) {
		if m, ok := s.members[c.Name]; ok {
			return memberAccess{m.Dynamic(), "digest", func(context.Context) (map[schema.GroupVersion]bool, error) { return s.listed(m), nil },
				func(context.Context, string) ([]string, error) { return s.dependents, nil }}, nil
		}
		return memberAccess{}, errors.New("no kubeconfig")
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer s.metrics.lead(c)()
		if err := c.run(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	s.stop = sync.OnceFunc(func() { cancel(); <-done })
	s.t.Cleanup(s.stop)
}

// available plays the member's aggregator.
func available(u *unstructured.Unstructured) {
	if u.GetKind() == apiServiceKind && u.Object["status"] == nil {
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Available", "status": "True", "message": "all checks passed"}}}
	}
}

// listed plays the member's discovery.
func (s *fixture) listed(m *fakeapi.Server) map[schema.GroupVersion]bool {
	out := map[schema.GroupVersion]bool{}
	if !s.silent.Load() {
		for _, u := range m.List(apiServices) {
			out[versionOf(u)] = true
		}
	}
	return out
}

func (s *fixture) eventually(what string, ok func() bool) {
	s.t.Helper()
	fakeapi.Eventually(s.t, what, func() error {
		if ok() {
			return nil
		}
		return fmt.Errorf("SharedAPIs: %s\nmembers: %s", s.reports(), s.everything())
	})
}

// reports returns each SharedAPI with the state of its members.
func (s *fixture) reports() string {
	var out []string
	for _, u := range s.control.List(v1alpha1.SharedAPIResource) {
		entries, _, _ := unstructured.NestedSlice(u.Object, "status", "clusters")
		line := u.GetName()
		for _, e := range entries {
			fields := e.(map[string]any)
			line += fmt.Sprintf(" %v=%v", fields["name"], fields["reason"])
			if fields["exposed"] == true {
				line += fmt.Sprint(fields["versions"])
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func (s *fixture) reporting(want string) {
	s.t.Helper()
	s.eventually("reports "+want, func() bool { return s.reports() == want })
}

// has lists the objects with our label in a member.
func (s *fixture) has(member string) string {
	var out []string
	for _, k := range kinds() {
		for _, u := range s.members[member].List(k.gvr) {
			if isOurs(u) {
				out = append(out, k.name+"/"+u.GetName())
			}
		}
	}
	return strings.Join(out, " ")
}

func (s *fixture) everything() string {
	out := ""
	for name := range s.members {
		out += "\n" + name + ": " + s.has(name)
	}
	return out
}

func (s *fixture) having(member, want string) {
	s.t.Helper()
	s.eventually(member+" has "+want, func() bool { return s.has(member) == want })
}

func plain(apiVersion, kind, namespace, name string, fields map[string]any) *unstructured.Unstructured {
	u := object(apiVersion, kind, namespace, name, fields)
	u.SetLabels(nil)
	return u
}

func cluster(name string) *unstructured.Unstructured {
	return plain("fleet.atoll.dev/v1alpha1", "Cluster", "", name, map[string]any{
		"spec":   map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": "atoll-system", "name": name}},
		"status": map[string]any{"conditions": []any{ready("True")}}})
}

func ready(status string) map[string]any {
	return map[string]any{"type": "Ready", "status": status, "reason": "Test", "message": "as the test says",
		"lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339)}
}

func shared(name string, clusters []string, groups ...string) *unstructured.Unstructured {
	list := func(in []string) (out []any) {
		for _, s := range in {
			out = append(out, s)
		}
		return out
	}
	return plain("fleet.atoll.dev/v1alpha1", "SharedAPI", "", name, map[string]any{
		"spec": map[string]any{"groups": list(groups), "clusters": list(clusters)}})
}

func lease(name, address string) *unstructured.Unstructured {
	u := plain("coordination.k8s.io/v1", "Lease", v1alpha1.SystemNamespace, name, map[string]any{
		"spec": map[string]any{"renewTime": "2026-01-01T00:00:00.000000Z"}})
	u.SetLabels(map[string]string{v1alpha1.MemberEndpointLabel: "true"})
	u.SetAnnotations(map[string]string{v1alpha1.AddressAnnotation: address})
	return u
}

// authority returns the ConfigMap with a member's front-proxy authority.
func authority(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "front-proxy-ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return plain("v1", "ConfigMap", authorityNamespace, authorityName, map[string]any{"data": map[string]any{
		"requestheader-client-ca-file":       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		"requestheader-allowed-names":        `["front-proxy-client"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}})
}

func resourceOf(t *testing.T, kind string) schema.GroupVersionResource {
	t.Helper()
	for _, k := range kinds() {
		if k.name == kind {
			return k.gvr
		}
	}
	if kind != "ConfigMap" {
		t.Fatalf("no resource for kind %s", kind)
	}
	return configMapResource
}
