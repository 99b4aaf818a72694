package view

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// authority signs syncers, as a server does.
type authority struct {
	t   *testing.T
	key *ecdsa.PrivateKey
}

// sign makes a certificate of east's syncer that has some of its time behind it.
func (a *authority) sign(key crypto.PublicKey, credential string, age, left time.Duration) []byte {
	a.t.Helper()
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()),
		Subject:   pkix.Name{CommonName: v1alpha1.SyncerUser("east"), Organization: []string{v1alpha1.SyncersGroup, v1alpha1.CredentialGroupPrefix + credential}},
		NotBefore: now.Add(-age), NotAfter: now.Add(left), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		&x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}}, key, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// remote is a Remote of east over HTTPS to a stage. front, if not nil, answers in the
// place of the stage.
type remote struct {
	*Remote
	server *httptest.Server
	kept   chan []byte
	front  atomic.Pointer[http.HandlerFunc]
}

func (s *stage) remote(age, left time.Duration) *remote {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	ca := &authority{s.t, key}
	s.host.cfg.Sign = func(_, credential string, r *x509.CertificateRequest) ([]byte, error) {
		return ca.sign(r.PublicKey, credential, 0, 24*time.Hour), nil
	}
	out := &remote{kept: make(chan []byte, 1)}
	out.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if front := out.front.Load(); front != nil {
			(*front)(w, r)
			return
		}
		subject := r.TLS.PeerCertificates[0].Subject
		s.host.Serve(w, r, Caller{subject.CommonName, subject.Organization})
	}))
	out.server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	out.server.EnableHTTP2 = true
	out.server.StartTLS()

	private, request, err := NewKey("east")
	if err != nil {
		s.t.Fatal(err)
	}
	parsed, err := readRequest(string(request))
	if err != nil {
		s.t.Fatal(err)
	}
	trust := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: out.server.Certificate().Raw})
	kubeconfig, err := Kubeconfig(out.server.URL, "east", trust, ca.sign(parsed.PublicKey, "good", age, left), private)
	if err != nil {
		s.t.Fatal(err)
	}
	out.Remote, err = NewRemote(RemoteConfig{Kubeconfig: kubeconfig, Log: slog.New(slog.DiscardHandler),
		Keep: func(_ context.Context, k []byte) error { out.kept <- k; return nil }})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = out.Run(ctx) }()
	s.t.Cleanup(func() { stop(); <-done; out.server.CloseClientConnections(); out.server.Close() })
	return out
}

func (r *remote) await(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := r.Await(ctx); err != nil {
		t.Fatal("the view is not read: ", err)
	}
}

func soon(t *testing.T, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not: " + what)
		}
	}
}

func keyTo(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: "secret-" + name}
}

