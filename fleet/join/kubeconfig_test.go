package join

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/fleet"
)

func kubeconfig(cluster, user string) string {
	return `apiVersion: v1
kind: Config
current-context: one
contexts:
- {name: one, context: {cluster: c, user: u}}
- {name: two, context: {cluster: other, user: other}}
- {name: broken, context: {cluster: missing, user: u}}
clusters:
- {name: c, cluster: {server: "https://c.example:6443"` + cluster + `}}
- {name: other, cluster: {server: "https://other.example"}}
users:
- {name: u, user: {` + user + `}}
- {name: other, user: {token: other-secret}}
`
}

func TestPackKubeconfig(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"ca.crt": "CA", "tls.crt": "CERT", "tls.key": "KEY", "token": "from-file\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	packed, err := packKubeconfig([]byte(kubeconfig(", certificate-authority: ca.crt", "client-certificate: tls.crt, client-key: tls.key")), "", dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.Load(packed)
	if err != nil {
		t.Fatal(err)
	}
	user := cfg.AuthInfos["u"]
	if string(cfg.Clusters["c"].CertificateAuthorityData) != "CA" || string(user.ClientCertificateData) != "CERT" || string(user.ClientKeyData) != "KEY" {
		t.Errorf("the files were not inlined:\n%s", packed)
	}
	if len(cfg.Contexts) != 1 || strings.Contains(string(packed), "other-secret") {
		t.Errorf("more than one context was kept:\n%s", packed)
	}

	packed, err = packKubeconfig([]byte(kubeconfig("", "tokenFile: token")), "", dir)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := fleet.MemberConfig(packed)
	if err != nil {
		t.Fatal(err)
	}
	if rest.BearerToken != "from-file" || rest.Host != "https://c.example:6443" {
		t.Errorf("token %q, host %q", rest.BearerToken, rest.Host)
	}

	packed, err = packKubeconfig([]byte(kubeconfig("", "token: x")), "two", dir)
	if err != nil {
		t.Fatal(err)
	}
	if rest, err = fleet.MemberConfig(packed); err != nil || rest.Host != "https://other.example" {
		t.Errorf("context two: %v, %v", rest, err)
	}
}

func TestKubeconfigsThatAreRefused(t *testing.T) {
	exec := "exec: {apiVersion: client.authentication.k8s.io/v1, command: steal, interactiveMode: Never}"
	tests := []struct{ name, data, context, want string }{
		{"not a kubeconfig", "{{{ top-secret", "", "kubeconfig"},
		{"empty", "", "", "--context"},
		{"no such context", kubeconfig("", "token: top-secret"), "three", "broken, one, two"},
		{"half a context", kubeconfig("", "token: top-secret"), "broken", "incomplete"},
		{"a program", kubeconfig("", exec), "", "token"},
		{"an auth provider", kubeconfig("", "auth-provider: {name: gcp}"), "", "gcp"},
		{"a missing file", kubeconfig(", certificate-authority: gone.crt", "token: top-secret"), "", "gone.crt"},
		{"no server", strings.Replace(kubeconfig("", "token: top-secret"), "https://c.example:6443", "", 1), "", "server"},
	}
	for _, tt := range tests {
		_, err := packKubeconfig([]byte(tt.data), tt.context, t.TempDir())
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error about %q", tt.name, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "top-secret") {
			t.Errorf("%s: the error shows a secret: %v", tt.name, err)
		}
	}
	// A kubeconfig in a Secret must not reach the server's own files.
	for _, data := range []string{
		kubeconfig("", exec), kubeconfig("", "tokenFile: /etc/hostname"), kubeconfig(", certificate-authority: /etc/hostname", "token: x"),
		kubeconfig("", "client-certificate: /etc/hostname, client-key: /etc/hostname"),
	} {
		if _, err := fleet.MemberConfig([]byte(data)); err == nil {
			t.Errorf("accepted:\n%s", data)
		}
	}
	if _, err := fleet.MemberConfig([]byte("{{{ top-secret")); err == nil || strings.Contains(err.Error(), "top-secret") {
		t.Errorf("broken kubeconfig: %v", err)
	}
}
