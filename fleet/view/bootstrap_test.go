package view

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestBootstrapRequests: a request is signed only if it was made with the token of the cluster that it names, asks for
// nothing but a client certificate of the syncer, and no other cluster has the name.
func TestBootstrapRequests(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	encoded := func(request x509.CertificateRequest) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &request, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	subject := func(name pkix.Name) func(*bootstrapFacts) {
		return func(f *bootstrapFacts) { f.request.Spec.Request = encoded(x509.CertificateRequest{Subject: name}) }
	}
	cluster := func(mode v1alpha1.ClusterMode, token string) func(*bootstrapFacts) {
		return func(f *bootstrapFacts) {
			f.cluster = &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "north", Annotations: map[string]string{v1alpha1.BootstrapTokenAnnotation: token}}, Spec: v1alpha1.ClusterSpec{Mode: mode}}
		}
	}
	for name, tt := range map[string]struct {
		change func(*bootstrapFacts)
		why    string // "" if it may be signed
	}{
		"a new cluster":             {func(*bootstrapFacts) {}, ""},
		"the cluster of this token": {cluster(v1alpha1.ModePull, "abcdef"), ""},
		"the cluster of another":    {cluster(v1alpha1.ModePull, "123456"), "Cluster north exists, and did not join with bootstrap token abcdef"},
		"a cluster of neither":      {cluster(v1alpha1.ModePull, ""), "--bootstrap` for it"},
		"a cluster in mode Push":    {cluster(v1alpha1.ModePush, "abcdef"), "Cluster north exists"},
		"a cluster that leaves": {func(f *bootstrapFacts) {
			cluster(v1alpha1.ModePull, "abcdef")(f)
			f.cluster.DeletionTimestamp = &metav1.Time{Time: now}
		}, "still leaving"},
		"another name":       {subject(pkix.Name{CommonName: "atoll:syncer:west"}), `the request is for user "atoll:syncer:west", and the bootstrap token is for cluster north`},
		"an administrator":   {subject(pkix.Name{CommonName: "atoll:syncer:north", Organization: []string{"system:masters"}}), "more than the common name"},
		"another credential": {subject(pkix.Name{CommonName: "atoll:syncer:north", Organization: []string{"atoll:credential:1"}}), "more than the common name"},
		"two common names":   {subject(pkix.Name{CommonName: "atoll:syncer:north", ExtraNames: []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 3}, Value: "x"}}}), "bootstrap token is for cluster north"},
		"a host": {func(f *bootstrapFacts) {
			f.request.Spec.Request = encoded(x509.CertificateRequest{Subject: pkix.Name{CommonName: "atoll:syncer:north"}, DNSNames: []string{"atoll"}})
		}, "subject alternative names"},
		"a server": {func(f *bootstrapFacts) {
			f.request.Spec.Usages = append(f.request.Spec.Usages, certificatesv1.UsageServerAuth)
		}, `usage "server auth"`},
		"no client":                {func(f *bootstrapFacts) { f.request.Spec.Usages = f.request.Spec.Usages[:1] }, "lack client auth"},
		"no request":               {func(f *bootstrapFacts) { f.request.Spec.Request = []byte("x") }, "not a certificate request"},
		"no token":                 {func(f *bootstrapFacts) { f.token = nil }, "has expired or was deleted"},
		"an expired token":         {func(f *bootstrapFacts) { f.now = now.Add(time.Hour) }, "has expired or was deleted"},
		"a token without a time":   {func(f *bootstrapFacts) { f.token.Data["expiration"] = []byte("soon") }, "has expired or was deleted"},
		"a token of kubeadm":       {func(f *bootstrapFacts) { f.token.Annotations = nil }, "is for no cluster"},
		"a Secret of another type": {func(f *bootstrapFacts) { f.token.Type = corev1.SecretTypeOpaque }, "is for no cluster"},
		"a reserved name": {func(f *bootstrapFacts) {
			f.token.Annotations[v1alpha1.BootstrapClusterAnnotation] = v1alpha1.ReservedClusterNames()[0]
		}, "is for no cluster"},
		"another user":             {func(f *bootstrapFacts) { f.request.Spec.Username = "ann" }, "only a syncer with the bootstrap token"},
		"a token of another group": {func(f *bootstrapFacts) { f.request.Spec.Groups = []string{"system:bootstrappers"} }, "only a syncer with the bootstrap token"},
		"an administrator's request": {func(f *bootstrapFacts) {
			f.request.Spec.Username = "admin"
			f.request.Spec.Groups = []string{"system:masters"}
		}, "only a syncer with the bootstrap token"},
	} {
		t.Run(name, func(t *testing.T) {
			f := bootstrapFacts{now: now,
				request: &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: v1alpha1.SyncerSignerName,
					Request:  encoded(x509.CertificateRequest{Subject: pkix.Name{CommonName: "atoll:syncer:north"}}),
					Usages:   []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
					Username: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", v1alpha1.BootstrapGroup}}},
				token: &corev1.Secret{Type: corev1.SecretTypeBootstrapToken, ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.BootstrapClusterAnnotation: "north"}},
					Data: map[string][]byte{"expiration": []byte(now.Add(time.Minute).Format(time.RFC3339))}}}
			tt.change(&f)
			parsed, why := f.judge()
			if tt.why == "" && (why != "" || parsed == nil) || tt.why != "" && !strings.Contains(why, tt.why) {
				t.Errorf("%q, want %q", why, tt.why)
			}
		})
	}
}
