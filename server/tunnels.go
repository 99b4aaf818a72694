package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/fleet/tunnel"
)

// newTunnels creates the hub of the tunnels of clusters in mode Pull.
func (s *Server) newTunnels() *tunnel.Hub {
	port := s.listener.Addr().(*net.TCPAddr).Port
	identity := peerIdentity{pki: s.pki, clock: s.cfg.Clock}
	return tunnel.NewHub(tunnel.HubConfig{
		Identity: s.name,
		Address:  net.JoinHostPort(s.cfg.advertiseIP().String(), strconv.Itoa(port)),
		Client: sync.OnceValues(func() (kubernetes.Interface, error) {
			return kubernetes.NewForConfig(s.api.ClientConfig(serverUser))
		}),
		PeerTLS: identity.tls,
		Log:     s.cfg.Log,
		Clock:   s.cfg.Clock,
		Metrics: s.metrics.tunnels,
	})
}

// runTunnels closes the tunnels when the server stops, so that syncers open others at once.
func (s *Server) runTunnels(ctx context.Context) error {
	<-ctx.Done()
	return s.tunnels.Close()
}

// tunnelService serves the tunnels of this server to others.
func (s *Server) tunnelService() apiserver.Service {
	return apiserver.Service{
		Prefix: v1alpha1.TunnelsPath,
		Allows: func(user apiserver.User, path string) bool {
			return user.Name == serverUser && slices.Contains(user.Groups, v1alpha1.ServersGroup) && len(path) > len(v1alpha1.TunnelsPath)
		},
		LongRunning: func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, v1alpha1.TunnelsPath) },
		Serve: func(w http.ResponseWriter, r *http.Request, user apiserver.User) {
			if user.Name != serverUser || !slices.Contains(user.Groups, v1alpha1.ServersGroup) {
				http.Error(w, "this path is for other servers of Atoll", http.StatusForbidden) // whatever RBAC allows
				return
			}
			s.tunnels.ServePeer(w, r, strings.TrimPrefix(r.URL.Path, v1alpha1.TunnelsPath))
		},
	}
}

// peerValidity of the certificates with which servers connect to each other. They exist in memory only.
const peerValidity = 24 * time.Hour

// peerIdentity is what this server shows to others.
type peerIdentity struct {
	pki   *pki
	clock interface{ Now() time.Time }

	mu  sync.Mutex
	own *tls.Certificate
}

// tls returns the configuration of connections to other servers, whose certificates the common authority has signed.
func (p *peerIdentity) tls() (*tls.Config, error) {
	authority, err := os.ReadFile(p.pki.file(caCert))
	if err != nil {
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	if p.own == nil || now.After(p.own.Leaf.NotAfter.Add(-peerValidity/2)) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("generate a key: %w", err)
		}
		signed, err := p.pki.signClient(pkix.Name{CommonName: serverUser, Organization: []string{v1alpha1.ServersGroup}}, key.Public(), now, peerValidity)
		if err != nil {
			return nil, err
		}
		private, err := keyutil.MarshalPrivateKeyToPEM(key)
		if err != nil {
			return nil, fmt.Errorf("encode a key: %w", err)
		}
		own, err := tls.X509KeyPair(signed, private)
		if err != nil {
			return nil, err
		}
		p.own = &own
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{*p.own}, MinVersion: tls.VersionTLS12}, nil
}
