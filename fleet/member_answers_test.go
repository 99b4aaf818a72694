package fleet

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// endless writes until the client does not read any more, and returns how much that was.
func endless(w http.ResponseWriter, event string) (sent int64) {
	chunk := []byte(event + strings.Repeat("x", 64<<10))
	for {
		n, err := w.Write(chunk)
		if sent += int64(n); err != nil {
			return sent
		}
	}
}

// TestAnswersAreBounded: an answer without an end ends with an error, for each kind of request. Answers of usual length, and
// watches for however long, are read as they are.
func TestAnswersAreBounded(t *testing.T) {
	sent := make(chan int64, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("answer") {
		case "endless":
			sent <- endless(w, "")
		case "events":
			for i := range 3000 { // more than one event may have, in all
				fmt.Fprintf(w, "{%d: %q}\n", i, strings.Repeat("x", 16<<10))
			}
		case "redirect":
			http.Redirect(w, r, "/version", http.StatusTemporaryRedirect)
		default:
			_, _ = w.Write([]byte(strings.Repeat("x", 100<<10)))
		}
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL}
	BoundAnswers(cfg)
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path  string
		bound int64 // 0: all of it is read
		words string
	}{
		{"/readyz?answer=endless", maxCheck, "the answer to /readyz is longer"},
		{"/k8s/clusters/c-1/version?answer=endless", maxCheck, "/version is longer"},
		{"/openapi/v3?answer=endless", maxDiscovery, "/openapi/v3 is longer"},
		{"/apis/apps/v1?answer=endless", maxDiscovery, "/apis/apps/v1 is longer"},
		{"/api/v1?answer=endless", maxDiscovery, "/api/v1 is longer"},
		{"/api/v1/namespaces/kube-system?answer=endless", maxObject, "/api/v1/namespaces/kube-system is longer"},
		{"/api/v1/pods?watch=true&answer=endless", maxObject, "an event of the cluster is longer"},
		{"/api/v1/pods?watch=1&answer=events", 0, ""},
		{"/readyz", 0, ""},
		{"/api/v1/nodes?answer=redirect", 0, "is a redirect, which is not followed"},
	} {
		read, err := get(client, server.URL+tt.path)
		if tt.words == "" {
			if err != nil || read < 100<<10 {
				t.Errorf("%s: %d bytes, %v", tt.path, read, err)
			}
			continue
		}
		var refused AnswerError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %d bytes, %v", tt.path, read, err)
		}
		if tt.bound == 0 {
			continue
		}
		if n := <-sent; read > tt.bound || n > tt.bound+(8<<20) { // what connections buffer
			t.Errorf("%s: %d bytes were sent, and %d read", tt.path, n, read)
		}
	}
	for path, want := range map[string]int64{
		"/api/v1/namespaces/a/configmaps": maxAnswer, "/api/v1/namespaces": maxAnswer, "/apis/apps/v1/deployments": maxAnswer, "/apis/apps/v1/namespaces/a/deployments": maxAnswer,
		"/api/v1/namespaces/a": maxObject, "/api/v1/namespaces/a/configmaps/b": maxObject, "/api/v1/nodes/n": maxObject, "/k8s/clusters/c-1/apis/apps/v1/namespaces/a/deployments/b/scale": maxObject,
		"/api": maxDiscovery, "/apis": maxDiscovery, "/apis/apps": maxDiscovery, "/openapi/v3/apis/apps/v1": maxDiscovery, "/": maxDiscovery,
		"/apis/fleet.atoll.dev/v1alpha1/clusters/east/proxy/api/v1/pods": maxAnswer, "/apis/fleet.atoll.dev/v1alpha1/clusters/east/proxy/api/v1/nodes/n": maxObject,
		"/apis/fleet.atoll.dev/v1alpha1/clusters/east/proxy/version": maxCheck, "/apis/fleet.atoll.dev/v1alpha1/clusters": maxAnswer,
	} {
		if got := boundOf(path); got != want {
			t.Errorf("the answer to %s may have %d bytes, want %d", path, got, want)
		}
	}
}

func get(client *http.Client, url string) (int64, error) {
	answer, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	return io.Copy(io.Discard, answer.Body)
}

// TestMembersHaveTLS: a kubeconfig without TLS is refused, unless it leads to this machine.
func TestMembersHaveTLS(t *testing.T) {
	for server, want := range map[string]string{
		"https://10.0.0.1:6443":     "",
		"http://127.0.0.1:8080":     "",
		"http://localhost:8080":     "",
		"http://[::1]:8080":         "",
		"http://10.0.0.1:8080":      "its address http://10.0.0.1:8080 has no TLS",
		"10.0.0.1:8080":             "has no TLS",
		"http://east.example.com/x": "set clusters[].cluster.server to an https:// URL",
	} {
		_, err := MemberConfig(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{"token":"t"}}]}`, server))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", server, err)
		}
	}
}
