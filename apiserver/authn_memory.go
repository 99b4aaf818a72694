package apiserver

import (
	"crypto/x509"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/clock"
)

const (
	// rememberFor is how long upstream trusts a token that it has verified.
	rememberFor = 10 * time.Second
	// rememberAtMost bounds the memory. More connections than that are served
	// no worse than upstream serves them.
	rememberAtMost = 4096
)

// certificateMemory remembers for a few seconds to whom a client certificate
// belongs. Upstream verifies the signatures of its chain anew for every request of
// a connection, which takes more processor time than many a request itself.
//
// A changed CA file therefore counts a few seconds later; upstream looks at the
// file once a minute anyway. Upstream's metric of the time left of certificates
// observes a certificate once in that time instead of with each request.
type certificateMemory struct {
	next  authenticator.Request
	clock clock.PassiveClock
	known *cache.LRUExpireCache
}

func newCertificateMemory(next authenticator.Request, clock clock.PassiveClock) *certificateMemory {
	return &certificateMemory{next: next, clock: clock, known: cache.NewLRUExpireCacheWithClock(rememberAtMost, clock)}
}

// AuthenticateRequest implements authenticator.Request.
func (m *certificateMemory) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	cert := soleCredential(req)
	if cert == nil {
		return m.next.AuthenticateRequest(req)
	}
	// The certificate itself is the key, not what it says: TLS has proved that
	// the peer of this connection has its private key.
	if known, ok := m.known.Get(cert); ok {
		return known.(*authenticator.Response), true, nil
	}
	response, ok, err := m.next.AuthenticateRequest(req)
	if ok && err == nil {
		if valid := min(rememberFor, cert.NotAfter.Sub(m.clock.Now())); valid > 0 {
			m.known.Add(cert, response, valid)
		}
	}
	return response, ok, err
}

// soleCredential gives the client certificate of a request on which alone it
// depends whose request it is: there are no intermediates and no token.
func soleCredential(req *http.Request) *x509.Certificate {
	if req.TLS == nil || len(req.TLS.PeerCertificates) != 1 {
		return nil
	}
	// A WebSocket client sends its token as a subprotocol.
	if len(req.Header.Values("Authorization"))+len(req.Header.Values("Sec-WebSocket-Protocol")) > 0 {
		return nil
	}
	return req.TLS.PeerCertificates[0]
}
