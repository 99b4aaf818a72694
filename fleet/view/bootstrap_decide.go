package view

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// joinAgain is the remedy for a token that cannot be used any more.
const joinAgain = "an administrator of the fleet makes another token with `atoll join NAME --mode pull --bootstrap`"

// bootstrapFacts determine whether a request of a syncer with a bootstrap token is signed.
type bootstrapFacts struct {
	request *certificatesv1.CertificateSigningRequest
	token   *corev1.Secret    // nil if it does not exist
	cluster *v1alpha1.Cluster // of the token's name; nil if it does not exist
	now     time.Time
}

// tokenOf returns the ID of the bootstrap token that a request was made with; false if it was made otherwise. The API
// server sets the user and the groups of a request.
func tokenOf(request *certificatesv1.CertificateSigningRequest) (id string, is bool) {
	id, is = strings.CutPrefix(request.Spec.Username, bootstrapapi.BootstrapUserPrefix)
	return id, is && slices.Contains(request.Spec.Groups, v1alpha1.BootstrapGroup)
}

// clusterOfToken returns the cluster that a token is for; "" if it names none.
func clusterOfToken(token *corev1.Secret) string {
	if token == nil || token.Type != corev1.SecretTypeBootstrapToken {
		return ""
	}
	return token.Annotations[v1alpha1.BootstrapClusterAnnotation]
}

// judge returns the parsed request for the certificate of a cluster, or why there must be none. It does not trust the name
// in the request: the token determines the cluster.
func (f bootstrapFacts) judge() (*x509.CertificateRequest, string) {
	id, is := tokenOf(f.request)
	if !is {
		return nil, "only a syncer with the bootstrap token of a cluster can request this certificate: use the manifests that `atoll join NAME --mode pull --bootstrap` prints"
	}
	name := clusterOfToken(f.token)
	switch {
	case f.token == nil, isExpired(f.token, f.now):
		return nil, fmt.Sprintf("bootstrap token %s has expired or was deleted: %s", id, joinAgain)
	case len(validation.IsDNS1123Label(name)) > 0, slices.Contains(v1alpha1.ReservedClusterNames(), name):
		return nil, fmt.Sprintf("bootstrap token %s is for no cluster: %s", id, joinAgain)
	}
	parsed, why := readBootstrapRequest(f.request, name)
	return parsed, cmp.Or(why, f.taken(id, name))
}

// taken returns why the name of a token's cluster belongs to another one.
func (f bootstrapFacts) taken(id, name string) string {
	c := f.cluster
	switch {
	case c == nil:
		return ""
	case c.DeletionTimestamp != nil:
		return fmt.Sprintf("cluster %s is still leaving: wait until it is gone (`kubectl get clusters`), and %s", name, joinAgain)
	case !c.InPullMode(), c.Annotations[v1alpha1.BootstrapTokenAnnotation] != id:
		return fmt.Sprintf("Cluster %s exists, and did not join with bootstrap token %s. If it is the same cluster, %s for it; otherwise use another name", name, id, joinAgain)
	}
	return ""
}

// isExpired reports whether a token is no longer valid. The API server rejects tokens without a valid time as well.
func isExpired(token *corev1.Secret, now time.Time) bool {
	until, has := token.Data[bootstrapapi.BootstrapTokenExpirationKey]
	if !has {
		return false
	}
	at, err := time.Parse(time.RFC3339, string(until))
	return err != nil || !now.Before(at)
}

// bootstrapUsages are those that a syncer's certificate may be requested for.
var bootstrapUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth}

// readBootstrapRequest returns the request for the certificate of a cluster's syncer, or why it is not one.
func readBootstrapRequest(request *certificatesv1.CertificateSigningRequest, cluster string) (*x509.CertificateRequest, string) {
	parsed, err := readRequest(string(request.Spec.Request))
	if err != nil {
		return nil, err.Error()
	}
	user := v1alpha1.SyncerUser(cluster)
	if parsed.Subject.CommonName != user {
		return nil, fmt.Sprintf("the request is for user %.100q, and the bootstrap token is for cluster %s, whose syncer is %q", parsed.Subject.CommonName, cluster, user)
	}
	if len(parsed.Subject.Names) != 1 {
		return nil, fmt.Sprintf("the subject of the request has more than the common name %q", user)
	}
	if len(parsed.DNSNames)+len(parsed.EmailAddresses)+len(parsed.IPAddresses)+len(parsed.URIs)+len(parsed.Extensions) > 0 {
		return nil, "the request has subject alternative names or other extensions, which a syncer's certificate must not have"
	}
	if !slices.Contains(request.Spec.Usages, certificatesv1.UsageClientAuth) {
		return nil, "the usages of the request lack " + string(certificatesv1.UsageClientAuth)
	}
	for _, usage := range request.Spec.Usages {
		if !slices.Contains(bootstrapUsages, usage) {
			return nil, fmt.Sprintf("usage %q of the request is not one of a client", usage)
		}
	}
	return parsed, ""
}
