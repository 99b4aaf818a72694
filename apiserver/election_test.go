package apiserver_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	etcdclient "go.etcd.io/etcd/client/v3/kubernetes"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestControllersRunInOneServerOnly runs two servers on one keyspace, as servers of one
// workspace do.
func TestControllersRunInOneServerOnly(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	first := startServer(t, keyspace, files, "first")
	second := startServer(t, keyspace, files, "second")

	// Either server can be asked: they share their state.
	holder := func() string {
		lease, err := second.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "atoll-controllers", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return fmt.Sprint("nobody: ", err)
		}
		return *lease.Spec.HolderIdentity
	}
	await(t, "the first server leads", func() error {
		if now := holder(); now != "first" {
			return fmt.Errorf("leader is %s", now)
		}
		return nil
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if now := holder(); now == "first" {
		t.Error("the server has stopped and has not released the lease: the next leader waits until it expires")
	}
	await(t, "the second server leads", func() error {
		if now := holder(); now != "second" {
			return fmt.Errorf("leader is %s", now)
		}
		return nil
	})

	namespaces := second.client.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short-lived"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "its controllers work", func() error {
		_, err := second.client.CoreV1().ServiceAccounts("short-lived").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	if err := namespaces.Delete(t.Context(), "short-lived", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the namespace is deleted", func() error {
		_, err := namespaces.Get(t.Context(), "short-lived", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("namespace still exists (%v)", err)
	})
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
}

// blockedSession is a leadership session whose garbage collector does not stop when it
// should, but when the test ends it.
type blockedSession struct{ told, end chan struct{} }

// TestControllersStopBeforeTheirLeaseIsReleased: neither a server that cannot renew the
// Lease nor one that stops releases it while one of its controllers still acts.
func TestControllersStopBeforeTheirLeaseIsReleased(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	sessions := make(chan blockedSession, 1)
	files := makeFiles(t)
	files.SharedGroups = func(ctx context.Context) (func(string) bool, error) {
		s := blockedSession{make(chan struct{}), make(chan struct{})}
		sessions <- s
		<-ctx.Done()
		close(s.told)
		<-s.end
		return nil, ctx.Err()
	}
	server := startServer(t, keyspace, files, "server")
	leases := server.client.CoordinationV1().Leases("kube-system")
	holder := func() string {
		t.Helper()
		lease, err := leases.Get(t.Context(), "atoll-controllers", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return ptr.Deref(lease.Spec.HolderIdentity, "")
	}

	losing := <-sessions
	allow := denyRenewals(t, server)
	<-losing.told
	if now := holder(); now != "server" {
		t.Errorf("the lease was lost, a controller still acts, and the holder is %q", now)
	}
	close(losing.end)
	await(t, "the lease is released", func() error {
		if now := holder(); now != "" {
			return fmt.Errorf("the holder is %q", now)
		}
		return nil
	})

	allow()
	stopping := <-sessions
	stopped := make(chan error, 1)
	go func() { stopped <- server.stop() }()
	<-stopping.told
	if now := holder(); now != "server" {
		t.Errorf("the server stops, a controller still acts, and the holder is %q", now)
	}
	close(stopping.end)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

// denyRenewals has the server reject renewals of the controllers' Lease, but not its
// release, until allow is called.
func denyRenewals(t *testing.T, s running) (allow func()) {
	t.Helper()
	const name = "no-renewals"
	api := s.client.AdmissionregistrationV1()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: `object.metadata.name != "atoll-controllers" || !has(object.spec.holderIdentity) || object.spec.holderIdentity == ""`,
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := api.ValidatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

type running struct {
	config *rest.Config
	client *kubernetes.Clientset
	stop   func() error
	server *apiserver.Server
}

func startServer(t *testing.T, keyspace *etcdclient.Client, files apiserver.Config, identity string) running {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := files
	cfg.Workspace, cfg.Keyspace, cfg.Identity, cfg.Shared = "default", keyspace, identity, true
	cfg.Listener, cfg.AdvertiseAddress = listener, net.IPv4(127, 0, 0, 1)
	server, err := apiserver.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	select {
	case <-server.Ready():
	case err := <-done:
		t.Fatalf("server %s ended: %v", identity, err)
	case <-time.After(time.Minute):
		t.Fatalf("server %s is not ready", identity)
	}
	config := server.ClientConfig("test")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return running{config, client, func() error {
		cancel()
		return <-done
	}, server}
}

// makeFiles creates certificates and keys that suffice for a server used only by its
// own loopback client.
func makeFiles(t *testing.T) apiserver.Config {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	accountKey, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile := write("tls.crt", certPEM)
	return apiserver.Config{
		TLS:                   apiserver.TLS{CertFile: certFile, KeyFile: write("tls.key", keyPEM), ClientCAFile: certFile, RootCAFile: certFile},
		ServiceAccountKeyFile: write("sa.key", accountKey),
	}
}

func await(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}
