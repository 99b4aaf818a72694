package cli

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestServerOfAnotherName: the syncer of a cluster could not connect to a name that the certificate of the
// servers lacks. httptest's is for example.com and 127.0.0.1.
func TestServerOfAnotherName(t *testing.T) {
	atoll := httptest.NewTLSServer(http.NotFoundHandler())
	defer atoll.Close()
	config := &rest.Config{Host: atoll.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: atoll.Certificate().Raw})}}
	for server, want := range map[string]string{
		"https://example.com:6443":   "",
		atoll.URL:                    "",
		"https://atoll.invalid:6443": "--tls-name atoll.invalid",
		"https://192.0.2.1:6443":     "not valid for 192.0.2.1",
		"https://atoll.invalid":      "example.com",
	} {
		u, err := url.Parse(server)
		if err != nil {
			t.Fatal(err)
		}
		err = checkServerName(t.Context(), config, u)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", server, err, want)
		}
	}
	gone := *config
	gone.Host = "https://127.0.0.1:1"
	if err := checkServerName(t.Context(), &gone, &url.URL{Scheme: "https", Host: "atoll.invalid"}); err != nil {
		t.Errorf("nothing is known, but %v", err)
	}
}
