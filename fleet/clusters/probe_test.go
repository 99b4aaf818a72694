package clusters

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestFailureThreshold: y is a probe that finds the cluster ready, n one that does not, and w one that
// finds another cluster.
func TestFailureThreshold(t *testing.T) {
	tests := []struct {
		name, probes string
		presumed     bool
		want         string // the health after each probe: y, n, or ? for none yet
	}{
		{"the first probe counts", "n", false, "n"},
		{"one failure does not count", "ynyny", false, "yyyyy"},
		{"three in a row count", "ynnn", false, "yyyn"},
		{"one success is enough", "ynnny", false, "yyyny"},
		{"the same threshold for a new leader", "nnn", true, "??n"},
		{"a success of a new leader counts", "ynn", true, "yyy"},
		{"another cluster counts at once", "ywy", false, "yny"},
		{"another cluster, with a new leader", "w", true, "n"},
	}
	for _, tt := range tests {
		h := health{assumedReady: tt.presumed}
		got := ""
		for i, p := range tt.probes {
			r := result{at: time.Unix(int64(i+1), 0), ready: p == 'y', reason: v1alpha1.ReasonClusterUnreachable}
			switch p {
			case 'y':
				r.reason = v1alpha1.ReasonClusterReady
			case 'w':
				r.reason = v1alpha1.ReasonWrongCluster
			}
			h.add(r)
			switch {
			case h.last.at.IsZero():
				got += "?"
			case h.last.ready:
				got += "y"
			default:
				got += "n"
			}
			if !h.probed.Equal(r.at) {
				t.Errorf("%s: probe %d is not recorded", tt.name, i)
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s gives %s, want %s", tt.name, tt.probes, got, tt.want)
		}
	}
}

// handler answers like a member: with this response to everything except its identity.
func handler(status int, body, id string) http.HandlerFunc {
	answers := map[string]string{
		"/version":                       `{"gitVersion":"v1.2.3"}`,
		"/api/v1/namespaces/kube-system": `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"` + id + `"}}`,
	}
	return func(w http.ResponseWriter, r *http.Request) {
		code, said := status, body
		if a, ok := answers[r.URL.Path]; ok {
			code, said = http.StatusOK, a
		}
		w.Header().Set("Content-Type", "application/json")
		if code == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(said))
	}
}

