package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestKubeconfigSetsServerURL(t *testing.T) {
	dir := t.TempDir()
	config := clientcmdapi.NewConfig()
	config.Clusters["atoll"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:6443", CertificateAuthorityData: []byte("authority")}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: []byte("certificate"), ClientKeyData: []byte("key")}
	config.Contexts["atoll"] = &clientcmdapi.Context{Cluster: "atoll", AuthInfo: "admin"}
	config.CurrentContext = "atoll"
	if err := clientcmd.WriteToFile(*config, filepath.Join(dir, "admin.kubeconfig")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ flag, want string }{
		{"", "https://127.0.0.1:6443"},
		{"--server=https://atoll.example.com", "https://atoll.example.com"},
	} {
		args := []string{"atoll", "kubeconfig", "--data-dir", dir}
		if test.flag != "" {
			args = append(args, test.flag)
		}
		code, stdout, stderr := run(t, args...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		got, err := clientcmd.Load([]byte(stdout))
		if err != nil {
			t.Fatal(err)
		}
		if server := got.Clusters["atoll"].Server; server != test.want {
			t.Errorf("%s: server URL %s", test.flag, server)
		}
		if string(got.Clusters["atoll"].CertificateAuthorityData) != "authority" || string(got.AuthInfos["admin"].ClientKeyData) != "key" {
			t.Errorf("%s: data is missing:\n%s", test.flag, stdout)
		}
	}
	for flags, remedy := range map[string]string{
		"--data-dir=" + filepath.Join(dir, "none"):    "writes the file when it starts",
		"--data-dir=" + dir + " --server=example.com": "https://",
	} {
		if code, _, stderr := run(t, append([]string{"atoll", "kubeconfig"}, strings.Fields(flags)...)...); code != 1 || !strings.Contains(stderr, remedy) {
			t.Errorf("%s: exit code %d, want 1 and %q: %s", flags, code, remedy, stderr)
		}
	}
	// The server's own file must not change.
	if content, err := os.ReadFile(filepath.Join(dir, "admin.kubeconfig")); err != nil || strings.Contains(string(content), "example.com") {
		t.Errorf("the server's own file was changed: %v\n%s", err, content)
	}
}
