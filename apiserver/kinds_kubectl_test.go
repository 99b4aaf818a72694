package apiserver_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubectlRole makes the test binary run as kubectl: the real one, in its own process.
const kubectlRole = "ATOLL_TEST_KUBECTL"

// kubectlFor returns a function that runs the real kubectl against a server and returns
// its output on both streams. It keeps kubectl's discovery cache between calls.
func kubectlFor(t *testing.T, c *rest.Config) func(stdin string, args ...string) (string, error) {
	t.Helper()
	home := t.TempDir()
	file := filepath.Join(home, "config")
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData, TLSServerName: c.ServerName}
	config.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: c.BearerToken, Impersonate: c.Impersonate.UserName, ImpersonateGroups: c.Impersonate.Groups}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	config.CurrentContext = "it"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return func(stdin string, args ...string) (string, error) {
		t.Helper()
		command := exec.CommandContext(t.Context(), os.Args[0], args...)
		command.Env = append(os.Environ(), kubectlRole+"=1", "HOME="+home, "KUBECONFIG="+file, "KUBE_EDITOR=sed -i 's/size:.*/size: 77/'")
		command.Stdin = strings.NewReader(stdin)
		var out bytes.Buffer
		command.Stdout, command.Stderr = &out, &out
		err := command.Run()
		return out.String(), err
	}
}

// TestKubectlWithKindsWithoutCRDs: common kubectl commands work with these kinds.
func TestKubectlWithKindsWithoutCRDs(t *testing.T) {
	t.Parallel()
	server := serveKinds(t, newSource(shops()...), makeFiles(t))
	kubectl := kubectlFor(t, server.config)
	const small = "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: shelf}\nspec:\n  size: 1\n  parts: [{name: board, weight: 2}]\n"
	large := strings.Replace(small, "size: 1", "size: 7", 1)
	for _, step := range []struct {
		stdin, command string
		fails          bool
		says           []string
	}{
		{"", "api-resources --api-group=shop.example.com --no-headers", false, []string{"plains", "widgets", "wd", "shop.example.com/v1", "true", "Widget"}},
		{"", "explain widgets.spec", false, []string{"GROUP:      shop.example.com", "KIND:       Widget", "size\t<integer>", "How large the widget is.", "parts\t<[]Object>"}},
		{"", "explain wd.metadata.labels", false, []string{"FIELD: labels <map[string]string>"}},
		{"", "explain region", false, []string{"VERSION:    v2", "spec\t<Object>", "metadata\t<ObjectMeta>"}},
		{small, "apply -f -", false, []string{"widget.shop.example.com/shelf created"}},
		{small, "apply -f -", false, []string{"widget.shop.example.com/shelf unchanged"}},
		{large, "diff -f -", true, []string{"-  size: 1", "+  size: 7"}},
		{large, "apply -f - --dry-run=server", false, []string{"configured (server dry run)"}},
		{large, "apply -f -", false, []string{"widget.shop.example.com/shelf configured"}},
		{strings.Replace(large, "weight", "wait", 1), "apply -f -", true, []string{`unknown field "spec.parts[0].wait"`}},
		{strings.Replace(small, "size: 1", "size: 8", 1), "apply --server-side --force-conflicts -f -", false, []string{"serverside-applied"}},
		{"", "get widgets", false, []string{"NAME    SIZE   AGE", "shelf   8 "}},
		{"", "get wd -o wide", false, []string{"NAME    SIZE   PHASE   AGE"}},
		{"", "get things", false, []string{"shelf"}},
		{"", "edit widget shelf", false, []string{"widget.shop.example.com/shelf edited"}},
		{"", "get widget/shelf -o jsonpath={.spec.size},{.metadata.generation}", false, []string{"77,4"}},
		{"", "label widget shelf a=b", false, []string{"labeled"}},
		{"", "delete widget shelf", false, []string{"deleted"}},
	} {
		out, err := kubectl(step.stdin, strings.Fields(step.command)...)
		if (err != nil) != step.fails {
			t.Errorf("kubectl %s: %v\n%s", step.command, err, out)
		}
		for _, part := range step.says {
			if !strings.Contains(out, part) {
				t.Errorf("kubectl %s: output lacks %q:\n%s", step.command, part, out)
			}
		}
	}
}
