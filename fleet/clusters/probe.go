package clusters

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// result is the result of one probe.
type result struct {
	at      time.Time
	ready   bool
	reason  string
	message string
	version string
	id      string
	claim   *v1alpha1.ClusterClaim // nil if unknown
}

// excludes reports whether nothing may be written to the cluster that answered.
func (r result) excludes() bool {
	return r.reason == v1alpha1.ReasonWrongCluster || r.reason == v1alpha1.ReasonOtherControlPlane
}

// prober probes a member.
type prober struct {
	member typedcorev1.CoreV1Interface
	// expires is when the client certificate of the kubeconfig expires; zero if it has none.
	expires time.Time
	// renew is the command that replaces the kubeconfig.
	renew string
	connection
}

// The commands that replace a cluster's kubeconfig, by mode.
const (
	renewPush = "`atoll join`"
	renewPull = "`atoll syncer --kubeconfig`"
)

func newProber(access *rest.Config, renew string) (*prober, error) {
	cfg := rest.CopyConfig(access)
	cfg.Timeout = probeTimeout
	cfg.UserAgent = FieldManager
	fleet.BoundAnswers(cfg)
	member, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &prober{member: member, expires: expiry(cfg.CertData), renew: renew, connection: connection{config: cfg, testAfter: probeTimeout / 2}}, nil
}

