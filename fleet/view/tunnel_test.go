package view

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fakeTunnels keeps the last tunnel that it accepted, which does not end by itself.
type fakeTunnels struct {
	valid func() error
	ended func()
}

// Accept implements Tunnels.
func (f *fakeTunnels) Accept(_ http.ResponseWriter, _ *http.Request, _ *v1alpha1.Cluster, valid func() error, ended func()) {
	f.valid, f.ended = valid, ended
}

// TestTunnelOutlivesItsRequest: a tunnel holds the caches after its request, until it ends. It may be kept until the
// certificate expires or the credential is revoked.
func TestTunnelOutlivesItsRequest(t *testing.T) {
	s := newFixture(t)
	tunnels := &fakeTunnels{}
	s.host.cfg.Tunnels = tunnels
	open := func(expires time.Time) error {
		r := httptest.NewRequest(http.MethodGet, eastView+tunnelRest, http.NoBody)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{NotAfter: expires}}}
		w := httptest.NewRecorder()
		s.host.Serve(w, r, syncerOf("east"))
		if tunnels.valid == nil {
			t.Fatalf("the tunnel is refused: %d %s", w.Code, w.Body)
		}
		return tunnels.valid()
	}
	users := func() int {
		s.host.mu.Lock()
		defer s.host.mu.Unlock()
		return s.host.caches.users
	}
	if err := open(time.Now().Add(-time.Second)); err == nil || !strings.Contains(err.Error(), "the certificate of the syncer of cluster east has expired") {
		t.Errorf("an expired certificate: %v", err)
	}
	if users() != 1 {
		t.Errorf("the caches have %d users while the tunnel is open", users())
	}
	tunnels.ended()
	if users() != 0 {
		t.Errorf("the caches have %d users after the tunnel", users())
	}
	if err := open(time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
	revoked := pullCluster("east")
	revoked.SetAnnotations(map[string]string{v1alpha1.CredentialAnnotation: "another"})
	s.control.Put(revoked)
	fakeapi.Until(t, "the tunnel may not be kept", func() bool {
		err := tunnels.valid()
		return err != nil && strings.Contains(err.Error(), "has been revoked")
	})
	tunnels.ended()
}
