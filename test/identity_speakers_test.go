package test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A speaker sends requests with one identity.
type speaker struct {
	client *http.Client
	host   string
}

func (f *fixture) speaker(t *testing.T, cluster string, config *rest.Config) *speaker {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &speaker{client, config.Host}
}

// onPort returns a client that calls Atoll on a port, as members do, with a client certificate or without.
func (f *fixture) onPort(t *testing.T, address string, certificate *tls.Certificate) *speaker {
	t.Helper()
	authority, err := os.ReadFile(filepath.Join(f.dir, "atoll", "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	config := &tls.Config{RootCAs: roots, ServerName: "atoll.atoll-system.svc", MinVersion: tls.VersionTLS12}
	if certificate != nil {
		// Shown whatever authorities the server asks for.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &speaker{&http.Client{Transport: transport, Timeout: 10 * time.Second}, "https://" + address}
}

// do sends a request. A header that is given twice is sent twice.
func (s *speaker) do(t *testing.T, method, path string, headers ...string) (int, string) {
	t.Helper()
	var body io.Reader
	if method == http.MethodPost {
		kind := "Caller"
		if path == letters {
			kind = "Letter"
		}
		body = strings.NewReader(fmt.Sprintf(`{"apiVersion":"identity.test.atoll.dev/v1","kind":%q,"metadata":{"name":"a"}}`, kind))
	}
	request, err := http.NewRequestWithContext(t.Context(), method, s.host+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	response, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

func (s *speaker) create(t *testing.T, path string, headers ...string) (int, string) {
	t.Helper()
	return s.do(t, http.MethodPost, path, headers...)
}

// caller is a user as Atoll authenticates it.
type caller struct {
	user   string
	groups []string // sorted
	uid    string
	extra  string
}

// who returns the user as which Atoll authenticates the speaker.
func (s *speaker) who(t *testing.T, headers ...string) (caller, bool) {
	t.Helper()
	code, body := s.create(t, callers, headers...)
	var status metav1.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		t.Errorf("%d %s: %v", code, body, err)
		return caller{}, false
	}
	_, said, ok := strings.Cut(status.Message, "caller ")
	parts := strings.Split(said, "|")
	if !ok || len(parts) < 4 {
		t.Errorf("%d %s", code, body)
		return caller{}, false
	}
	groups := strings.Split(parts[1], ",")
	slices.Sort(groups)
	return caller{parts[0], groups, parts[2], parts[3]}, true
}

// tokenOf is a token of service account ctl.
func (f *fixture) tokenOf(t *testing.T, cluster string) string {
	t.Helper()
	token, err := f.client(t, cluster).CoreV1().ServiceAccounts("ops").CreateToken(t.Context(), "ctl", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// administrator is the certificate of Atoll's.
func (f *fixture) administrator(t *testing.T) tls.Certificate {
	t.Helper()
	config := f.rest(t, "atoll")
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(bytes.TrimSpace(config.CertData), bytes.TrimSpace(config.KeyData))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// memberAddress is where members call Atoll, as they have been told.
func (f *fixture) memberAddress(t *testing.T) string {
	t.Helper()
	slices, err := f.client(t, "north").DiscoveryV1().EndpointSlices("atoll-system").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=atoll"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			return net.JoinHostPort(e.Addresses[0], fmt.Sprint(*s.Ports[0].Port))
		}
	}
	t.Fatal("north has not been told where Atoll is")
	return ""
}
