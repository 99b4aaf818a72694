package view

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// renewCheckInterval is how often the certificate's age is checked, and a failed renewal is
// retried.
const renewCheckInterval = 30 * time.Minute

// NewKey creates a key for a cluster's syncer, and the request for its certificate.
func NewKey(cluster string) (key, request []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key: %w", err)
	}
	if request, err = requestOf(cluster, private); err != nil {
		return nil, nil, err
	}
	if key, err = keyutil.MarshalPrivateKeyToPEM(private); err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, request, nil
}

// requestOf returns the request for the certificate of a key.
func requestOf(cluster string, key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: v1alpha1.SyncerUser(cluster)}}, key)
	if err != nil {
		return nil, fmt.Errorf("create a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// Kubeconfig returns a kubeconfig for a cluster's view on a server whose certificate the
// authority has signed. It is self-contained.
func Kubeconfig(server, cluster string, authority, certificate, key []byte) ([]byte, error) {
	return kubeconfigOf(server, cluster, authority, &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key})
}

func kubeconfigOf(server, cluster string, authority []byte, access *clientcmdapi.AuthInfo) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	user := v1alpha1.SyncerUser(cluster)
	config.Clusters["view"] = &clientcmdapi.Cluster{Server: server + v1alpha1.ViewsPath + cluster, CertificateAuthorityData: authority}
	config.AuthInfos[user] = access
	config.Contexts["view"] = &clientcmdapi.Context{Cluster: "view", AuthInfo: user}
	config.CurrentContext = "view"
	return clientcmd.Write(*config)
}

// renewPeriodically renews the certificate when a third of its lifetime is left, until ctx
// ends.
func (l *client) renewPeriodically(ctx context.Context) {
	ticker := l.clock.NewTicker(renewCheckInterval)
	defer ticker.Stop()
	for {
		if w := l.current(); l.clock.Now().After(w.notAfter.Add(-w.notAfter.Sub(w.notBefore) / 3)) {
			if err := l.renew(ctx); err != nil && ctx.Err() == nil {
				l.log.Warn("renewal of the view's certificate failed; retrying", "expires", w.notAfter, "error", err)
			}
		}
		if len(l.unsaved) > 0 {
			if err := l.save(ctx, l.unsaved); err == nil {
				l.unsaved = nil
			} else if ctx.Err() == nil {
				l.log.Warn("the renewed certificate is in use but could not be saved for the next start; retrying", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// renew gets a new certificate and switches to it.
func (l *client) renew(ctx context.Context) error {
	key, request, err := NewKey(l.cluster)
	if err != nil {
		return err
	}
	var got Credential
	if err := l.do(ctx, http.MethodPost, credentialRest, CredentialRequest{Request: string(request), Renew: true}, &got); err != nil {
		return err
	}
	l.mu.Lock()
	config := l.config.DeepCopy()
	l.mu.Unlock()
	user, err := userOf(config)
	if err != nil {
		return err
	}
	user.ClientCertificateData, user.ClientKeyData = []byte(got.Certificate), key
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	way, err := fleet.MemberConfig(content)
	if err != nil {
		return err
	}
	next, err := l.newTransport(way)
	if err != nil {
		return err
	}
	l.mu.Lock()
	last := l.transport
	l.config, l.transport = config, next
	l.mu.Unlock()
	last.end()
	last.client.CloseIdleConnections()
	l.unsaved = content
	l.log.Info("renewed the certificate of the view", "expires", next.notAfter)
	return nil
}