// expiry returns when the first certificate of a file expires.
func expiry(certificates []byte) time.Time {
	block, _ := pem.Decode(certificates)
	if block == nil {
		return time.Time{}
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return certificate.NotAfter
}

// probe checks the member's readiness and ID. It also reads the version if it is unknown or again
// is set.
func (p *prober) probe(ctx context.Context, known result, again bool, now time.Time) result {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	out := result{at: now, version: known.version, id: known.id}
	connects := p.test(ctx)
	body, err := p.member.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	if connected := connects(err); connected {
		out.reason, out.message = v1alpha1.ReasonClusterSlow, fmt.Sprintf("the cluster's API server accepts connections and did not answer within %s: it is probably overloaded; see its log and load", probeTimeout)
		return out
	}
	if err != nil {
		out.reason, out.message = p.classify(err, body, now)
		return out
	}
	// With every probe, because another cluster may be behind the same address by now. A cluster
	// without permission to read it is synced all the same.
	if ns, err := p.member.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil {
		if !v1alpha1.ValidClusterID(string(ns.UID)) {
			out.reason, out.message = v1alpha1.ReasonClusterNotReady, "the namespace kube-system of the cluster has no valid UID, so this is not a Kubernetes cluster: check the address in the kubeconfig"
			return out
		}
		out.id = string(ns.UID)
	}
	if again || out.version == "" || out.id != known.id {
		said, err := versionOf(ctx, p.member)
		if err != nil {
			out.reason, out.message = p.classify(err, nil, now)
			return out
		}
		out.version = said.GitVersion
	}
	out.ready, out.reason, out.message = true, v1alpha1.ReasonClusterReady, "the cluster answers and is ready"
	if left := p.expires.Sub(now); !p.expires.IsZero() && left < expiryWarning {
		out.message += fmt.Sprintf("; the client certificate in its kubeconfig expires at %s: renew it with %s", p.expires.UTC().Format(time.RFC3339), p.renew)
	}
	return out
}

// validVersion matches versions, also those of builds without one ("v0.0.0-master+$Format:%H$").
var validVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+[-+.$%:A-Za-z0-9_~]{0,100}$`)

var errNoVersion = errors.New("the answer to /version has no valid version, so this is not a Kubernetes cluster: check the address in the kubeconfig")

func versionOf(ctx context.Context, member typedcorev1.CoreV1Interface) (said version.Info, err error) {
	body, err := member.RESTClient().Get().AbsPath("/version").SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return said, err
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return version.Info{}, errNoVersion
	}
	if !validVersion.MatchString(said.GitVersion) {
		return version.Info{}, errNoVersion
	}
	return said, nil
}

// classify distinguishes a cluster that answers with an error from one that does not answer, and
// adds the remedy. Equal errors give equal messages, because each change is a write.
func (p *prober) classify(err error, body []byte, now time.Time) (reason, message string) {
	var answer apierrors.APIStatus
	switch {
	case apierrors.IsUnauthorized(err) && !p.expires.IsZero() && now.After(p.expires):
		return v1alpha1.ReasonInvalidKubeConfig, fmt.Sprintf("the client certificate in the kubeconfig expired at %s: renew it with %s", p.expires.UTC().Format(time.RFC3339), p.renew)
	case apierrors.IsUnauthorized(err):
		return v1alpha1.ReasonInvalidKubeConfig, "the cluster does not accept the credentials in the kubeconfig (expired?): renew them with " + p.renew
	case apierrors.IsForbidden(err):
		return v1alpha1.ReasonInvalidKubeConfig, "the identity in the kubeconfig may not read /readyz: grant it at least system:monitoring, and write access to everything that is placed there"
	case errors.As(err, &answer) && isGateway(answer.Status().Code, body):
		return v1alpha1.ReasonClusterUnreachable, fmt.Sprintf("a proxy or load balancer in front of the cluster's API server answers with code %d, and does not reach it: check the API server, and the proxy", answer.Status().Code)
	case errors.As(err, &answer):
		return v1alpha1.ReasonClusterNotReady, fmt.Sprintf("the cluster reports that it is not ready (code %d%s); /readyz?verbose of its API server has the reason", answer.Status().Code, failedChecks(body))
	}
	return p.unreachable(err, now)
}

// failedCheck is the line of a failed check in the answer to /readyz.
var failedCheck = regexp.MustCompile(`(?m)^\[-\]([A-Za-z0-9/_.-]{1,80}) failed`)

// failedChecks names the checks that failed. Nothing else of the answer is shown: it would be a way to bring any text before the
// readers of a Cluster, or to read through the control plane what only it can reach.
func failedChecks(body []byte) string {
	const most = 5
	var failed []string
	for _, m := range failedCheck.FindAllSubmatch(body, most+1) {
		failed = append(failed, string(m[1]))
	}
	if len(failed) == 0 {
		return ""
	}
	more := ""
	if len(failed) > most {
		failed, more = failed[:most], " and more"
	}
	return "; failed checks: " + strings.Join(failed, ", ") + more
}

// unreachable explains why a cluster does not answer. The reason is ReasonClusterUnreachable only if no connection
// can be made: objects leave an unreachable cluster, and a server that refuses one is alive.
func (p *prober) unreachable(err error, now time.Time) (reason, message string) {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var certificate x509.CertificateInvalidError
	var name *net.DNSError
	var connection *net.OpError
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var refused fleet.AnswerError
	switch {
	case errors.Is(err, errNoVersion):
		return v1alpha1.ReasonClusterNotReady, err.Error()
	case errors.As(err, &refused):
		return v1alpha1.ReasonInvalidKubeConfig, refused.Error() + ", and provide it with " + p.renew
	case errors.As(err, &authority):
		return v1alpha1.ReasonInvalidKubeConfig, "the certificate of the cluster's API server is not signed by the authority in the kubeconfig: " +
			"if the cluster has a new authority, provide its kubeconfig with " + p.renew + "; otherwise another server answers"
	case errors.As(err, &host):
		return v1alpha1.ReasonInvalidKubeConfig, "the certificate of the cluster's API server is for other names (" + host.Error() +
			"): correct clusters[].cluster.server in the kubeconfig, or set tls-server-name there, and provide it with " + p.renew
	case errors.As(err, &certificate) && certificate.Reason == x509.Expired && now.Before(certificate.Cert.NotBefore):
		return v1alpha1.ReasonInvalidServerCertificate, fmt.Sprintf("the certificate of the cluster's API server is not valid before %s: check the clocks of the cluster and of Atoll",
			certificate.Cert.NotBefore.UTC().Format(time.RFC3339))
	case errors.As(err, &certificate) && certificate.Reason == x509.Expired:
		return v1alpha1.ReasonInvalidServerCertificate, fmt.Sprintf("the certificate of the cluster's API server expired at %s: renew it there (with kubeadm: `kubeadm certs renew apiserver`)",
			certificate.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &verification):
		return v1alpha1.ReasonInvalidKubeConfig, "the certificate of the cluster's API server cannot be verified with the kubeconfig (" + verification.Err.Error() +
			"): provide the cluster's kubeconfig with " + p.renew
	case errors.As(err, &connection) && connection.Op == "remote error":
		return v1alpha1.ReasonInvalidKubeConfig, "the cluster's API server refuses the TLS connection (" + connection.Err.Error() + "): renew the client certificate in the kubeconfig with " + p.renew
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return v1alpha1.ReasonInvalidKubeConfig, "the server at the address in the kubeconfig does not speak TLS, so it is not the cluster's API server: correct clusters[].cluster.server, and provide it with " + p.renew
	case errors.As(err, &name):
		return v1alpha1.ReasonClusterUnreachable, "cannot resolve " + name.Name +
			": check clusters[].cluster.server in the kubeconfig, and the DNS configuration"
	case errors.Is(err, syscall.ECONNREFUSED) && errors.As(err, &connection) && connection.Addr != nil:
		return v1alpha1.ReasonClusterUnreachable, "nothing listens at " + connection.Addr.String() +
			": start the cluster's API server there, or provide its address with " + p.renew
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return v1alpha1.ReasonClusterUnreachable, fmt.Sprintf("the cluster did not answer within %s: check the network between Atoll and its API server", probeTimeout)
	}
	return v1alpha1.ReasonClusterUnreachable, "the cluster cannot be reached (" + cause(err) + "): check the network between Atoll and its API server, and the address in the kubeconfig"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// cause returns an error without the parts that differ each time, such as the local port.
func cause(err error) string {
	var connection *net.OpError
	var request *url.Error
	switch {
	case strings.Contains(err.Error(), "malformed HTTP"): // the rest is what the server sent
		return "the answer is not HTTP"
	case errors.As(err, &connection):
		return connection.Op + ": " + connection.Err.Error()
	case errors.As(err, &request):
		return request.Err.Error()
	}
	return err.Error()
}

// health derives a cluster's health from its probes. A single failure after a success does not
// count yet.
type health struct {
	last    result // the current health
	probed  time.Time
	failing int
	// assumedReady: before the first probe, the cluster counts as ready, because the previous
	// leader recorded it as Ready.
	assumedReady bool
}

// add adds the result of a probe, and reports whether the health changed.
func (h *health) add(r result) (changed bool) {
	h.probed = r.at
	switch {
	case r.ready:
		h.failing = 0
	case r.excludes():
		h.failing = failureThreshold // never accidental
	default:
		h.failing++
		if (h.last.ready || h.assumedReady) && h.failing < failureThreshold {
			return false
		}
	}
	changed = h.last.at.IsZero() || h.last.ready != r.ready || h.last.reason != r.reason || h.last.message != r.message ||
		h.last.version != r.version || h.last.id != r.id || !equality.Semantic.DeepEqual(h.last.claim, r.claim)
	h.assumedReady = false
	if changed {
		h.last = r
	}
	return changed
}
