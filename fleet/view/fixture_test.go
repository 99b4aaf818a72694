package view

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fixture is a Host over a control plane: clusters east and west in mode Pull, south in
// mode Push, and bindings of both.
type fixture struct {
	t       *testing.T
	control *fakeapi.Server
	host    *Host
	server  *httptest.Server

	mu      sync.Mutex
	applied []fakeapi.Request
	reports []string // reports of types, by cluster
}

// StoreTypes and StoreGroup record their arguments.
func (s *fixture) StoreTypes(_ context.Context, _ *fleet.Session, c *v1alpha1.Cluster, text fleet.TypesReport) (fleet.TypesWanted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, c.Name+" serves "+fmt.Sprint(slices.Sorted(maps.Keys(text.Groups)))+text.Message)
	return fleet.TypesWanted{Missing: slices.Sorted(maps.Keys(text.Groups)), InFull: text.Others}, nil
}

func (s *fixture) StoreGroup(_ context.Context, _ *fleet.Session, c *v1alpha1.Cluster, text fleet.GroupReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, fmt.Sprintf("%s has %s of %s", c.Name, text.Content, text.Group))
	if text.Group == "bad" {
		return apierrors.NewBadRequest("it is bad")
	}
	return nil
}

func newFixture(t *testing.T, objects ...*unstructured.Unstructured) *fixture {
	t.Helper()
	return newFixtureOf(t, nil, objects...)
}

// newFixtureOf is newFixture for a control plane that serves more kinds.
func newFixtureOf(t *testing.T, kinds []fakeapi.Kind, objects ...*unstructured.Unstructured) *fixture {
	t.Helper()
	s := &fixture{t: t, control: fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Secret", "v1 ConfigMap", "v1 Event",
		"coordination.k8s.io/v1 Lease", "apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)}
	s.control.Serve(kinds...)
	for _, o := range append(objects, pullCluster("east"), pullCluster("west"), object(apiVersion, clusterKind, "", "south", nil),
		object("v1", "Namespace", "", "shop", nil)) {
		s.control.Put(o)
	}
	s.control.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "apply" {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.applied = append(s.applied, r)
		}
		return nil
	})
	s.host = NewHost(Config{REST: s.control.Config(), Log: slog.New(slog.DiscardHandler), Types: s, Metrics: NewMetrics(),
		Sign: func(cluster, credential string, _ *x509.CertificateRequest) ([]byte, error) {
			return []byte("certificate of " + cluster + " by " + credential), nil
		}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.host.Run(ctx) }()
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := Caller{Name: r.Header.Get("Test-User")}
		if groups := r.Header.Get("Test-Groups"); groups != "" {
			caller.Groups = strings.Split(groups, ",")
		}
		s.host.Serve(w, r, caller)
	}))
	t.Cleanup(func() { stop(); <-done; s.server.CloseClientConnections(); s.server.Close() })
	fakeapi.Until(t, "the host serves", func() bool {
		s.host.mu.Lock()
		defer s.host.mu.Unlock()
		return s.host.ctx != nil
	})
	return s
}

func pullCluster(name string) *unstructured.Unstructured {
	c := object(apiVersion, clusterKind, "", name, map[string]any{"spec": map[string]any{"mode": "Pull"}})
	c.SetAnnotations(map[string]string{v1alpha1.CredentialAnnotation: "good"})
	return c
}

func object(apiVersion, kind, namespace, name string, rest map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	for field, value := range rest {
		u.Object[field] = value
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetUID(types.UID("uid-" + name))
	u.SetGeneration(3)
	return u
}

func secret(name string) *unstructured.Unstructured {
	return object("v1", "Secret", "shop", name, map[string]any{"data": map[string]any{"word": "c2VjcmV0LW9mLQ==" + name}})
}

// bind returns the binding of a Secret to clusters.
func bind(name string, clusters ...string) *unstructured.Unstructured {
	var shares, states []any
	for _, c := range clusters {
		shares = append(shares, map[string]any{"name": c, "reason": "Chosen", "message": "because of " + strings.Join(clusters, " and ")})
		states = append(states, map[string]any{"name": c, "health": "Healthy", "message": "said by " + c, "lastUpdateTime": "2026-01-01T00:00:00Z"})
	}
	b := object(apiVersion, "ResourceBinding", "shop", "secret-"+name, map[string]any{
		"spec": map[string]any{"resource": map[string]any{"apiVersion": "v1", "kind": "Secret", "name": name, "uid": "uid-" + name},
			"clusters": shares, "requiredBy": []any{map[string]any{"kind": "Deployment", "name": "unseen"}}},
		"status": map[string]any{"clusters": states, "placed": strings.Join(clusters, ",")},
	})
	b.SetUID(types.UID("uid-binding-" + name))
	return b
}

func syncerOf(cluster string) Caller {
	return Caller{v1alpha1.SyncerUser(cluster), []string{v1alpha1.SyncersGroup, v1alpha1.CredentialGroupPrefix + "good"}}
}

func (s *fixture) ask(who Caller, method, path string, body any) (int, string) {
	s.t.Helper()
	answer := s.send(who, method, path, body)
	defer answer.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(answer.Body); err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, text.String()
}

func (s *fixture) send(who Caller, method, path string, body any) *http.Response {
	s.t.Helper()
	content, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.server.URL, bytes.NewReader(content))
	if err != nil {
		s.t.Fatal(err)
	}
	// Opaque, because Go's client would clean the path.
	path, query, _ := strings.Cut(path, "?")
	r.URL.Opaque = "//" + strings.TrimPrefix(s.server.URL, "http://") + path
	r.URL.RawQuery = query
	r.Header.Set("Test-User", who.Name)
	r.Header.Set("Test-Groups", strings.Join(who.Groups, ","))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

const eastView = v1alpha1.ViewsPath + "east"
