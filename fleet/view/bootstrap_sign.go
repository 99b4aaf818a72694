package view

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
)

// Reasons of conditions of CertificateSigningRequests.
const (
	reasonRefused = "RequestRefused"
	signWorkers   = 2
	maxSignDelay  = 30 * time.Second
)

// Sign creates a certificate for a cluster's syncer: see Config.
type Sign func(cluster, credential string, request *x509.CertificateRequest) ([]byte, error)

// signer signs the approved requests of syncers that join with a bootstrap token.
type signer struct {
	*fleet.Session
	sign     Sign
	requests controllers.Cache[certificatesv1.CertificateSigningRequest]
	queue    workqueue.TypedRateLimitingInterface[string]
}

// NewSigner returns the controller that refuses the requests of syncers that do not fit their bootstrap token, and signs
// the others when a user has approved them.
func NewSigner(sign Sign) fleet.Controller {
	return func(ctx context.Context, session *fleet.Session) error {
		s := &signer{Session: session, sign: sign,
			requests: controllers.NewCache[certificatesv1.CertificateSigningRequest](session.Dynamic, certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"),
				controllers.CacheOptions{Select: func(o *metav1.ListOptions) {
					o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", v1alpha1.SyncerSignerName).String()
				}}),
			queue: workqueue.NewTypedRateLimitingQueueWithConfig(
				workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, maxSignDelay),
				workqueue.TypedRateLimitingQueueConfig[string]{Name: "fleet_signer", Clock: session.Clock}),
		}
		return s.run(ctx)
	}
}

func (s *signer) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer s.queue.ShutDown()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := s.requests.OnChange(func(_, is *certificatesv1.CertificateSigningRequest) {
		if is != nil {
			s.queue.Add(is.Name)
		}
	}); err != nil {
		return fmt.Errorf("watch the requests of syncers: %w", err)
	}
	running.Go(func() { s.requests.Informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), s.requests.Informer.HasSynced) {
		return nil
	}
	controllers.RunWorkers(ctx, s.queue, signWorkers, fleet.Measured(s.Metrics, "signer", s.reconcile), s.onFailure)
	return nil
}

func (s *signer) onFailure(name string, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		s.Log.Warn("reconcile of a syncer's certificate request failed; retrying", "request", name, "error", err)
	}
	return true
}

// reconcile refuses or signs a request.
func (s *signer) reconcile(ctx context.Context, name string) error {
	cached, exists := s.requests.Get(name)
	if !exists || isDecided(cached) {
		return nil
	}
	request, err := s.Kube.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (isDecided(request) || request.Spec.SignerName != v1alpha1.SyncerSignerName) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read CertificateSigningRequest %s: %w", name, err)
	}
	facts, err := s.facts(ctx, request)
	if err != nil {
		return err
	}
	parsed, why := facts.judge()
	switch {
	case why != "":
		return s.refuse(ctx, request, why)
	case !hasCondition(request, certificatesv1.CertificateApproved):
		return nil
	}
	return s.issue(ctx, facts, parsed)
}

func (s *signer) facts(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (bootstrapFacts, error) {
	out := bootstrapFacts{request: request, now: s.Clock.Now()}
	id, is := tokenOf(request)
	if !is {
		return out, nil
	}
	token, err := s.Kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, bootstrapapi.BootstrapTokenSecretPrefix+id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("read bootstrap token %s: %w", id, err)
	}
	out.token = token
	name := clusterOfToken(token)
	if name == "" {
		return out, nil
	}
	u, err := s.Dynamic.Resource(v1alpha1.ClusterResource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	out.cluster = &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out.cluster); err != nil {
		return out, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	return out, nil
}

// refuse denies a request, or lets it fail if it was approved already.
func (s *signer) refuse(ctx context.Context, request *certificatesv1.CertificateSigningRequest, why string) error {
	api := s.Kube.CertificatesV1().CertificateSigningRequests()
	condition := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: reasonRefused, Message: why}
	update := func() error {
		_, err := api.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{})
		return err
	}
	if hasCondition(request, certificatesv1.CertificateApproved) {
		condition.Type = certificatesv1.CertificateFailed
		update = func() error { _, err := api.UpdateStatus(ctx, request, metav1.UpdateOptions{}); return err }
	}
	request.Status.Conditions = append(request.Status.Conditions, condition)
	if err := update(); err != nil {
		return fmt.Errorf("refuse CertificateSigningRequest %s: %w", request.Name, err)
	}
	s.Log.Warn("refused the certificate request of a cluster's syncer", "request", request.Name, "user", request.Spec.Username, "reason", why)
	return nil
}

// issue registers the cluster, if necessary, and signs its syncer's certificate. The UID of the request is the identifier
// of the credential, so a second attempt changes nothing, and earlier credentials of the cluster are revoked.
func (s *signer) issue(ctx context.Context, f bootstrapFacts, parsed *x509.CertificateRequest) error {
	cluster, credential := clusterOfToken(f.token), string(f.request.UID)
	if err := s.recordCredential(ctx, f, cluster, credential); err != nil {
		return err
	}
	certificate, err := s.sign(cluster, credential, parsed)
	if err != nil {
		return fmt.Errorf("sign the certificate of the syncer of cluster %s: %w", cluster, err)
	}
	f.request.Status.Certificate = certificate
	if _, err := s.Kube.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, f.request, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the certificate of CertificateSigningRequest %s: %w", f.request.Name, err)
	}
	s.Log.Info("issued a certificate for a cluster's syncer", "cluster", cluster, "request", f.request.Name)
	return nil
}

func (s *signer) recordCredential(ctx context.Context, f bootstrapFacts, cluster, credential string) error {
	api := s.Dynamic.Resource(v1alpha1.ClusterResource)
	options := metav1.PatchOptions{FieldManager: reporterOf(cluster)}
	if f.cluster == nil {
		id, _ := tokenOf(f.request)
		_, err := api.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
			"metadata": map[string]any{"name": cluster, "annotations": map[string]any{v1alpha1.BootstrapTokenAnnotation: id, v1alpha1.CredentialAnnotation: credential}},
			"spec":     map[string]any{"mode": string(v1alpha1.ModePull)},
		}}, metav1.CreateOptions{FieldManager: options.FieldManager})
		if err != nil {
			return fmt.Errorf("register cluster %s: %w", cluster, err)
		}
		return nil
	}
	if f.cluster.Annotations[v1alpha1.CredentialAnnotation] == credential {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": f.cluster.UID, "resourceVersion": f.cluster.ResourceVersion,
		"annotations": map[string]any{v1alpha1.CredentialAnnotation: credential}}})
	if err != nil {
		return err
	}
	if _, err := api.Patch(ctx, cluster, types.MergePatchType, patch, options); err != nil {
		return fmt.Errorf("record the new credential of cluster %s: %w", cluster, err)
	}
	return nil
}

// isDecided reports whether a request has a certificate, or gets none.
func isDecided(request *certificatesv1.CertificateSigningRequest) bool {
	return len(request.Status.Certificate) > 0 || hasCondition(request, certificatesv1.CertificateDenied) || hasCondition(request, certificatesv1.CertificateFailed)
}

func hasCondition(request *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType) bool {
	for _, c := range request.Status.Conditions {
		if c.Type == condition {
			return true
		}
	}
	return false
}
