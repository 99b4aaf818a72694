package reach

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type refusal struct{}

func (refusal) Error(w http.ResponseWriter, _ *http.Request, err error) {
	code := http.StatusBadGateway
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code = int(status.Status().Code)
	}
	http.Error(w, err.Error(), code)
}

// identityOf returns what a request says about who sent it.
func identityOf(r *http.Request) (all []string) {
	for name, values := range r.Header {
		if name == "Authorization" || name == "Cookie" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			all = append(all, name+": "+strings.Join(values, ","))
		}
	}
	slices.Sort(all)
	return all
}

// front serves a subresource of pod shop/a as Atoll's API server does.
func (f *fixture) front(subresource, path string) *url.URL {
	f.t.Helper()
	return f.frontOf(func(r *http.Request) (http.Handler, error) {
		return f.reach.ConnectPod(r.Context(), "shop", "a", subresource, path, refusal{})
	})
}

// frontOf serves each request with the handler that is returned for it.
func (f *fixture) frontOf(connect func(*http.Request) (http.Handler, error)) *url.URL {
	f.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := connect(r)
		if err != nil {
			refusal{}.Error(w, r, err)
			return
		}
		h.ServeHTTP(w, r)
	}))
	f.t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	at, err := url.Parse(server.URL)
	if err != nil {
		f.t.Fatal(err)
	}
	return at
}

// TestExec: a connection into a container passes both ways, with the credentials of the cluster's kubeconfig and none of the
// user's.
func TestExec(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	f.bind("shop", "web", "east")
	f.pod("east", "shop", "a", "web-1")
	f.upgrades(f.front("exec", "").Host, "/any", "/api/v1/namespaces/shop/pods/a/exec")
}

// upgrades checks that a connection to a path of Atoll passes both ways, and reaches a path of the cluster.
func (f *fixture) upgrades(host, from, to string) {
	t := f.t
	t.Helper()
	seen := make(chan string, 1)
	f.streams = func(w http.ResponseWriter, r *http.Request) {
		seen <- fmt.Sprintf("%s %v", r.URL.RequestURI(), identityOf(r))
		conn, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		for {
			line, err := buffered.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(conn, strings.ToUpper(line))
		}
	}
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s?command=sh&stdin=true HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"Authorization: Bearer of-the-user\r\nCookie: a=b\r\nImpersonate-User: root\r\nX-Remote-User: root\r\n\r\n", from, host)
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", answer, err)
	}
	if got, want := <-seen, to+"?command=sh&stdin=true [Authorization: Bearer t]"; got != want {
		t.Errorf("the cluster got %s, want %s", got, want)
	}
	for _, word := range []string{"ls", "exit"} {
		fmt.Fprintln(conn, word)
		if line, err := reader.ReadString('\n'); err != nil || line != strings.ToUpper(word)+"\n" {
			t.Fatalf("%q %v", line, err)
		}
	}
}

// TestProxy: a request to a container is passed on with its path, and a redirect to another server is not followed.
func TestProxy(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	f.bind("shop", "web", "east")
	f.pod("east", "shop", "a", "web-1")
	f.streams = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/away") {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
			return
		}
		fmt.Fprintf(w, "%s %v", r.URL.RequestURI(), identityOf(r))
	}
	get := func(path string) (int, string) {
		t.Helper()
		at := f.front("proxy", path)
		answer, err := http.Get(at.String() + "/any?q=1")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	if code, body := get("/status/live"); code != http.StatusOK || body != "/api/v1/namespaces/shop/pods/a/proxy/status/live?q=1 [Authorization: Bearer t]" {
		t.Errorf("%d %s", code, body)
	}
	if code, body := get("/away"); code != http.StatusBadGateway {
		t.Errorf("a redirect: %d %s", code, body)
	}
}

// TestLogs: a log is passed on with its options, and a refusal of the cluster with its reason.
func TestLogs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	f.bind("shop", "web", "east")
	f.pod("east", "shop", "a", "web-1")
	f.streams = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("container") == "none" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			status := apierrors.NewBadRequest("container none is not valid for pod a").Status()
			status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			_ = json.NewEncoder(w).Encode(status)
			return
		}
		fmt.Fprintln(w, r.URL.RequestURI())
	}
	log, err := f.reach.PodLogs(t.Context(), "shop", "a", &corev1.PodLogOptions{Container: "c", Follow: true, Previous: true})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if text, err := io.ReadAll(log); err != nil || string(text) != "/api/v1/namespaces/shop/pods/a/log?container=c&follow=true&previous=true\n" {
		t.Errorf("%s %v", text, err)
	}
	if _, err := f.reach.PodLogs(t.Context(), "shop", "a", &corev1.PodLogOptions{Container: "none"}); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "container none") {
		t.Errorf("%v", err)
	}
	if _, err := f.reach.PodLogs(t.Context(), "shop", "foreign", &corev1.PodLogOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("of another pod: %v", err)
	}
}
