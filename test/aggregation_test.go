package test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/atoll-dev/atoll/playground/keys"
)

// A member hands requests for a group that it aggregates to the server behind
// it, and vouches for their users with its front proxy's certificate: users of
// its own, and each of its controllers.
func TestAMemberAggregates(t *testing.T) {
	f := whole(t)
	server := startAggregated(t)
	host, port, err := net.SplitHostPort(server.address)
	if err != nil {
		t.Fatal(err)
	}
	manifest := fmt.Sprintf(aggregatedManifest, host, port, base64.StdEncoding.EncodeToString(server.authority))
	if _, err := f.tryKubectl(t.Context(), "east", manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The namespace goes last: none can while a group in discovery does not answer.
		for _, kinds := range []string{"apiservice/v1.echo.test.atoll.dev", "clusterrole/echo clusterrolebinding/echo namespace/echo namespace/echo-work"} {
			args := append([]string{"delete", "--ignore-not-found"}, strings.Fields(kinds)...)
			if _, err := f.tryKubectl(context.Background(), "east", "", args...); err != nil {
				t.Error(err)
			}
		}
	})
	f.kubectl(t, "east", "wait", "apiservice/v1.echo.test.atoll.dev", "--for=condition=Available", "--timeout=60s")

	// Wait for the APIService to become Available before any request is sent through it.
	eventually(t, 30*time.Second, "the member passes requests on", func(ctx context.Context) error {
		_, err := f.tryKubectl(ctx, "east", "", "get", "--raw", "/apis/echo.test.atoll.dev/v1/namespaces/echo/echoes")
		return err
	})

	// What such a server is to verify proxies by, as the member tells.
	published, err := f.client(t, "east").CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	frontProxies := x509.NewCertPool()
	if !frontProxies.AppendCertsFromPEM([]byte(published.Data["requestheader-client-ca-file"])) {
		t.Fatalf("the member publishes no authority of its front proxy: %v", published.Data)
	}
	var names []string
	if err := json.Unmarshal([]byte(published.Data["requestheader-allowed-names"]), &names); err != nil || !slices.Equal(names, []string{keys.FrontProxyName}) {
		t.Errorf("published names %v, error %v", names, err)
	}

	t.Run("for a user", func(t *testing.T) {
		config := f.rest(t, "east")
		config.Impersonate = rest.ImpersonationConfig{UserName: "alice", Groups: []string{"crew"}, Extra: map[string][]string{"team": {"ops"}}}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		const path = "/apis/echo.test.atoll.dev/v1/namespaces/echo/echoes"
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		// Only the member says who it is.
		request.Header.Set("X-Remote-User", "mallory")
		request.Header.Set("X-Remote-Group", "system:masters")
		request.Header.Set("X-Remote-Extra-Team", "mallory")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s (%v)", response.Status, body, err)
		}
		got := server.find(func(r seen) bool { return r.path == path })
		if got == nil {
			t.Fatal("the server behind has not seen the request")
		}
		for header, want := range map[string][]string{
			"X-Remote-User":       {"alice"},
			"X-Remote-Group":      {"crew", "system:authenticated"},
			"X-Remote-Extra-Team": {"ops"},
		} {
			if values := got.header.Values(header); !slices.Equal(values, want) {
				t.Errorf("%s is %q, not %q", header, values, want)
			}
		}
		wantFrontProxy(t, got, frontProxies)
	})

	// The trap: a namespace that is deleted in one member asks for the deletion of
	// everything in the namespace of that name, shared or not.
	t.Run("for a controller", func(t *testing.T) {
		f.kubectl(t, "east", "create", "namespace", "echo-work")
		f.kubectl(t, "east", "delete", "namespace", "echo-work", "--timeout=60s")
		got := server.find(func(r seen) bool {
			return r.method == http.MethodDelete && r.path == "/apis/echo.test.atoll.dev/v1/namespaces/echo-work/echoes"
		})
		if got == nil {
			t.Fatal("the namespace controller has not requested the deletion of the namespace's objects")
		}
		if user := got.header.Values("X-Remote-User"); !slices.Equal(user, []string{"system:serviceaccount:kube-system:namespace-controller"}) {
			t.Errorf("X-Remote-User is %q", user)
		}
		wantFrontProxy(t, got, frontProxies)
	})
}

func wantFrontProxy(t *testing.T, request *seen, authorities *x509.CertPool) {
	t.Helper()
	if len(request.certificates) == 0 {
		t.Fatal("the member has shown no certificate")
	}
	leaf := request.certificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: authorities, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("the member's certificate: %v", err)
	}
	if leaf.Subject.CommonName != keys.FrontProxyName {
		t.Errorf("the member's certificate is of %q", leaf.Subject.CommonName)
	}
}

// aggregatedManifest takes the server's address and port, and its authority.
const aggregatedManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: echo}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: echo}
spec:
  ports: [{name: https, port: 443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: echo
  namespace: echo
  labels: {kubernetes.io/service-name: echo}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: https, port: %s}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.echo.test.atoll.dev}
spec:
  group: echo.test.atoll.dev
  version: v1
  groupPriorityMinimum: 2000
  versionPriority: 10
  service: {namespace: echo, name: echo}
  caBundle: %s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: echo}
rules: [{apiGroups: [echo.test.atoll.dev], resources: ["*"], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: echo}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: echo}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

// aggregated is an API server of one group with one resource that has no objects. It trusts every caller's
// headers and records them.
type aggregated struct {
	address   string
	authority []byte

	mu       sync.Mutex
	requests []seen
}

type seen struct {
	method, path string
	header       http.Header
	certificates []*x509.Certificate
}

func startAggregated(t *testing.T) *aggregated {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(addressForEndpoints(t), "0"))
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("echo.echo.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	a := &aggregated{address: listener.Addr().String(), authority: certificate}
	server := &http.Server{
		Handler:   a,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeTLS(listener, "", "") // until closed
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return a
}

// addressForEndpoints is an address of this machine that a member takes as one
// of a Service: Kubernetes refuses loopback there.
func addressForEndpoints(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	t.Fatal("this machine has no IPv4 address but loopback, which no EndpointSlice may have: give it one, as with `ip addr add 192.0.2.2/32 dev lo`")
	return ""
}

func (a *aggregated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.requests = append(a.requests, seen{r.Method, r.URL.Path, r.Header.Clone(), r.TLS.PeerCertificates})
	a.mu.Unlock()
	const root = "/apis/echo.test.atoll.dev/v1"
	var answer any
	switch {
	case r.URL.Path == root:
		answer = metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
			GroupVersion: "echo.test.atoll.dev/v1",
			// Without the verb watch, so that controllers do not retry watches.
			APIResources: []metav1.APIResource{{Name: "echoes", SingularName: "echo", Kind: "Echo", Namespaced: true, Verbs: []string{"delete", "deletecollection", "list"}}},
		}
	case strings.HasPrefix(r.URL.Path, root+"/") && r.Method == http.MethodGet:
		answer = map[string]any{
			"apiVersion": "echo.test.atoll.dev/v1", "kind": "EchoList",
			"metadata": metav1.ListMeta{ResourceVersion: "1"}, "items": []any{},
		}
	case strings.HasPrefix(r.URL.Path, root+"/") && r.Method == http.MethodDelete:
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// find returns the last request that the condition holds for, or nil.
func (a *aggregated) find(condition func(seen) bool) *seen {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range slices.Backward(a.requests) {
		if condition(r) {
			return &r
		}
	}
	return nil
}
