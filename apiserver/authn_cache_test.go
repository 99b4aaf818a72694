package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	testclock "k8s.io/utils/clock/testing"
)

// TestCertificateCache: only results that upstream based on the certificate alone are
// cached, for a limited time and never beyond the certificate's expiry.
func TestCertificateCache(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	long := &x509.Certificate{NotAfter: start.Add(time.Hour)}
	soon := &x509.Certificate{NotAfter: start.Add(3 * time.Second)}
	type header map[string]string
	for _, c := range []struct {
		name   string
		certs  []*x509.Certificate
		header header
		err    error
		after  time.Duration
		asked  int // by two requests, the second after that time
	}{
		{name: "the same certificate", certs: []*x509.Certificate{long}, after: 9 * time.Second, asked: 1},
		{name: "later", certs: []*x509.Certificate{long}, after: 11 * time.Second, asked: 2},
		{name: "until it expires", certs: []*x509.Certificate{soon}, after: 4 * time.Second, asked: 2},
		{name: "refused", certs: []*x509.Certificate{long}, err: errors.New("unknown authority"), asked: 2},
		{name: "with an intermediate", certs: []*x509.Certificate{long, soon}, asked: 2},
		{name: "with a token", certs: []*x509.Certificate{long}, header: header{"Authorization": "Bearer x"}, asked: 2},
		{name: "with a token for a WebSocket", certs: []*x509.Certificate{long}, header: header{"Sec-WebSocket-Protocol": "x"}, asked: 2},
		{name: "without a certificate", asked: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			clock := testclock.NewFakePassiveClock(start)
			memory := newCertificateCache(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				asked++
				if c.err != nil {
					return nil, false, c.err
				}
				return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, true, nil
			}), clock)
			for range 2 {
				req := &http.Request{Header: http.Header{}, TLS: &tls.ConnectionState{PeerCertificates: c.certs}}
				for name, value := range c.header {
					req.Header.Set(name, value)
				}
				response, ok, err := memory.AuthenticateRequest(req)
				if ok != (c.err == nil) || !errors.Is(err, c.err) || ok && response.User.GetName() != "jane" {
					t.Fatalf("answers %v, %v, %v", response, ok, err)
				}
				clock.SetTime(clock.Now().Add(c.after))
			}
			if asked != c.asked {
				t.Errorf("asked upstream %d times, want %d", asked, c.asked)
			}
		})
	}
}

// TestCertificateCacheKey: another certificate is another client, whatever its subject.
func TestCertificateCacheKey(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Now())
	asked := 0
	memory := newCertificateCache(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		asked++
		return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, true, nil
	}), clock)
	for range 2 {
		cert := &x509.Certificate{NotAfter: clock.Now().Add(time.Hour)}
		req := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}
		if _, ok, err := memory.AuthenticateRequest(req); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if asked != 2 {
		t.Errorf("asked upstream %d times for two certificates", asked)
	}
}
