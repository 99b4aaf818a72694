package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/ptr"
)

// TestApprovedCertificateRequestsAreSigned: a request waits for its approval, and the certificate then
// authenticates the user. A request for a group that may do everything is refused.
func TestApprovedCertificateRequestsAreSigned(t *testing.T) {
	s := theServer(t)
	admin := s.client(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(name string, subject pkix.Name) (*certificatesv1.CertificateSigningRequest, error) {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
		if err != nil {
			t.Fatal(err)
		}
		return admin.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: certificatesv1.KubeAPIServerClientSignerName, ExpirationSeconds: ptr.To[int32](3600),
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}}}, metav1.CreateOptions{})
	}
	if _, err := request("all-powerful", pkix.Name{CommonName: "ann", Organization: []string{"system:masters"}}); !apierrors.IsForbidden(err) {
		t.Errorf("a request for system:masters: %v", err)
	}
	r, err := request("ann", pkix.Name{CommonName: "ann", Organization: []string{"team-shop"}})
	if err != nil {
		t.Fatal(err)
	}
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Known"}}
	if _, err := admin.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), "ann", r, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the certificate is issued", func(ctx context.Context) (err error) {
		if r, err = admin.CertificatesV1().CertificateSigningRequests().Get(ctx, "ann", metav1.GetOptions{}); err == nil && len(r.Status.Certificate) == 0 {
			err = errors.New("it has none")
		}
		return err
	})
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.config(t))
	config.CertData, config.KeyData = r.Status.Certificate, keyPEM
	ann, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	review, err := ann.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "ann" || review.Status.UserInfo.Groups[0] != "team-shop" {
		t.Errorf("%v: %+v", err, review)
	}
}
