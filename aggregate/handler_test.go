package aggregate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"
)

// testMembers is a Members whose roster a test can replace.
type testMembers struct {
	mu       sync.Mutex
	roster   *Roster
	replaced chan struct{}
}

func newTestMembers(r *Roster) *testMembers {
	return &testMembers{roster: r, replaced: make(chan struct{})}
}

func (l *testMembers) Roster() (*Roster, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roster, l.replaced
}

func (l *testMembers) replace(r *Roster) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.replaced)
	l.roster, l.replaced = r, make(chan struct{})
}

// handlerFixture is a handler for member east (shop.example.com is exposed to it) and
// member west (nothing is), with a next handler from the test.
type handlerFixture struct {
	t           *testing.T
	handler     http.Handler
	testMembers *testMembers
	metrics     *Metrics
	east, west  []*x509.Certificate
	asked       []*http.Request // requests that reached the next handler
}

func newHandlerFixture(t *testing.T, next http.HandlerFunc) *handlerFixture {
	east, west := newCA(t, "front-proxy-ca"), newCA(t, "front-proxy-ca")
	h := &handlerFixture{
		t: t, metrics: NewMetrics(),
		east: []*x509.Certificate{east.sign("front-proxy-client").cert},
		west: []*x509.Certificate{west.sign("front-proxy-client").cert},
	}
	roster := mustRoster(t, clocktesting.NewFakePassiveClock(start),
		Member{Name: "east", FrontProxy: proxyOf(east), Groups: []string{"shop.example.com"}},
		Member{Name: "west", FrontProxy: proxyOf(west)})
	h.testMembers = newTestMembers(roster)
	h.handler = NewHandler(h.testMembers, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked = append(h.asked, r)
		next(w, r)
	}), h.metrics)
	return h
}

// request returns a request as east's front proxy sends it for alice.
func (h *handlerFixture) request(method, target string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: h.east}
	r.Header.Set("X-Remote-User", "alice")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func (h *handlerFixture) serve(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	return w
}

// refused checks for a Status with the code, and that nothing was passed on.
func (h *handlerFixture) refused(w *httptest.ResponseRecorder, code int, why string) {
	h.t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		h.t.Fatalf("answered %d with %q: %v", w.Code, w.Body, err)
	}
	if w.Code != code || int(s.Code) != code || s.Kind != "Status" || s.Status != metav1.StatusFailure || !strings.Contains(s.Message, why) {
		h.t.Errorf("answered %d %+v, want %d with %q", w.Code, s, code, why)
	}
	if len(h.asked) > 0 {
		h.t.Errorf("%s reached the workspace", h.asked[0].URL)
	}
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") }

const gadgets = "/apis/shop.example.com/v1/namespaces/ops/gadgets"

func TestForwarded(t *testing.T) {
	h := newHandlerFixture(t, ok)
	r := h.request("POST", gadgets+"?dryRun=All",
		"X-Remote-Group", "ops", "X-Remote-Extra-Scopes", "x", "X-Remote-Uid", "1", "X-Remote-Anything", "y",
		"Impersonate-User", "system:admin", "Impersonate-Group", "system:masters", "Impersonate-Extra-X", "y",
		"Authorization", "Bearer secret", "Cookie", "session=1", "User-Agent", "kubectl/v1.36.3 (linux/amd64) kubernetes/abc", "Accept", "application/json")
	r.Body = io.NopCloser(strings.NewReader("{}"))
	if w := h.serve(r); w.Code != http.StatusOK || w.Body.String() != "fine" {
		t.Fatalf("answered %d %s", w.Code, w.Body)
	}
	got := h.asked[0]
	u, known := request.UserFrom(got.Context())
	if !known || u.GetName() != "east:alice" || u.GetUID() != "1" || !slices.Contains(u.GetGroups(), "east:ops") || u.GetExtra()["scopes"][0] != "x" {
		t.Errorf("forwarded for %+v", u)
	}
	if left := len(got.Header); left != 2 || got.Header.Get("Accept") == "" || got.UserAgent() == "" {
		t.Errorf("forwarded with %v", got.Header)
	}
	if len(got.TLS.PeerCertificates) > 0 {
		t.Error("forwarded with the proxy's certificate")
	}
	if body, _ := io.ReadAll(got.Body); string(body) != "{}" || got.URL.RawQuery != "dryRun=All" || got.Method != "POST" {
		t.Errorf("forwarded as %s %s %s", got.Method, got.URL, body)
	}
	if r.Header.Get("Authorization") == "" || len(r.TLS.PeerCertificates) == 0 {
		t.Error("the caller's request was changed")
	}
}

