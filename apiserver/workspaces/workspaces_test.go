package workspaces

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/util/keyutil"

	"github.com/atoll-dev/atoll/apiserver/overlay"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// testCA stands for the certificates of the server.
const testCA = "certificates\n"

// stage is a server with some workspaces in one SQLite database.
type stage struct {
	t      testing.TB
	db     kv.Backend
	server *Server
	awake  map[string]*Workspace
	// keyspaces are those of the workspaces.
	keyspaces map[string]*mvcc.Keyspace
	// bindings are those of each workspace.
	bindings map[*Workspace][]Binding
}

func newStage(t testing.TB, paths ...string) *stage {
	t.Helper()
	dir := t.TempDir()
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(dir, "service-account.key")
	if err := os.WriteFile(keyFile, key, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.Open(filepath.Join(dir, "atoll.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s := &stage{t: t, db: db, awake: map[string]*Workspace{}, keyspaces: map[string]*mvcc.Keyspace{}, bindings: map[*Workspace][]Binding{}}
	no := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil })
	root := &Root{Authenticator: authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		who, ok := request.UserFrom(r.Context())
		return &authenticator.Response{User: who}, ok, nil
	}), Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)}
	s.server, err = New(t.Context(), Config{RootCA: []byte(testCA), People: no, Root: root, ServiceAccountKeyFile: keyFile, WorkloadAPIs: true, WebhookNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Bindings: func(_ context.Context, w *Workspace) ([]Binding, error) { return s.bindings[w], nil },
		Open: func(ctx context.Context, path string) (context.Context, *Workspace, func(), error) {
			if w := s.awake[path]; w != nil {
				return ctx, w, func() {}, nil
			}
			return nil, nil, nil, ErrNotFound
		}})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		s.open(path)
	}
	return s
}

