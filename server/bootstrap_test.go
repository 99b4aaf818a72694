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
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/fleet/view"
)

// bootstrapToken makes a token for a cluster and waits until the server accepts it.
func (a atoll) bootstrapToken(t *testing.T, cluster string) string {
	t.Helper()
	token, err := join.Bootstrap(t.Context(), a.config(t), cluster, time.Hour, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token may read its request", func(ctx context.Context) error {
		_, err := a.withToken(t, token).CertificatesV1().CertificateSigningRequests().Get(ctx, "none", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it gets %w", err)
	})
	return token
}

func (a atoll) withToken(t *testing.T, token string) *kubernetes.Clientset {
	t.Helper()
	config := rest.AnonymousClientConfig(a.config(t))
	config.BearerToken, config.QPS = token, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// joining is a syncer that waits for its certificate.
type joining struct {
	waits chan string // the name of its request
	saved []byte      // last
	done  chan error
	out   []byte
}

// bootstrap starts a syncer with a kubeconfig.
func (a atoll) bootstrap(t *testing.T, kubeconfig []byte) *joining {
	t.Helper()
	j := &joining{waits: make(chan string, 1), done: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go func() {
		var err error
		j.out, err = view.Bootstrap(ctx, view.BootstrapConfig{Kubeconfig: kubeconfig, Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{},
			Save: func(_ context.Context, kubeconfig []byte) error { j.saved = kubeconfig; return nil },
			Progress: func(message string) {
				if name, is := strings.CutPrefix(message, "waiting for approval: kubectl certificate approve "); is {
					j.waits <- name
				}
			}})
		j.done <- err
	}()
	return j
}

// request returns the name of the syncer's request.
func (j *joining) request(t *testing.T) string {
	t.Helper()
	select {
	case name := <-j.waits:
		return name
	case err := <-j.done:
		t.Fatalf("the syncer does not wait: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the syncer has not made a request")
	}
	return ""
}

func (j *joining) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-j.done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("the syncer still waits")
	}
	return nil
}

