package server_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/server"
)

// TestRevokeTheAdministratorsCertificate: after a rotation of the authority, the former kubeconfig of the administrator
// and the new one work. After the former authority was forgotten, no certificate of it is accepted.
func TestRevokeTheAdministratorsCertificate(t *testing.T) {
	cfg := server.Config{DataDir: t.TempDir(), WithoutWorkloadAPIs: true}
	place := server.KeyPlace{DataDir: cfg.DataDir}
	var a atoll
	restart := func(change server.KeyChange) {
		t.Helper()
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := server.ChangeKeys(t.Context(), place, change, time.Now(), false); err != nil {
			t.Fatal(err)
		}
		a = newServer(t, cfg)
	}
	// with lists namespaces with the certificate of a kubeconfig. The port changes with each start, and a client that trusted
	// only the former authority would notice the change itself.
	with := func(kubeconfig []byte) error {
		t.Helper()
		saved, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		config := a.config(t)
		config.CertData, config.KeyData = saved.CertData, saved.KeyData
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return err
	}
	read := func() []byte {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(cfg.DataDir, "admin.kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}

	a = newServer(t, cfg)
	former := read()
	restart(server.KeyChange{Authority: true})
	present := read()
	for name, kubeconfig := range map[string][]byte{"former": former, "present": present} {
		if err := with(kubeconfig); err != nil {
			t.Errorf("after the rotation, with the %s kubeconfig: %v", name, err)
		}
	}
	restart(server.KeyChange{Forget: true})
	if err := with(present); err != nil {
		t.Errorf("after the former authority was forgotten, with the present kubeconfig: %v", err)
	}
	if err := with(former); !apierrors.IsUnauthorized(err) {
		t.Errorf("after the former authority was forgotten, with the former kubeconfig: %v", err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
}