// open opens a workspace, and creates it if it does not exist.
func (s *stage) open(path string) *Workspace {
	s.t.Helper()
	w := s.openKeyspace(path)
	if err := s.server.Initialize(s.t.Context(), w, func(context.Context) (overlay.Beginning, error) {
		return overlay.Beginning{Owner: "owner-of-" + path}, nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return w
}

// openKeyspace opens a workspace that is not initialized.
func (s *stage) openKeyspace(path string) *Workspace {
	s.t.Helper()
	table, err := s.db.Open(s.t.Context(), "workspace-"+path)
	if err != nil {
		s.t.Fatal(err)
	}
	keyspace, err := mvcc.Open(s.t.Context(), table, s.db, mvcc.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	client, err := etcd.InProcess(keyspace, "workspace-"+path)
	if err != nil {
		s.t.Fatal(err)
	}
	w := NewWorkspace("uid-"+path, client)
	s.t.Cleanup(func() {
		w.Close()
		_ = client.Close()
		_ = keyspace.Close()
	})
	s.awake[path], s.keyspaces[path] = w, keyspace
	return w
}

// response is the answer to a request.
type response struct {
	code int
	body string
}

func (a response) field(t testing.TB, path ...string) any {
	t.Helper()
	var in any
	if err := json.Unmarshal([]byte(a.body), &in); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	for _, name := range path {
		in = in.(map[string]any)[name]
	}
	return in
}

// as makes a request as a user that has been authenticated.
func (s *stage) as(who user.Info, method, url, body string) response {
	s.t.Helper()
	r := httptest.NewRequest(method, url, strings.NewReader(body))
	r = r.WithContext(request.WithUser(s.t.Context(), who))
	return s.serve(r)
}

func (s *stage) serve(r *http.Request) response {
	r.Header.Set("Content-Type", "application/json")
	if r.Method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return response{w.Code, w.Body.String()}
}

// withToken makes a request with a bearer token.
func (s *stage) withToken(token, method, url string) response {
	r := httptest.NewRequest(method, url, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return s.serve(r)
}

func (s *stage) want(code int, a response) response {
	s.t.Helper()
	if a.code != code {
		s.t.Fatalf("status %d, want %d: %s", a.code, code, a.body)
	}
	return a
}

var (
	admin = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	alice = &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}
)

// TestIsolation: no workspace has the objects of another one.
func TestIsolation(t *testing.T) {
	s := newStage(t, "a", "b")
	s.want(201, s.as(admin, "POST", "/clusters/a/api/v1/namespaces", `{"metadata":{"name":"shop"}}`))
	s.want(201, s.as(admin, "POST", "/clusters/a/api/v1/namespaces/shop/configmaps", `{"metadata":{"name":"config"},"data":{"of":"a"}}`))
	s.want(404, s.as(admin, "GET", "/clusters/b/api/v1/namespaces/shop", ""))
	s.want(404, s.as(admin, "GET", "/clusters/b/api/v1/namespaces/shop/configmaps/config", ""))
	s.want(201, s.as(admin, "POST", "/clusters/b/api/v1/namespaces", `{"metadata":{"name":"shop"}}`))
	s.want(201, s.as(admin, "PATCH", "/clusters/b/api/v1/namespaces/shop/configmaps/config?fieldManager=me", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"config"},"data":{"of":"b"}}`))
	for _, path := range []string{"a", "b"} {
		got := s.want(200, s.as(admin, "GET", "/clusters/"+path+"/api/v1/configmaps", ""))
		if n := strings.Count(got.body, `"data":{"of":"`+path+`"}`); n != 1 || strings.Count(got.body, `"of":`) != 1 {
			t.Errorf("workspace %s has %s", path, got.body)
		}
	}
	s.want(201, s.as(admin, "POST", "/clusters/a/apis/apps/v1/namespaces/shop/deployments",
		`{"metadata":{"name":"web"},"spec":{"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"nginx"}]}}}}`))
	s.want(404, s.as(admin, "GET", "/clusters/b/apis/apps/v1/namespaces/shop/deployments/web", ""))
}

// TestPermissions: a role in one workspace permits nothing in another one, and no user grants permissions that they lack.
func TestPermissions(t *testing.T) {
	s := newStage(t, "a", "b")
	const list = "/api/v1/namespaces/default/configmaps"
	s.want(403, s.as(alice, "GET", "/clusters/a"+list, ""))
	s.want(201, s.as(admin, "POST", "/clusters/a/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
		`{"metadata":{"name":"alice"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"},"subjects":[{"kind":"User","name":"alice","apiGroup":"rbac.authorization.k8s.io"}]}`))
	s.want(200, s.as(alice, "GET", "/clusters/a"+list, ""))
	s.want(403, s.as(alice, "GET", "/clusters/b"+list, ""))
	s.want(403, s.as(alice, "POST", "/clusters/a/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
		`{"metadata":{"name":"more"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","name":"alice","apiGroup":"rbac.authorization.k8s.io"}]}`))
	owner := &user.DefaultInfo{Name: "owner-of-a", Groups: []string{user.AllAuthenticated}}
	s.want(200, s.as(owner, "GET", "/clusters/a/api/v1/secrets", ""))
	s.want(403, s.as(owner, "GET", "/clusters/b/api/v1/secrets", ""))
	review := func(path string) any {
		return s.want(201, s.as(alice, "POST", "/clusters/"+path+"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			`{"spec":{"resourceAttributes":{"namespace":"default","verb":"list","resource":"configmaps"}}}`)).field(t, "status", "allowed")
	}
	if review("a") != true || review("b") != false {
		t.Errorf("allowed in a: %v, in b: %v", review("a"), review("b"))
	}
}

// TestTokens: the token of an account is valid in its workspace alone, although another one has an account of the same name.
func TestTokens(t *testing.T) {
	s := newStage(t, "a", "b")
	token := ""
	for _, path := range []string{"b", "a"} {
		base := "/clusters/" + path
		s.want(201, s.as(admin, "POST", base+"/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"robot"}}`))
		s.want(201, s.as(admin, "POST", base+"/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
			`{"metadata":{"name":"robot"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"kind":"ServiceAccount","name":"robot","namespace":"default"}]}`))
		token = s.want(201, s.as(admin, "POST", base+"/api/v1/namespaces/default/serviceaccounts/robot/token", `{"spec":{}}`)).field(t, "status", "token").(string)
	}
	const list = "/api/v1/namespaces/default/configmaps"
	s.want(200, s.withToken(token, "GET", "/clusters/a"+list))
	s.want(401, s.withToken(token, "GET", "/clusters/b"+list))
	s.want(200, s.as(admin, "DELETE", "/clusters/a/api/v1/namespaces/default/serviceaccounts/robot", ""))
	s.want(401, s.withToken(token, "GET", "/clusters/a"+list))
}

// TestNamespaces: nothing is created in a namespace that does not exist or is being deleted, and some namespaces stay.
func TestNamespaces(t *testing.T) {
	s := newStage(t, "a")
	const base = "/clusters/a/api/v1/namespaces"
	s.want(404, s.as(admin, "POST", base+"/missing/configmaps", `{"metadata":{"name":"config"}}`))
	s.want(403, s.as(admin, "DELETE", base+"/default", ""))
	s.want(201, s.as(admin, "POST", base, `{"metadata":{"name":"shop"}}`))
	s.want(200, s.as(admin, "DELETE", base+"/shop", ""))
	a := s.want(403, s.as(admin, "POST", base+"/shop/configmaps", `{"metadata":{"name":"config"}}`))
	if !strings.Contains(a.body, "NamespaceTerminating") {
		t.Error(a.body)
	}
}

// TestPaths: there is one spelling of each path, and no other one reaches a workspace.
func TestPaths(t *testing.T) {
	s := newStage(t, "a", "a:b")
	s.want(200, s.as(admin, "GET", "/clusters/a/api/v1/namespaces/default", ""))
	s.want(200, s.as(admin, "GET", "/clusters/a:b/api/v1/namespaces/default", ""))
	for _, path := range []string{"/clusters/c/api", "/clusters//api", "/clusters/a%2fapi", "/clusters/%61/api/v1", "/clusters/A/api/v1", "/clusters/a:/api/v1",
		"/clusters/:a/api/v1", "/clusters/a::b/api/v1", "/clusters/../api/v1", "/clusters/a/clusters/a:b/api/v1/namespaces/default", "/clusters/a//api/v1/namespaces/default",
		"/clusters/a/../a:b/api/v1/namespaces/default", "/clusters", "/api/v1", "/clusters/" + strings.Repeat("a", 600)} {
		if a := s.as(admin, "GET", path, ""); a.code != 404 {
			t.Errorf("%s: status %d, want 404: %s", path, a.code, a.body)
		}
	}
}

// TestAudit: the audit event of a request has its workspace, also if the controllers make the request.
func TestAudit(t *testing.T) {
	backend := &events{}
	s := newStage(t)
	config := s.server.config
	config.AuditBackend, config.AuditPolicy = backend, everything{}
	var err error
	if s.server, err = New(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.open("a")
	s.want(200, s.as(admin, "GET", "/clusters/a/api/v1/namespaces/default", ""))
	s.want(200, s.as(admin, "DELETE", "/clusters/a/api/v1/namespaces/default/serviceaccounts/default", ""))
	s.finish("a")
	found := map[string]bool{}
	for _, e := range backend.complete() {
		found[fmt.Sprint(e.User.Username, " ", e.Verb, " ", e.RequestURI, " in ", e.Annotations[WorkspaceAnnotation])] = true
	}
	for _, want := range []string{"admin get /api/v1/namespaces/default in a", "system:apiserver create /api/v1/namespaces/default/serviceaccounts in a"} {
		if !found[want] {
			t.Errorf("%q is not among %v", want, found)
		}
	}
}

// events is an audit backend that keeps the events of completed requests.
type events struct {
	mu  sync.Mutex
	all []auditinternal.Event
}

func (b *events) ProcessEvents(all ...*auditinternal.Event) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range all {
		if e.Stage == auditinternal.StageResponseComplete {
			b.all = append(b.all, *e.DeepCopy())
		}
	}
	return true
}

func (b *events) complete() []auditinternal.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all)
}

func (*events) Run(<-chan struct{}) error { return nil }
func (*events) Shutdown()                 {}
func (*events) String() string            { return "test" }

// everything is a policy that records the metadata of all requests.
type everything struct{}

func (everything) EvaluatePolicyRule(authorizer.Attributes) audit.RequestAuditConfig {
	return audit.RequestAuditConfig{Level: auditinternal.LevelMetadata}
}

// definition is a CustomResourceDefinition of Widgets with one field.
func definition(field string) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","required":[%[1]q],"properties":{%[1]q:{"type":"string"}}}}}}}]}}`, field)
}

// TestCustomResources: a definition is one of its workspace alone: its objects, discovery and OpenAPI documents are not in another
// one, which may have another definition of the same name.
func TestCustomResources(t *testing.T) {
	s := newStage(t, "a", "b", "c")
	const definitions, widgets = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/example.com/v1/namespaces/default/widgets"
	for path, field := range map[string]string{"a": "colour", "b": "size"} {
		s.want(201, s.as(admin, "POST", "/clusters/"+path+definitions, definition(field)))
		s.eventually("widgets are served in "+path, func() bool {
			return s.as(admin, "POST", "/clusters/"+path+widgets, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{%q:"x"}}`, field)).code == 201
		})
	}
	a := s.want(422, s.as(admin, "POST", "/clusters/b"+widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"v"},"spec":{"colour":"x"}}`))
	if !strings.Contains(a.body, "spec.size") {
		t.Error(a.body)
	}
	s.want(404, s.as(admin, "GET", "/clusters/c"+widgets, ""))
	s.want(403, s.as(alice, "GET", "/clusters/a"+widgets, ""))
	for path, want := range map[string]bool{"a": true, "c": false} {
		for document, group := range map[string]string{"/apis": "example.com", "/openapi/v3": "example.com", "/openapi/v2": "/apis/example.com/v1/"} {
			s.eventually(fmt.Sprintf("%s of %s has the group: %v", document, path, want), func() bool {
				return strings.Contains(s.want(200, s.as(admin, "GET", "/clusters/"+path+document, "")).body, group) == want
			})
		}
	}
	if body := s.want(200, s.as(admin, "GET", "/clusters/a/openapi/v3/apis/example.com/v1", "")).body; !strings.Contains(body, "colour") || strings.Contains(body, "size\"") {
		t.Errorf("%.300s", body)
	}
	s.want(200, s.as(admin, "GET", "/clusters/c/openapi/v3/apis/apps/v1", ""))
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+definitions+"/widgets.example.com", ""))
	s.eventually("the definition is gone", func() bool {
		return s.as(admin, "GET", "/clusters/a"+definitions+"/widgets.example.com", "").code == 404
	})
	s.want(200, s.as(admin, "GET", "/clusters/b"+widgets+"/w", ""))
	if s.awake["c"].running() != nil {
		t.Error("a workspace without definitions has a server for them")
	}
}

func (s *stage) eventually(what string, holds func() bool) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatal("never: " + what)
		}
	}
}

// TestLastBookmark: a watch that asks for bookmarks gets one before its end, and no other watch of the resource does.
func TestLastBookmark(t *testing.T) {
	s := newStage(t, "a")
	chain, err := s.server.built()
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: loopback{chain: chain, workspace: s.awake["a"]}}
	watch := func(bookmarks string) (events string) {
		r, err := client.Get("https://a/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=2&allowWatchBookmarks=" + bookmarks)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer r.Body.Close()
		all, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Error(r.Status, err)
		}
		return string(all)
	}
	var without, with string
	var group sync.WaitGroup
	group.Go(func() { without = watch("false") })
	group.Go(func() { with = watch("true") })
	group.Wait()
	if !strings.Contains(with, `"BOOKMARK"`) || strings.Contains(without, `"BOOKMARK"`) {
		t.Errorf("with bookmarks: %s\nwithout: %s", with, without)
	}
}

// TestFailClosed: without a workspace, no method of the storage reaches any.
func TestFailClosed(t *testing.T) {
	s := newStage(t, "a")
	r := httptest.NewRequest("GET", "/api/v1/namespaces/default", nil)
	r = r.WithContext(request.WithUser(t.Context(), admin))
	w := httptest.NewRecorder()
	chain, err := s.server.built()
	if err != nil {
		t.Fatal(err)
	}
	chain.handler.ServeHTTP(w, r)
	if w.Code != http.StatusUnauthorized {
		t.Errorf("without a workspace: status %d: %s", w.Code, w.Body)
	}
	closed := s.awake["a"]
	closed.Close()
	s.want(500, s.as(admin, "GET", "/clusters/a/api/v1/namespaces/default", ""))
}
