package join

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestCheckAtoll: a server that is not one of Atoll is refused with the remedy, and not with
// the words of the client's rate limiter.
func TestCheckAtoll(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		body   string
		want   []string
	}{
		"another cluster": {http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`,
			[]string{"is not an Atoll server", "--atoll-kubeconfig"}},
		"expired credentials": {http.StatusUnauthorized, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`,
			[]string{"credentials", "expired"}},
		"Atoll": {http.StatusOK, `{"kind":"ClusterList","apiVersion":"fleet.atoll.dev/v1alpha1","items":[]}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tc.status)
				_, _ = w.Write([]byte(tc.body))
			}))
			defer server.Close()
			err := checkAtoll(t.Context(), &rest.Config{Host: server.URL})
			if tc.want == nil && err != nil || tc.want != nil && err == nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "rate") {
					t.Errorf("%v does not contain %q", err, want)
				}
			}
		})
	}
}

// TestCheckAtollOfAnotherName: the address is not one of the names in the server's certificate.
func TestCheckAtollOfAnotherName(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate is for example.com and 127.0.0.1
	defer server.Close()
	err := checkAtoll(t.Context(), &rest.Config{Host: strings.Replace(server.URL, "127.0.0.1", "localhost", 1), TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}})
	if err == nil || !strings.Contains(err.Error(), "--tls-name localhost") || !strings.Contains(err.Error(), "example.com") {
		t.Error(err)
	}
}
