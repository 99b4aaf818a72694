package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// TestWorkspaceListOfTree: the workspaces of a tree include those directly below its top, which are objects of the top. Without the right to list them there,
// the command prints a warning.
func TestWorkspaceListOfTree(t *testing.T) {
	forbidden := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		workspace := func(name, above string) string {
			annotations := ""
			if above != "" {
				annotations = `,"annotations":{"` + v1alpha1.WorkspaceAnnotation + `":"` + above + `"}`
			}
			return `{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"Workspace","metadata":{"name":"` + name + `"` + annotations + `},"status":{"phase":"Ready"}}`
		}
		var items []string
		switch path, _, _ := strings.Cut(r.URL.Path, "/apis/"); path {
		case "/clusters/a:*":
			items = []string{workspace("deep", "a:z"), workspace("x", "a:b")}
		case "/clusters/*":
			items = []string{workspace("b", "a")}
		case "/clusters/a":
			items = []string{workspace("b", ""), workspace("z", "")}
		case "":
			items = []string{workspace("a", "")}
		}
		if forbidden && !strings.Contains(r.URL.Path, "*") {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no"})
			return
		}
		_, _ = io.WriteString(w, `{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"WorkspaceList","items":[`+strings.Join(items, ",")+`]}`)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: t}}], clusters: [{name: a, cluster: {server: '" + server.URL + "'}}]}"
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (names, warning string) {
		t.Helper()
		var out, errs strings.Builder
		if code := Main(append(append([]string{"atoll", "workspace"}, args...), "--kubeconfig", kubeconfig), &out, &errs); code != 0 {
			t.Fatalf("%v: %s", args, errs.String())
		}
		for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n")[1:] {
			names += strings.Fields(line)[0] + " "
		}
		return names, errs.String()
	}
	for of, want := range map[string]string{"a:*": "a:b a:b:x a:z a:z:deep ", "*": "a a:b ", "a": "b z "} {
		for _, command := range []string{"list", "top"} {
			if names, warning := run(command, "-w", of); names != want || warning != "" {
				t.Errorf("%s of %s: %q, want %q; %s", command, of, names, want, warning)
			}
		}
	}
	forbidden = true
	if names, warning := run("list", "-w", "a:*"); names != "a:b:x a:z:deep " || !strings.Contains(warning, "the workspaces directly below a are not listed: you need the verb list") {
		t.Errorf("%q, %s", names, warning)
	}
}
