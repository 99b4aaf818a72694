package view

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// approvalInterval is how often a syncer checks whether its request was approved.
const approvalInterval = 2 * time.Second

// BootstrapConfig configures Bootstrap.
type BootstrapConfig struct {
	// Kubeconfig of the view, with a bootstrap token.
	Kubeconfig []byte
	// Save stores a kubeconfig for the next start: first with the key, so that a restart continues the same request.
	Save func(ctx context.Context, kubeconfig []byte) error
	// Progress is called with what the syncer waits for.
	Progress func(message string)
	Log      *slog.Logger
	Clock    clock.WithTicker
}

// IsBootstrap reports whether a kubeconfig of a view has a bootstrap token, and no certificate yet.
func IsBootstrap(kubeconfig []byte) bool {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return false
	}
	user, err := userOf(config)
	return err == nil && user.Token != "" && len(user.ClientCertificateData) == 0
}

// userOf returns the user of a kubeconfig's current context.
func userOf(config *clientcmdapi.Config) (*clientcmdapi.AuthInfo, error) {
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.AuthInfos[current.AuthInfo] == nil {
		return nil, errors.New("the kubeconfig of the view has no user in its current context")
	}
	return config.AuthInfos[current.AuthInfo], nil
}

// bootstrap is a syncer that has no certificate yet.
type bootstrap struct {
	BootstrapConfig
	cluster string
	config  *clientcmdapi.Config
	user    *clientcmdapi.AuthInfo
	key     crypto.Signer
	api     certificatesclient.CertificateSigningRequestInterface
}

// Bootstrap requests a certificate with a bootstrap token, waits until a user of the fleet approves that, and returns the
// kubeconfig with the certificate. The key does not leave this process and the place where Save stores it.
func Bootstrap(ctx context.Context, cfg BootstrapConfig) ([]byte, error) {
	b, err := newBootstrap(cfg)
	if err != nil {
		return nil, err
	}
	if err := b.openKey(ctx); err != nil {
		return nil, err
	}
	certificate, err := b.await(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tls.X509KeyPair(certificate, b.user.ClientKeyData); err != nil {
		return nil, fmt.Errorf("the certificate that was issued to the syncer of cluster %s does not belong to its key: %w", b.cluster, err)
	}
	b.user.Token, b.user.ClientCertificateData = "", certificate
	return b.save(ctx)
}

func newBootstrap(cfg BootstrapConfig) (*bootstrap, error) {
	config, err := clientcmd.Load(cfg.Kubeconfig)
	if err != nil {
		return nil, errInvalidKubeconfig // the parser's message may quote the file, which contains a token
	}
	access, err := fleet.MemberConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("invalid kubeconfig of the view: %w", err)
	}
	address, err := parseAddress(access.Host)
	if err != nil {
		return nil, err
	}
	b := &bootstrap{BootstrapConfig: cfg, cluster: address.cluster, config: config}
	if b.user, err = userOf(config); err != nil {
		return nil, err
	}
	client, err := certificatesclient.NewForConfig(&rest.Config{Host: address.server, BearerToken: access.BearerToken, Timeout: requestTimeout,
		TLSClientConfig: rest.TLSClientConfig{CAData: access.CAData, ServerName: access.ServerName}, UserAgent: v1alpha1.SyncerFieldManager})
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	b.api = client.CertificateSigningRequests()
	return b, nil
}

// openKey reads the key of an earlier start, or creates and stores one.
func (b *bootstrap) openKey(ctx context.Context) error {
	if len(b.user.ClientKeyData) == 0 {
		key, _, err := NewKey(b.cluster)
		if err != nil {
			return err
		}
		b.user.ClientKeyData = key
		if _, err := b.save(ctx); err != nil {
			return err
		}
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(b.user.ClientKeyData)
	if err != nil {
		return errInvalidKubeconfig
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return errInvalidKubeconfig
	}
	b.key = key
	return nil
}

func (b *bootstrap) save(ctx context.Context) ([]byte, error) {
	content, err := clientcmd.Write(*b.config)
	if err != nil {
		return nil, err
	}
	if err := b.Save(ctx, content); err != nil {
		return nil, fmt.Errorf("store the kubeconfig of the view: %w", err)
	}
	return content, nil
}

// requestName is the same for the same key and token, so that a restart finds its request.
func (b *bootstrap) requestName() (string, error) {
	public, err := x509.MarshalPKIXPublicKey(b.key.Public())
	if err != nil {
		return "", err
	}
	digest := sha256.Sum256(append(public, b.user.Token...))
	return "syncer-" + b.cluster + "-" + hex.EncodeToString(digest[:8]), nil
}

// await returns the certificate when the request was approved. An error that another start would not have again ends the
// wait.
func (b *bootstrap) await(ctx context.Context) ([]byte, error) {
	name, err := b.requestName()
	if err != nil {
		return nil, err
	}
	ticker := b.Clock.NewTicker(approvalInterval)
	defer ticker.Stop()
	told, lastError := false, ""
	for {
		request, err := b.request(ctx, name)
		switch {
		case err == nil:
			lastError = ""
			if certificate, why := outcome(request); why != "" {
				return nil, fmt.Errorf("the request of cluster %s to join was refused (CertificateSigningRequest %s): %s", b.cluster, name, why)
			} else if certificate != nil {
				return certificate, nil
			}
			if !told {
				b.Progress("waiting for approval: kubectl certificate approve " + name)
				told = true
			}
		case apierrors.IsUnauthorized(err):
			return nil, fmt.Errorf("Atoll does not accept the bootstrap token of cluster %s, which has probably expired: %s", b.cluster, joinAgain)
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			return nil, fmt.Errorf("request a certificate for cluster %s: %w", b.cluster, err)
		case ctx.Err() == nil && err.Error() != lastError:
			lastError = err.Error()
			b.Log.Warn("the request for a certificate cannot be sent or read; retrying", "request", name, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C():
		}
	}
}

// request returns the request, and creates it if it does not exist.
func (b *bootstrap) request(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error) {
	request, err := b.api.Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return request, err
	}
	content, err := requestOf(b.cluster, b.key)
	if err != nil {
		return nil, err
	}
	return b.api.Create(ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{Request: content, SignerName: v1alpha1.SyncerSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}}}, metav1.CreateOptions{})
}

// outcome returns the certificate of a request, or why it was refused; nothing if it is not decided.
func outcome(request *certificatesv1.CertificateSigningRequest) (certificate []byte, refused string) {
	for _, c := range request.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return nil, fmt.Sprintf("%s: %s %s", c.Type, c.Reason, c.Message)
		}
	}
	if len(request.Status.Certificate) == 0 {
		return nil, ""
	}
	return request.Status.Certificate, ""
}