// A remote view says what the local one says.
func TestARemoteViewIsTheLocalOne(t *testing.T) {
	s := open(t, secret("one"), bind("one", "east", "west"), secret("two"), bind("two", "west"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	term, release, err := s.host.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	local := Of(term.term, "east")

	if c, ok := r.Cluster(); !ok || c.Name != "east" || len(r.Bindings()) != 1 {
		t.Fatalf("cluster %v, %d bindings", c, len(r.Bindings()))
	}
	b, ok := r.Binding(keyTo("one"))
	if !ok || len(b.Spec.Clusters) != 1 || len(b.Status.Clusters) != 1 || b.UID != "uid-binding-one" {
		t.Fatalf("binding: %+v", b)
	}
	whole, _ := local.Binding(keyTo("one"))
	want, wantSource, _, err := local.Desired(t.Context(), whole, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, source, ok, err := r.Desired(t.Context(), b, nil)
	if err != nil || !ok || digest(got.Object) != digest(want.Object) || source != wantSource {
		t.Errorf("desired: %v %v %+v, want %v", err, ok, got, want)
	}
	here, _ := local.KindOf(whole)
	if there, ok := r.KindOf(b); !ok || there.GVR() != here.GVR() {
		t.Errorf("kind: %v, want %v", there.GVR(), here.GVR())
	}
	if ns, ok := r.Namespace("shop"); !ok || ns.GetName() != "shop" {
		t.Errorf("namespace: %v", ns)
	}
	if gone, err := r.NamespaceGone(t.Context(), "shop"); gone || err != nil {
		t.Errorf("namespace gone: %v %v", gone, err)
	}
	if err := s.kube.CoreV1().Namespaces().Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if gone, err := r.NamespaceGone(t.Context(), "shop"); !gone || err != nil {
		t.Errorf("namespace gone: %v %v", gone, err)
	}
	if _, err := r.NamespaceGone(t.Context(), "other"); err == nil {
		t.Error("it may ask about any namespace")
	}
	if err := r.Report(t.Context(), b, &v1alpha1.ClusterState{Name: "east", Health: v1alpha1.Healthy}); err != nil {
		t.Error(err)
	}
}

// A lost connection changes nothing, and what changed meanwhile is heard of after it.
func TestALostConnectionTakesNothingAway(t *testing.T) {
	s := open(t, secret("one"), bind("one", "east"), secret("two"), bind("two", "east"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	heard := make(chan types.NamespacedName, 100)
	defer r.Subscribe(func(key types.NamespacedName) { heard <- key })()
	nobody := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) })
	r.front.Store(&nobody)
	r.server.CloseClientConnections()
	s.control1(v1alpha1.ResourceBindingResource, "shop", bind("two", "west"), "update")
	b, _ := r.Binding(keyTo("two"))
	for range 3 {
		if now, _, err := r.Leaving(t.Context(), b); now != nil || err == nil {
			t.Errorf("an answer that is no view's: %v %v", now, err)
		}
	}
	if len(r.Bindings()) != 2 {
		t.Errorf("%d bindings are left", len(r.Bindings()))
	}
	r.front.Store(nil)
	soon(t, "what went meanwhile is gone", func() bool { return len(r.Bindings()) == 1 })
	soon(t, "it is told", func() bool { return len(heard) > 2 })
}

// Only a view that says so of this very object has it deleted.
func TestWhatIsNoReasonToDelete(t *testing.T) {
	s := open(t, secret("one"), bind("one", "east"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	b, _ := r.Binding(keyTo("one"))
	s.control1(corev1.SchemeGroupVersion.WithResource("secrets"), "shop", secret("one"), "delete")
	for what, answer := range map[string]string{
		"empty":           ``,
		"nothing":         `{}`,
		"another binding": `{"kind":"BoundObject","metadata":{"uid":"other"},"spec":{"resource":{"uid":"uid-one"}},"leaves":true}`,
		"another object":  `{"kind":"BoundObject","metadata":{"uid":"uid-binding-one"},"spec":{"resource":{"uid":"other"}},"leaves":true}`,
		"another kind":    `{"kind":"Other","metadata":{"uid":"uid-binding-one"},"spec":{"resource":{"uid":"uid-one"}},"leaves":true}`,
		"that it stays":   `{"kind":"BoundObject","metadata":{"uid":"uid-binding-one"},"spec":{"resource":{"uid":"uid-one"}}}`,
	} {
		says := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
		r.front.Store(&says)
		if now, _, _ := r.Leaving(t.Context(), b); now != nil {
			t.Errorf("%s is taken for a reason", what)
		}
	}
	r.front.Store(nil)
	// The object is gone, but the binding is not deleted: the scheduler has yet to see.
	if now, _, err := r.Leaving(t.Context(), b); now != nil || err != nil {
		t.Errorf("%v %v", now, err)
	}
}

// A certificate is renewed in time, kept, and used from then on.
func TestACertificateIsRenewed(t *testing.T) {
	s := open(t, secret("one"), bind("one", "east"))
	r := s.remote(29*24*time.Hour, 24*time.Hour)
	select {
	case kubeconfig := <-r.kept:
		if again, err := NewRemote(RemoteConfig{Kubeconfig: kubeconfig}); err != nil || again.Name() != "east" {
			t.Errorf("what is kept cannot be used: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nothing is kept")
	}
	r.await(t)
	s.control1(v1alpha1.ResourceBindingResource, "shop", bind("one", "west"), "update")
	soon(t, "the view is followed", func() bool { return len(r.Bindings()) == 0 })
}
