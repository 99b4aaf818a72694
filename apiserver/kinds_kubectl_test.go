package apiserver_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
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

// TestKubectlReadsSmallDocuments: kubectl commands that write get a document with only
// the operations that they look for. kubectl explain, with the same cache on disk, still
// finds every field.
func TestKubectlReadsSmallDocuments(t *testing.T) {
	t.Parallel()
	server := serveKinds(t, newSource(shops()...), makeFiles(t))
	transport, err := rest.TransportFor(server.config)
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := url.Parse(server.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var documents []string
	proxy := httputil.NewSingleHostReverseProxy(upstream)
	proxy.Transport = transport
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path != "/openapi/v3/apis/shop.example.com/v1" {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		defer mu.Unlock()
		documents = append(documents, string(body))
		return nil
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Accept-Encoding") // the test reads the documents
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	kubectl := kubectlFor(t, &rest.Config{Host: front.URL})

	const widget, field = "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: shelf}\nspec:\n  size: 1\n", "How large the widget is."
	for _, step := range []struct{ stdin, command, want string }{
		{widget, "apply -f -", "created"},
		{strings.Replace(widget, "size: 1", "size: 2", 1), "apply -f -", "configured"},
		{"", "explain widgets.spec.size", field},
		{strings.Replace(widget, "size: 1", "size: 3", 1), "apply -f -", "configured"},
		{"", "explain widgets.spec.size", field},
	} {
		documents = nil
		out, err := kubectl(step.stdin, strings.Fields(step.command)...)
		if err != nil || !strings.Contains(out, step.want) {
			t.Errorf("kubectl %s: %v: %s", step.command, err, out)
		}
		if strings.HasPrefix(step.command, "apply") {
			for _, document := range documents {
				if strings.Contains(document, field) || !strings.Contains(document, "fieldValidation") {
					t.Errorf("kubectl %s reads %s", step.command, document)
				}
			}
		}
	}
}