// TestProbe covers the possible problems of a member and of the connection to it: each has a
// reason, and a message with the remedy.
func TestProbe(t *testing.T) {
	now := time.Now()
	authority := newAuthority(t)
	good := authority.sign(t, now.Add(-time.Hour), now.Add(time.Hour))
	expired, early := authority.sign(t, now.Add(-2*time.Hour), now.Add(-time.Hour)), authority.sign(t, now.Add(time.Hour), now.Add(2*time.Hour))
	gone := httptest.NewServer(nil)
	gone.Close()
	plain := httptest.NewServer(nil)
	defer plain.Close()
	tests := []struct {
		name   string
		status int
		body   string
		id     string
		serves tls.Certificate
		trusts *authorityOf
		// requires is the authority of client certificates.
		requires *authorityOf
		change   func(*rest.Config)
		ready    bool
		reason   string
		says     []string
	}{
		{name: "ready", status: 200, body: "ok", ready: true, reason: v1alpha1.ReasonClusterReady, says: []string{"ready"}},
		{name: "not ready", status: 500, body: "[-]etcd failed", reason: v1alpha1.ReasonClusterNotReady, says: []string{"(code 500; failed checks: etcd)", "/readyz?verbose"}},
		{name: "any other text", status: 500, body: "<b>come to http://evil.example</b>\n[-]" + strings.Repeat("x", 200) + " failed\n[-]a/b failed: see http://evil.example", reason: v1alpha1.ReasonClusterNotReady,
			says: []string{"(code 500; failed checks: a/b)"}},
		{name: "many failed checks", status: 500, body: strings.Repeat("[-]a failed: reason withheld\n", 9), reason: v1alpha1.ReasonClusterNotReady, says: []string{"failed checks: a, a, a, a, a and more)"}},
		{name: "an answer without an end", status: 200, body: strings.Repeat("ok", 1<<20), reason: v1alpha1.ReasonInvalidKubeConfig, says: []string{"the answer to /readyz is longer", "atoll join"}},
		{name: "a redirect", status: 302, reason: v1alpha1.ReasonInvalidKubeConfig, says: []string{"the answer to /readyz is a redirect, which is not followed", "atoll join"}},
		{name: "a name that is a command", status: 200, id: "x; reboot", reason: v1alpha1.ReasonClusterNotReady, says: []string{"kube-system", "check the address"}},
		{name: "a token that does not count", status: 401, reason: v1alpha1.ReasonInvalidKubeConfig, says: []string{"credentials", "atoll join"}},
		{name: "a client certificate that expired", status: 401, change: func(c *rest.Config) { c.CertData, c.KeyData = files(t, expired) },
			reason: v1alpha1.ReasonInvalidKubeConfig, says: []string{"client certificate", "expired at", "atoll join"}},
		{name: "a client certificate that will soon", status: 200, change: func(c *rest.Config) { c.CertData, c.KeyData = files(t, good) },
			ready: true, reason: v1alpha1.ReasonClusterReady, says: []string{"expires at", "atoll join"}},
		{name: "forbidden", status: 403, reason: v1alpha1.ReasonInvalidKubeConfig, says: []string{"grant", "system:monitoring"}},
		{name: "another authority than the kubeconfig's", status: 200, trusts: newAuthority(t), reason: v1alpha1.ReasonInvalidKubeConfig,
			says: []string{"not signed by the authority in the kubeconfig", "atoll join"}},
		{name: "a certificate for other names", status: 200, change: func(c *rest.Config) { c.ServerName = "elsewhere.example.org" },
			reason: v1alpha1.ReasonInvalidKubeConfig, says: []string{"elsewhere.example.org", "tls-server-name", "atoll join"}},
		{name: "a server certificate that expired", status: 200, serves: expired, reason: v1alpha1.ReasonInvalidServerCertificate,
			says: []string{"API server expired at", "renew it there"}},
		{name: "a server certificate of tomorrow", status: 200, serves: early, reason: v1alpha1.ReasonInvalidServerCertificate, says: []string{"clocks"}},
		{name: "an overloaded API server", status: 503, body: `{"kind":"Status","apiVersion":"v1","status":"Failure"}`, reason: v1alpha1.ReasonClusterNotReady, says: []string{"/readyz?verbose"}},
		{name: "an API server that stops", status: 503, body: "[-]shutdown failed", reason: v1alpha1.ReasonClusterNotReady, says: []string{"failed checks: shutdown"}},
		{name: "too many requests", status: 429, reason: v1alpha1.ReasonClusterNotReady, says: []string{"/readyz?verbose"}},
		{name: "a load balancer without an API server", status: 503, body: "<html>no backend</html>", reason: v1alpha1.ReasonClusterUnreachable, says: []string{"load balancer", "503"}},
		{name: "a proxy without an API server", status: 502, reason: v1alpha1.ReasonClusterUnreachable, says: []string{"proxy", "502"}},
		{name: "a client certificate that the server refuses", status: 200, requires: newAuthority(t), change: func(c *rest.Config) { c.CertData, c.KeyData = files(t, good) },
			reason: v1alpha1.ReasonInvalidKubeConfig, says: []string{"refuses the TLS connection", "atoll join"}},
		{name: "a server without TLS", change: func(c *rest.Config) { c.Host = "https://" + plain.Listener.Addr().String() }, reason: v1alpha1.ReasonInvalidKubeConfig,
			says: []string{"does not speak TLS", "clusters[].cluster.server"}},
		{name: "no such host", change: func(c *rest.Config) { c.Host = "https://no-such-host.invalid:6443" }, reason: v1alpha1.ReasonClusterUnreachable,
			says: []string{"no-such-host.invalid", "clusters[].cluster.server"}},
		{name: "nobody there", change: func(c *rest.Config) { c.Host = gone.URL }, reason: v1alpha1.ReasonClusterUnreachable,
			says: []string{"nothing listens at", "start the cluster's API server"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(handler(tt.status, tt.body, cmp.Or(tt.id, "id-1")))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			if tt.serves.Certificate == nil {
				tt.serves = good
			}
			server.TLS = &tls.Config{Certificates: []tls.Certificate{tt.serves}}
			if tt.requires != nil {
				server.TLS.ClientAuth, server.TLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
				server.TLS.ClientCAs.AddCert(tt.requires.certificate)
			}
			server.StartTLS()
			defer server.Close()
			if tt.trusts == nil {
				tt.trusts = authority
			}
			cfg := &rest.Config{Host: server.URL, BearerToken: "swordfish", TLSClientConfig: rest.TLSClientConfig{CAData: tt.trusts.pem}}
			if tt.change != nil {
				tt.change(cfg)
			}
			p, err := newProber(cfg, renewPush)
			if err != nil {
				t.Fatal(err)
			}
			r := p.probe(context.Background(), result{}, false, now)
			if r.ready != tt.ready || r.reason != tt.reason {
				t.Errorf("%+v; want %s", r, tt.reason)
			}
			for _, words := range tt.says {
				if !strings.Contains(r.message, words) {
					t.Errorf("message %q lacks %q", r.message, words)
				}
			}
			if strings.Contains(r.message, "evil.example") {
				t.Errorf("the message contains what the server sent: %s", r.message)
			}
			if strings.Contains(r.message, "swordfish") || strings.Contains(r.message, "PRIVATE") {
				t.Errorf("message contains a secret: %s", r.message)
			}
			if tt.ready && (r.version != "v1.2.3" || r.id != "id-1") {
				t.Errorf("%+v, want version and id", r)
			}
			// Equal problems have equal messages, because each change is a write.
			if again := p.probe(context.Background(), r, false, now); again.message != r.message {
				t.Errorf("message %q, and then %q", r.message, again.message)
			}
		})
	}
}

