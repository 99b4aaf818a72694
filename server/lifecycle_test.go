package server_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/server"
)

func TestRestartKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, server.Config{DataDir: dir})
	s.mustKubectl(t, "", "create", "configmap", "kept", "--from-literal=k=v")
	before, err := s.client(t).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := os.ReadFile(filepath.Join(dir, "pki", "admin.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}

	s = newServer(t, server.Config{DataDir: dir})
	after, err := s.client(t).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after.UID != before.UID || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("was %s@%s, is %s@%s", before.UID, before.ResourceVersion, after.UID, after.ResourceVersion)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "pki", "admin.crt")); err != nil || string(again) != string(admin) {
		t.Errorf("the administrator's certificate changed (%v)", err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestStopDoesNotWaitForWatches(t *testing.T) {
	s := newServer(t, server.Config{DataDir: t.TempDir()})
	w, err := s.client(t).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	inWorkspace, err := clientOf(t, s.createWorkspace(t, "watched")).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer inWorkspace.Stop()
	begun := time.Now()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	// Upstream's default would wait for a minute.
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("stopping took %v", took)
	}
	for range w.ResultChan() { // the watch ends
	}
	for range inWorkspace.ResultChan() { // and this one
	}
}

func TestTwoWorkspacesInOneProcessAreIsolated(t *testing.T) {
	one := theServer(t)
	two := newServer(t, server.Config{DataDir: t.TempDir(), WithoutWorkloadAPIs: true})
	defer func() {
		if err := two.stop(); err != nil {
			t.Error(err)
		}
	}()
	ns := one.namespace(t)
	createConfigMap(t, one.client(t), ns, "mine")
	if _, err := two.client(t).CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the other workspace has the namespace: %v", err)
	}
	if _, err := two.client(t).CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("the other workspace cannot have a namespace of that name: %v", err)
	}
	for _, absent := range []string{"deployments", "pods"} {
		if out, err := two.kubectl(t, "", "get", absent); err == nil || !strings.Contains(out, "doesn't have a resource type") {
			t.Errorf("%s without workload APIs: %v\n%s", absent, err, out)
		}
	}
	// Credentials of one are invalid in the other.
	stranger := rest.CopyConfig(one.config(t))
	stranger.Host = two.URL()
	stranger.CAData, stranger.Insecure = nil, true
	client, err := kubernetes.NewForConfig(stranger)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a certificate of the other workspace: %v, want Unauthorized", err)
	}
}

func TestStartErrorsAreOneLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inUse := theServer(t)

	for name, test := range map[string]struct {
		cfg  server.Config
		want []string
	}{
		"port in use":       {server.Config{DataDir: t.TempDir(), SecurePort: taken.Addr().(*net.TCPAddr).Port}, []string{"in use", "--secure-port"}},
		"address of others": {server.Config{DataDir: t.TempDir(), BindAddress: "192.0.2.1"}, []string{"192.0.2.1", "--bind-address"}},
		"not an address":    {server.Config{DataDir: t.TempDir(), BindAddress: "lagoon"}, []string{`"lagoon"`, "not an IP"}},
		"directory is file": {server.Config{DataDir: file}, []string{file}},
		"no directory":      {server.Config{}, []string{"--data-dir"}},
		"unknown scheme":    {server.Config{DataDir: t.TempDir(), Datastore: "mysql://u:secret@h/db"}, []string{`"mysql"`, "sqlite"}},
		"sqlite with host":  {server.Config{DataDir: t.TempDir(), Datastore: "sqlite://tmp/x.db"}, []string{"three slashes"}},
		"no audit policy":   {server.Config{DataDir: t.TempDir(), Audit: apiserver.Audit{LogPath: "-"}}, []string{"--audit-policy-file"}},
		"no such resource":  {server.Config{DataDir: t.TempDir(), Partitions: []string{"evnets"}}, []string{`"evnets"`, "did you mean events?"}},
		"wrong group":       {server.Config{DataDir: t.TempDir(), Partitions: []string{"leases.apps"}}, []string{`"leases.apps"`, "no such built-in resource"}},
		"database in use": {
			server.Config{DataDir: t.TempDir(), Datastore: "sqlite://" + filepath.Join(filepath.Dir(inUse.Kubeconfig()), "atoll.db")},
			[]string{"atoll.db"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := server.New(t.Context(), test.cfg)
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
				t.Errorf("more than one line, or a secret: %q", err)
			}
		})
	}
}

func TestFilesAreReadableByOwnerOnly(t *testing.T) {
	dir := filepath.Dir(theServer(t).Kubeconfig())
	providers := filepath.Join(dir, "providers")
	// SQLite's shared-memory file holds no data, only an index of its location. Users of providers pass through
	// directories, without reading them.
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir || strings.HasSuffix(path, "-shm") {
			return err
		}
		others := info.Mode().Perm() & 0o077
		if info.IsDir() && (path == providers || strings.HasPrefix(path, providers+"/")) {
			others &^= 0o011
		}
		if others != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
