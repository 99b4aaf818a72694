package view

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// renewEvery is how often it is looked whether the certificate is to be renewed, and
// tried again.
const renewEvery = 30 * time.Minute

// NewKey makes a key for a cluster's syncer, and the request for its certificate.
func NewKey(cluster string) (key, request []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: v1alpha1.SyncerUser(cluster)}}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate request: %w", err)
	}
	if key, err = keyutil.MarshalPrivateKeyToPEM(private); err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// Kubeconfig leads to a cluster's view, by way of a server whose certificate the
// authority has signed. It needs no other file.
func Kubeconfig(server, cluster string, authority, certificate, key []byte) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	user := v1alpha1.SyncerUser(cluster)
	config.Clusters["view"] = &clientcmdapi.Cluster{Server: server + v1alpha1.ViewsPath + cluster, CertificateAuthorityData: authority}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts["view"] = &clientcmdapi.Context{Cluster: "view", AuthInfo: user}
	config.CurrentContext = "view"
	return clientcmd.Write(*config)
}

// keepFresh renews the certificate when a third of its time is left, until ctx ends.
func (l *link) keepFresh(ctx context.Context) {
	ticker := l.clock.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		if w := l.wire(); l.clock.Now().After(w.until.Add(-w.until.Sub(w.since) / 3)) {
			if err := l.renew(ctx); err != nil && ctx.Err() == nil {
				l.log.Warn("the certificate of the view could not be renewed; trying again", "expires", w.until, "error", err)
			}
		}
		if len(l.unkept) > 0 {
			if err := l.keep(ctx, l.unkept); err == nil {
				l.unkept = nil
			} else if ctx.Err() == nil {
				l.log.Warn("the renewed certificate is in use, but could not be kept for the next start; trying again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// renew gets another certificate and has everything go on with it.
func (l *link) renew(ctx context.Context) error {
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
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.AuthInfos[current.AuthInfo] == nil {
		return errors.New("the kubeconfig of the view has no user in its current context")
	}
	user := config.AuthInfos[current.AuthInfo]
	user.ClientCertificateData, user.ClientKeyData = []byte(got.Certificate), key
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	way, err := fleet.MemberConfig(content)
	if err != nil {
		return err
	}
	next, err := l.connect(way)
	if err != nil {
		return err
	}
	l.mu.Lock()
	last := l.now
	l.config, l.now = config, next
	l.mu.Unlock()
	last.end()
	last.client.CloseIdleConnections()
	l.unkept = content
	l.log.Info("renewed the certificate of the view", "expires", next.until)
	return nil
}