// TestSilentMember: the member accepts connections and does not answer.
func TestSilentMember(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	p, err := newProber(&rest.Config{Host: "https://" + listener.Addr().String()}, renewPush)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r := p.probe(ctx, result{}, false, time.Now())
	if r.reason != v1alpha1.ReasonClusterUnreachable || !strings.Contains(r.message, "check the network") {
		t.Errorf("%+v", r)
	}
}

// TestSlowMember: the member accepts connections and answers too late. It is alive, whatever became of the connection
// that its probes use.
func TestSlowMember(t *testing.T) {
	authority := newAuthority(t)
	ends := make(chan struct{})
	slow := false
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow {
			<-ends
		}
		handler(http.StatusOK, "ok", "id-1")(w, r)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{authority.sign(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))}}
	server.StartTLS()
	defer server.Close()
	defer close(ends)
	p, err := newProber(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority.pem}}, renewPush)
	if err != nil {
		t.Fatal(err)
	}
	if r := p.probe(t.Context(), result{}, false, time.Now()); !r.ready {
		t.Fatalf("%+v", r)
	}
	slow, p.testAfter = true, 0
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if r := p.probe(ctx, result{}, false, time.Now()); r.reason != v1alpha1.ReasonClusterSlow || !strings.Contains(r.message, "overloaded") {
		t.Errorf("%+v", r)
	}
}