func (a atoll) bootstrapKubeconfig(t *testing.T, cluster, token string) []byte {
	t.Helper()
	kubeconfig, err := view.BootstrapKubeconfig(a.config(t), cluster, "", token)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// TestClusterJoinsWithToken: the syncer of a cluster makes a key, a user approves its request, and it has the credential of
// this cluster, which can be revoked. A restart while it waits continues the same request.
func TestClusterJoinsWithToken(t *testing.T) {
	a := theServer(t)
	const cluster = "by-token"
	token := a.bootstrapToken(t, cluster)
	first := a.bootstrap(t, a.bootstrapKubeconfig(t, cluster, token))
	request := first.request(t)
	again := a.bootstrap(t, first.saved)
	if other := again.request(t); other != request {
		t.Errorf("after a restart the request is %s, before %s", other, request)
	}
	clusters := a.dynamic(t).Resource(v1alpha1.ClusterResource)
	if _, err := clusters.Get(t.Context(), cluster, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the cluster before its approval: %v", err)
	}
	if out, err := a.kubectl(t, "", "certificate", "approve", request); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for _, j := range []*joining{first, again} {
		if err := j.end(t); err != nil {
			t.Fatal(err)
		}
	}
	if view.IsBootstrap(again.saved) || strings.Contains(string(again.saved), token) {
		t.Error("the stored kubeconfig still has the token")
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(again.out)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	syncer := syncerCredential{a.URL(), config, client}
	reads := func(want int) func(context.Context) error {
		return func(context.Context) error {
			if code, body := syncer.send(t, "GET", "/services/clusters/"+cluster+"/api/v1/secrets", ""); code != want {
				return fmt.Errorf("%d %s, want %d", code, body, want)
			}
			return nil
		}
	}
	eventually(t, "it reads its view", reads(200))
	u, err := clusters.Get(t.Context(), cluster, metav1.GetOptions{})
	if err != nil || u.GetAnnotations()[v1alpha1.BootstrapTokenAnnotation] != token[:6] {
		t.Errorf("the cluster is %v, %v", u, err)
	}
	if _, err := view.NewRemote(view.RemoteConfig{Kubeconfig: again.out}); err != nil {
		t.Errorf("a syncer with it: %v", err)
	}

	// The name is taken now: by another token only if an administrator of the fleet makes one for this Cluster.
	if err := a.refusedToken(t, cluster, "did not join with bootstrap token"); err != nil {
		t.Error(err)
	}
	second := a.bootstrap(t, a.bootstrapKubeconfig(t, cluster, a.bootstrapToken(t, cluster)))
	if out, err := a.kubectl(t, "", "certificate", "approve", second.request(t)); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := second.end(t); err != nil {
		t.Error(err)
	}
	eventually(t, "the first credential is revoked", reads(403))
}

// refusedToken makes a token by hand, which the Cluster does not know, and returns an error unless the request is refused.
func (a atoll) refusedToken(t *testing.T, cluster, why string) error {
	t.Helper()
	token := a.bootstrapToken(t, "free-name")
	if _, err := a.client(t).CoreV1().Secrets("kube-system").Patch(t.Context(), "bootstrap-token-"+token[:6], types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.BootstrapClusterAnnotation, cluster), metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := a.bootstrap(t, a.bootstrapKubeconfig(t, cluster, token)).end(t); err == nil || !strings.Contains(err.Error(), why) {
		return fmt.Errorf("another token of the cluster: %w, want %q", err, why)
	}
	return nil
}

// TestBootstrapIsRefused: what a syncer with a token does not get, and what its terminal shows.
func TestBootstrapIsRefused(t *testing.T) {
	a := theServer(t)
	t.Run("denied", func(t *testing.T) {
		j := a.bootstrap(t, a.bootstrapKubeconfig(t, "denied", a.bootstrapToken(t, "denied")))
		if out, err := a.kubectl(t, "", "certificate", "deny", j.request(t)); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		if err := j.end(t); err == nil || !strings.Contains(err.Error(), "Denied") || !strings.Contains(err.Error(), "cluster denied") {
			t.Errorf("a denied syncer: %v", err)
		}
	})
	t.Run("the token of another cluster", func(t *testing.T) {
		err := a.bootstrap(t, a.bootstrapKubeconfig(t, "west-of-it", a.bootstrapToken(t, "east-of-it"))).end(t)
		if err == nil || !strings.Contains(err.Error(), "bootstrap token is for cluster east-of-it") {
			t.Errorf("a syncer of another cluster: %v", err)
		}
	})
	t.Run("an expired token", func(t *testing.T) {
		token := a.bootstrapToken(t, "late")
		j := a.bootstrap(t, a.bootstrapKubeconfig(t, "late", token))
		request := j.request(t)
		if err := a.client(t).CoreV1().Secrets("kube-system").Delete(t.Context(), "bootstrap-token-"+token[:6], metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		// The controller may not have handled the new request when the token is deleted. Then it denies the request before the
		// user approves it.
		if out, err := a.kubectl(t, "", "certificate", "approve", request); err != nil && !strings.Contains(out, "already Denied") {
			t.Fatalf("%v %s", err, out)
		}
		eventually(t, "the request is denied, or has failed after its approval", func(ctx context.Context) error {
			r, err := a.client(t).CertificatesV1().CertificateSigningRequests().Get(ctx, request, metav1.GetOptions{})
			if err == nil && !slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
				return c.Type == certificatesv1.CertificateFailed || c.Type == certificatesv1.CertificateDenied
			}) {
				err = fmt.Errorf("it has %v", r.Status.Conditions)
			}
			return err
		})
		if err := j.end(t); err == nil || !strings.Contains(err.Error(), "expired") || !strings.Contains(err.Error(), "--bootstrap") {
			t.Errorf("a syncer without a token: %v", err)
		}
		// The server accepts a token for a few seconds after its Secret is gone, so this one was never there.
		err := a.bootstrap(t, a.bootstrapKubeconfig(t, "late", "abcdef.0123456789abcdef")).end(t)
		if err == nil || !strings.Contains(err.Error(), "does not accept the bootstrap token of cluster late") {
			t.Errorf("a syncer with an unknown token: %v", err)
		}
	})
	t.Run("the token's secret is deleted when it expires", func(t *testing.T) {
		token := a.bootstrapToken(t, "expiring")
		name := "bootstrap-token-" + token[:6]
		secrets := a.client(t).CoreV1().Secrets("kube-system")
		if _, err := secrets.Patch(t.Context(), name, types.MergePatchType, []byte(`{"stringData":{"expiration":"2020-01-01T00:00:00Z"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func(ctx context.Context) error {
			if _, err := secrets.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	})
	t.Run("everything else", func(t *testing.T) { a.onlyRequests(t, a.bootstrapToken(t, "curious")) })
}

// onlyRequests checks that a token gives no access but to make and read requests to one signer.
func (a atoll) onlyRequests(t *testing.T, token string) {
	client := a.withToken(t, token)
	ctx := t.Context()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "ann"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	request := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "curious"},
		Spec: certificatesv1.CertificateSigningRequestSpec{Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}}
	if _, err := requests.Create(ctx, request, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), v1alpha1.SyncerSignerName) {
		t.Errorf("a request to another signer: %v", err)
	}
	for what, try := range map[string]func() error{
		"list requests":   func() error { _, err := requests.List(ctx, metav1.ListOptions{}); return err },
		"delete requests": func() error { return requests.Delete(ctx, "x", metav1.DeleteOptions{}) },
		"approve": func() error {
			request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
			_, err := requests.UpdateApproval(ctx, "curious", request, metav1.UpdateOptions{})
			return err
		},
		"read secrets": func() error {
			_, err := client.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
			return err
		},
		"read clusters": func() error {
			return client.Discovery().RESTClient().Get().AbsPath("/apis/fleet.atoll.dev/v1alpha1/clusters").Do(ctx).Error()
		},
		"read its view": func() error {
			return client.Discovery().RESTClient().Get().AbsPath("/services/clusters/curious/api").Do(ctx).Error()
		},
		"take a credential": func() error {
			return client.Discovery().RESTClient().Post().AbsPath("/services/clusters/curious/credential").Do(ctx).Error()
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, errors.Join(err))
		}
	}
}
