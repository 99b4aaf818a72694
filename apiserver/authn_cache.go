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
	// certificateTTL is how long upstream trusts a token that it has verified.
	certificateTTL = 10 * time.Second
	// maxCertificates bounds the cache. Further connections are served as upstream
	// serves them, without a cache.
	maxCertificates = 4096
)

// certificateCache caches for a few seconds which user a client certificate belongs to.
// Upstream verifies the signatures of the certificate's chain again for every request
// of a connection. That takes more CPU time than many requests themselves.
//
// A changed CA file therefore takes effect a few seconds later; upstream checks the
// file only once a minute anyway. Upstream's metric of certificates' remaining lifetime
// observes a certificate once per TTL instead of with each request.
type certificateCache struct {
	next      authenticator.Request
	clock     clock.PassiveClock
	responses *cache.LRUExpireCache
}

func newCertificateCache(next authenticator.Request, clock clock.PassiveClock) *certificateCache {
	return &certificateCache{next: next, clock: clock, responses: cache.NewLRUExpireCacheWithClock(maxCertificates, clock)}
}

// AuthenticateRequest implements authenticator.Request.
func (m *certificateCache) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	cert := soleCredential(req)
	if cert == nil {
		return m.next.AuthenticateRequest(req)
	}
	// The key is the certificate itself, not its contents: TLS has proven that the peer
	// of this connection has its private key.
	if known, ok := m.responses.Get(cert); ok {
		return known.(*authenticator.Response), true, nil
	}
	response, ok, err := m.next.AuthenticateRequest(req)
	if ok && err == nil {
		if valid := min(certificateTTL, cert.NotAfter.Sub(m.clock.Now())); valid > 0 {
			m.responses.Add(cert, response, valid)
		}
	}
	return response, ok, err
}

// soleCredential returns the client certificate of a request if it is the only
// credential: the request has no intermediates and no token.
func soleCredential(req *http.Request) *x509.Certificate {
	if req.TLS == nil || len(req.TLS.PeerCertificates) != 1 {
		return nil
	}
	// WebSocket clients send their token as a subprotocol.
	if len(req.Header.Values("Authorization"))+len(req.Header.Values("Sec-WebSocket-Protocol")) > 0 {
		return nil
	}
	return req.TLS.PeerCertificates[0]
}