// TestUnreachableSince: the time of an unreachable cluster begins when no connection can be made, and not when it was
// last Ready.
func TestUnreachableSince(t *testing.T) {
	at := func(minutes int) metav1.Time {
		return metav1.NewTime(time.Unix(0, 0).Add(time.Duration(minutes) * time.Minute))
	}
	cluster, was := &v1alpha1.Cluster{}, (*metav1.Condition)(nil)
	for i, step := range []struct {
		reason string
		want   int // minutes; -1 for none
	}{
		{v1alpha1.ReasonClusterReady, -1}, {v1alpha1.ReasonInvalidKubeConfig, -1}, {v1alpha1.ReasonClusterUnreachable, 2}, {v1alpha1.ReasonClusterUnreachable, 2},
		{v1alpha1.ReasonClusterSlow, -1}, {v1alpha1.ReasonClusterUnreachable, 5}, {v1alpha1.ReasonClusterReady, -1}, {v1alpha1.ReasonClusterUnreachable, 7},
	} {
		is := &metav1.Condition{Status: metav1.ConditionFalse, Reason: step.reason}
		if step.reason == v1alpha1.ReasonClusterReady {
			is.Status = metav1.ConditionTrue
		}
		got := unreachableSince(cluster, was, is, at(i))
		if step.want < 0 && got != nil || step.want >= 0 && (got == nil || !got.Time.Equal(at(step.want).Time)) {
			t.Errorf("step %d, %s: unreachable since %v, want minute %d", i, step.reason, got, step.want)
		}
		cluster.Status.UnreachableSince, was = got, is
	}
	earlier := &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonClusterUnreachable, LastTransitionTime: at(1)}
	if got := unreachableSince(&v1alpha1.Cluster{}, earlier, earlier, at(9)); got == nil || !got.Time.Equal(at(1).Time) {
		t.Errorf("a status of an earlier version: unreachable since %v", got)
	}
}

// authorityOf is a certificate authority.
type authorityOf struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T) *authorityOf {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authorityOf{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// sign issues a certificate for 127.0.0.1, for servers and clients.
func (a *authorityOf) sign(t *testing.T, from, to time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "member"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// files returns a certificate and its key as in a kubeconfig.
func files(t *testing.T, c tls.Certificate) (certificate, key []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// TestProbeReadsVersion: a probe reads the version only when it may have changed, and the ID
// always.
func TestProbeReadsVersion(t *testing.T) {
	const ns = "/api/v1/namespaces/kube-system"
	id, version := "id-1", "v1.2.4"
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == ns {
			_, _ = fmt.Fprintf(w, `{"metadata":{"uid":%q}}`, id)
			return
		}
		_, _ = fmt.Fprintf(w, `{"gitVersion":%q}`, version)
	}))
	defer server.Close()
	p, err := newProber(&rest.Config{Host: server.URL}, renewPush)
	if err != nil {
		t.Fatal(err)
	}
	known := result{ready: true, version: "v1.2.3", id: "id-1"}
	if r := p.probe(t.Context(), known, false, time.Now()); !r.ready || r.version != "v1.2.3" || r.id != "id-1" || !slices.Equal(asked, []string{"/readyz", ns}) {
		t.Errorf("%+v after %v", r, asked)
	}
	if r := p.probe(t.Context(), known, true, time.Now()); !r.ready || r.version != "v1.2.4" || len(asked) != 5 {
		t.Errorf("%+v after %v", r, asked)
	}
	for _, invalid := range []string{"", "come to http://evil.example", "v1.2" + strings.Repeat("x", 200), "v1.2\nx", "1.2.3"} {
		version = invalid
		if r := p.probe(t.Context(), known, true, time.Now()); r.ready || r.reason != v1alpha1.ReasonClusterNotReady || r.message != errNoVersion.Error() {
			t.Errorf("version %q: %+v", invalid, r)
		}
	}
	for _, valid := range []string{"v1.36.3+k3s1", "v1.31.0-gke.100", "v0.0.0-master+$Format:%H$", "v1.2.4"} {
		version = valid
		if r := p.probe(t.Context(), known, true, time.Now()); !r.ready || r.version != valid {
			t.Errorf("version %q: %+v", valid, r)
		}
	}
	asked = make([]string, 5)
	id = "id-2"
	if r := p.probe(t.Context(), known, false, time.Now()); r.version != "v1.2.4" || r.id != "id-2" || len(asked) != 8 {
		t.Errorf("%+v after %v", r, asked)
	}
}
