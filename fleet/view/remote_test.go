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
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// authority signs syncers, as a server does.
type authority struct {
	t   *testing.T
	key *ecdsa.PrivateKey
}

// sign issues a certificate for east's syncer with the given age and remaining lifetime.
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

// remote is a Remote of east over HTTPS to a fixture. front, if not nil, handles requests in
// its place.
type remote struct {
	*Remote
	server *httptest.Server
	saved  chan []byte
	front  atomic.Pointer[http.HandlerFunc]
}

func (s *fixture) remote(age, left time.Duration) *remote {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	ca := &authority{s.t, key}
	s.host.cfg.Sign = func(_, credential string, r *x509.CertificateRequest) ([]byte, error) {
		return ca.sign(r.PublicKey, credential, 0, 24*time.Hour), nil
	}
	out := &remote{saved: make(chan []byte, 1)}
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
		Save: func(_ context.Context, k []byte) error { out.saved <- k; return nil },
		Answers: func(ask func(context.Context, interpret.Question) (interpret.Answer, error)) fleet.AnswerSource {
			return webhooks.NewCache(webhooks.Config{Ask: ask, Log: slog.New(slog.DiscardHandler)})
		}})
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
	if err := r.WaitForSync(ctx); err != nil {
		t.Fatal("the view did not sync: ", err)
	}
}

func keyTo(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: "secret-" + name}
}

// TestRemoteMatchesLocal: a remote view returns the same as a local one.
func TestRemoteMatchesLocal(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east", "west"), secret("two"), bind("two", "west"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	caches, release, err := s.host.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	local := NewLocal(caches.session, "east")

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
	if objects, ok := r.KindOf(b); !ok || objects.GVR() != here.GVR() {
		t.Errorf("kind: %v, want %v", objects.GVR(), here.GVR())
	}
	if ns, ok := r.Namespace("shop"); !ok || ns.GetName() != "shop" {
		t.Errorf("namespace: %v", ns)
	}
	if gone, err := r.ConfirmNamespaceGone(t.Context(), "shop"); gone || err != nil {
		t.Errorf("namespace gone: %v %v", gone, err)
	}
	s.control.Delete(corev1.SchemeGroupVersion.WithResource("namespaces"), "", "shop")
	if gone, err := r.ConfirmNamespaceGone(t.Context(), "shop"); !gone || err != nil {
		t.Errorf("namespace gone: %v %v", gone, err)
	}
	if _, err := r.ConfirmNamespaceGone(t.Context(), "other"); err == nil {
		t.Error("it may query any namespace")
	}
	if err := r.Report(t.Context(), b, &v1alpha1.ClusterState{Name: "east", Health: v1alpha1.Healthy}); err != nil {
		t.Error(err)
	}
}

// TestLostConnectionKeepsState: a lost connection changes nothing, and missed changes arrive
// after it.
func TestLostConnectionKeepsState(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"), secret("two"), bind("two", "east"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	notified := make(chan types.NamespacedName, 100)
	defer r.Subscribe(func(key types.NamespacedName) { notified <- key })()
	notFound := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) })
	r.front.Store(&notFound)
	r.server.CloseClientConnections()
	s.control.Put(bind("two", "west"))
	b, _ := r.Binding(keyTo("two"))
	for range 3 {
		if now, err := r.ConfirmRemoval(t.Context(), b); now.Binding != nil || err == nil {
			t.Errorf("a response that is not from a view: %v %v", now, err)
		}
	}
	if len(r.Bindings()) != 2 {
		t.Errorf("%d bindings are left", len(r.Bindings()))
	}
	r.front.Store(nil)
	fakeapi.Until(t, "the removed binding is gone", func() bool { return len(r.Bindings()) == 1 })
	fakeapi.Until(t, "the subscriber is notified", func() bool { return len(notified) > 2 })
}

// TestRemovalNeedsPositiveResponse: an object is deleted only if the view confirms the removal
// of exactly it.
func TestRemovalNeedsPositiveResponse(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	b, _ := r.Binding(keyTo("one"))
	s.control.Delete(corev1.SchemeGroupVersion.WithResource("secrets"), "shop", "one")
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
		if now, _ := r.ConfirmRemoval(t.Context(), b); now.Binding != nil {
			t.Errorf("response %q confirms a removal", what)
		}
	}
	r.front.Store(nil)
	// The object is deleted, but the binding is not yet: the scheduler has not reacted.
	if now, err := r.ConfirmRemoval(t.Context(), b); now.Binding != nil || err != nil {
		t.Errorf("%v %v", now, err)
	}
}

// TestCertificateRenewal: a certificate is renewed in time, saved, and used from then on.
func TestCertificateRenewal(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"))
	r := s.remote(29*24*time.Hour, 24*time.Hour)
	select {
	case kubeconfig := <-r.saved:
		if again, err := NewRemote(RemoteConfig{Kubeconfig: kubeconfig}); err != nil || again.Name() != "east" {
			t.Errorf("the saved kubeconfig cannot be used: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no kubeconfig was saved")
	}
	r.await(t)
	s.control.Put(bind("one", "west"))
	fakeapi.Until(t, "the view is current", func() bool { return len(r.Bindings()) == 0 })
}
