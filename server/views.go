package server

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/fleet/imports"
	"github.com/atoll-dev/atoll/fleet/view"
)

// syncerValidity is short, because a certificate's authentication cannot be revoked,
// only its permissions.
const syncerValidity = 30 * 24 * time.Hour

// viewsUser is the user in the audit log for requests on behalf of syncers that run
// elsewhere.
const viewsUser = "atoll:views"

// viewService serves views on the main port.
func (s *Server) viewService() apiserver.Service {
	return apiserver.Service{
		Prefix:      v1alpha1.ViewsPath,
		Allows:      func(user apiserver.User, path string) bool { return view.Allows(view.Caller(user), path) },
		LongRunning: view.LongRunning,
		Serve: func(w http.ResponseWriter, r *http.Request, user apiserver.User) {
			s.views.Serve(w, r, view.Caller(user))
		},
	}
}

// newViews creates the host of the views, once the API is available.
func (s *Server) newViews() *view.Host {
	return view.NewHost(view.Config{
		REST:  s.api.ClientConfig(viewsUser),
		Sign:  s.signSyncer,
		Types: imports.ReportStore{},
		Log:   s.cfg.Log,
		Clock: s.cfg.Clock,

		ControlPlane: s.controlPlane,

		Metrics: s.metrics.views,
		Answers: s.newAnswers,
		Ask:     s.webhooks.Ask,
		Tunnels: s.tunnels,
	})
}

func (s *Server) runViews(ctx context.Context) error {
	if !awaitServing(ctx, s.api) {
		return nil
	}
	return s.views.Run(ctx)
}

// signSyncer signs a certificate for a cluster's syncer. It uses only the key of the
// request; the view has determined the identity.
func (s *Server) signSyncer(cluster, credential string, request *x509.CertificateRequest) ([]byte, error) {
	return s.pki.signClient(pkix.Name{
		CommonName:   v1alpha1.SyncerUser(cluster),
		Organization: []string{v1alpha1.SyncersGroup, v1alpha1.CredentialGroupPrefix + credential},
	}, request.PublicKey, s.cfg.Clock.Now(), syncerValidity)
}

// signClient signs a client certificate for this server.
func (p *pki) signClient(subject pkix.Name, key crypto.PublicKey, now time.Time, validity time.Duration) ([]byte, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber:          serial,
		Subject:               subject,
		NotBefore:             now.Add(-backdate),
		NotAfter:              earlier(now.Add(validity), p.ca.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, p.ca, key, p.key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate of %s: %w", subject.CommonName, err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the new certificate of %s: %w", subject.CommonName, err)
	}
	return p.withCross(signed), nil
}