// A client gets each header once, as from its own API server.
func TestCacheControlIsSetOnce(t *testing.T) {
	h := newHandlerFixture(t, filters.WithCacheControl(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"kind":"APIGroupList","apiVersion":"v1","paths":{}}`)
	})).ServeHTTP)
	for _, path := range []string{gadgets, "/apis", "/apis/shop.example.com/v1", "/openapi/v2", "/openapi/v3", "/apis/other.example.com/v1", "/healthz"} {
		if w := h.serve(h.request("GET", path)); len(w.Result().Header["Cache-Control"]) != 0 {
			t.Errorf("%s: Cache-Control %q", path, w.Result().Header["Cache-Control"])
		}
	}
	w := h.serve(h.request("GET", gadgets, "User-Agent", "kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/abc/generic-garbage-collector"))
	if len(w.Result().Header["Cache-Control"]) != 0 {
		t.Errorf("for a collector: Cache-Control %q", w.Result().Header["Cache-Control"])
	}
}

func TestUnauthenticated(t *testing.T) {
	h := newHandlerFixture(t, ok)
	for name, change := range map[string]func(*http.Request){
		"no TLS":         func(r *http.Request) { r.TLS = nil },
		"no certificate": func(r *http.Request) { r.TLS.PeerCertificates = nil },
		"a stranger's": func(r *http.Request) {
			r.TLS.PeerCertificates = []*x509.Certificate{newCA(t, "front-proxy-client").cert}
		},
		"no user":         func(r *http.Request) { r.Header.Del("X-Remote-User") },
		"two users":       func(r *http.Request) { r.Header.Add("X-Remote-User", "bob") },
		"a token besides": func(r *http.Request) { r.TLS.PeerCertificates = nil; r.Header.Set("Authorization", "Bearer t") },
		"a user from above": func(r *http.Request) {
			r.TLS = nil
			*r = *r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "root"}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := h.request("GET", gadgets)
			change(r)
			h.refused(h.serve(r), http.StatusUnauthorized, "cannot authenticate a member cluster's front proxy")
		})
	}
}

func TestRosterUnknown(t *testing.T) {
	h := newHandlerFixture(t, ok)
	h.handler = NewHandler(newTestMembers(nil), http.HandlerFunc(ok), h.metrics)
	w := h.serve(h.request("GET", gadgets))
	h.refused(w, http.StatusServiceUnavailable, "not yet read")
	if w.Header().Get("Retry-After") != "1" {
		t.Error("no Retry-After")
	}
}

func TestExposure(t *testing.T) {
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", gadgets, 200},
		{"DELETE", gadgets + "/one", 200},
		{"GET", "/apis/shop.example.com/v1/gadgets", 200},
		{"PATCH", gadgets + "/one/status", 200},
		{"GET", "/apis/shop.example.com", 200},
		{"GET", "/apis/shop.example.com/", 200},
		{"GET", "/apis/shop.example.com/v1", 200},
		{"GET", "/openapi/v3/apis/shop.example.com/v1", 200},
		{"GET", "/openapi/v3/apis/shop.example.com", 200},
		{"POST", "/apis/shop.example.com/v1", 405},
		{"POST", "/apis", 405},
		{"GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", 403},
		{"GET", "/apis/shop.example.co", 403},
		{"GET", "/apis/shop.example.com.evil.org/v1/gadgets", 403},
		{"GET", "/apis/SHOP.example.com/v1/gadgets", 403},
		{"GET", "/openapi/v3/apis/apps/v1", 403},
		{"GET", "/openapi/v3/api/v1", 403},
		{"GET", "/api/v1/secrets", 403},
		{"GET", "/api", 403},
		{"GET", "/healthz", 403},
		{"GET", "/readyz", 403},
		{"GET", "/metrics", 403},
		{"GET", "/debug/pprof/", 403},
		{"GET", "/version", 403},
		{"GET", "/apis/shop.example.com/../apps/v1/deployments", 400},
		{"GET", "/apis/shop.example.com/%2e%2e/apps/v1/deployments", 400},
		{"GET", "/apis/shop.example.com/v1/./gadgets", 400},
		{"GET", "/apis//shop.example.com/v1/gadgets", 400},
		{"GET", "//apis/shop.example.com/v1/gadgets", 400},
		{"GET", "/", 400},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			h := newHandlerFixture(t, ok)
			r := h.request(c.method, "/")
			u, err := url.Parse("https://atoll" + c.path) // does not resolve the path
			if err != nil {
				t.Fatal(err)
			}
			r.URL = u
			w := h.serve(r)
			if c.code != http.StatusOK {
				h.refused(w, c.code, "")
			} else if w.Code != c.code || len(h.asked) != 1 {
				t.Errorf("answered %d %s", w.Code, w.Body)
			}
		})
	}
	t.Run("a group exposed only to east", func(t *testing.T) {
		h := newHandlerFixture(t, ok)
		r := h.request("GET", gadgets)
		r.TLS.PeerCertificates = h.west
		h.refused(h.serve(r), http.StatusForbidden, "atoll expose shop.example.com --to west")
	})
}

// A watch runs for hours; its permission may end earlier.
func TestWatchEndsWhenWithdrawn(t *testing.T) {
	ca := newCA(t, "front-proxy-ca")
	clk := clocktesting.NewFakePassiveClock(start)
	east := func(name string, p FrontProxy, groups ...string) *Roster {
		return mustRoster(t, clk, Member{Name: name, FrontProxy: p, Groups: groups})
	}
	otherNames := proxyOf(ca)
	otherNames.AllowedNames = []string{"another"}
	for name, after := range map[string]*Roster{
		"the group is withdrawn":     east("east", proxyOf(ca), "other.example.com"),
		"the cluster has left":       east("west", proxyOf(ca), "shop.example.com"),
		"another authority":          east("east", proxyOf(newCA(t, "front-proxy-ca")), "shop.example.com"),
		"another name for the proxy": east("east", otherNames, "shop.example.com"),
		"the roster is unknown":      nil,
	} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{})
			h := newHandlerFixture(t, func(_ http.ResponseWriter, r *http.Request) {
				close(begun)
				<-r.Context().Done()
			})
			h.testMembers.replace(east("east", proxyOf(ca), "shop.example.com"))
			r := h.request("GET", gadgets+"?watch=1")
			r.TLS.PeerCertificates = []*x509.Certificate{ca.sign("front-proxy-client").cert}
			done := make(chan struct{})
			go func() {
				defer close(done)
				h.serve(r)
			}()
			<-begun
			// A change that does not affect this watch does not end it.
			h.testMembers.replace(east("east", proxyOf(ca), "shop.example.com", "other.example.com"))
			if err := h.asked[0].Context().Err(); err != nil {
				t.Fatal("ended without a reason")
			}
			h.testMembers.replace(after)
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatal("the watch has not ended")
			}
		})
	}
}

func answerJSON(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, bytes.NewReader([]byte(body)))
	}
}

func TestRequestsAreCounted(t *testing.T) {
	h := newHandlerFixture(t, ok)
	stranger := h.request("GET", gadgets)
	stranger.TLS = nil
	nobody := h.request("GET", gadgets)
	nobody.Header.Del("X-Remote-User")
	for _, r := range []*http.Request{h.request("GET", gadgets), h.request("GET", "/api/v1/secrets"), stranger, nobody} {
		h.serve(r)
	}
	for _, labels := range [][]string{{"east", resultAccepted}, {"east", resultRefused}, {"", resultUnauthorized}, {"east", resultUnauthorized}} {
		if n := testutil.ToFloat64(h.metrics.requests.WithLabelValues(labels...)); n != 1 {
			t.Errorf("%v was counted %v times", labels, n)
		}
	}
	h.handler = NewHandler(newTestMembers(nil), http.HandlerFunc(ok), h.metrics)
	h.serve(h.request("GET", gadgets))
	if n := testutil.ToFloat64(h.metrics.requests.WithLabelValues("", resultUnavailable)); n != 1 {
		t.Errorf("counted %v times", n)
	}
}
