package cli

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

func TestExportArgument(t *testing.T) {
	for _, c := range []struct{ current, given, from, path, name string }{
		{"team-a", "apis:databases", "", "apis", "databases"},
		{"team-a", "org:apis:databases", "", "org:apis", "databases"},
		{"team-a", "databases", "apis", "apis", "databases"},
		{"team-a:staging", "databases", "..", "team-a", "databases"},
		{"team-a", ":apis:databases", "", "team-a:apis", "databases"},
	} {
		if path, name, err := exportArgument(c.current, c.given, c.from); err != nil || path != c.path || name != c.name {
			t.Errorf("%+v: %q, %q, %v", c, path, name, err)
		}
	}
	for _, c := range []struct{ given, from, want string }{
		{"databases", "", "add the path of its workspace, as in apis:databases"},
		{"apis:databases", "apis", "use one of them"},
		{"root:databases", "", "the root exports nothing"},
		{"apis:", "", "is not the name of an APIExport"},
		{"Apis:databases", "", `"Apis" is invalid`},
	} {
		if path, name, err := exportArgument("team-a", c.given, c.from); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %q, %q, %v", c, path, name, err)
		}
	}
	for _, given := range []string{"databases", "databases.", ".com", "Databases.example.com"} {
		if list, err := exportedResources([]string{given}); err == nil || !strings.Contains(err.Error(), "RESOURCE.GROUP") {
			t.Errorf("%s: %v, %v", given, list, err)
		}
	}
}

// TestWorkspaceAPICommands: the commands create APIExports and APIBindings, also with a dry run, and refuse the root. Commands for
// clusters and plans name the root in a workspace.
func TestWorkspaceAPICommands(t *testing.T) {
	var path, query, body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/apis/fleet.atoll.dev/") || strings.Contains(r.URL.Path, "/apis/infra.atoll.dev/") {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		if _, definition, ok := strings.Cut(r.URL.Path, "/customresourcedefinitions/"); ok {
			w.Header().Set("Content-Type", "application/json")
			code := map[string]int{"databases.example.com": http.StatusOK, "hidden.example.com": http.StatusForbidden}[definition]
			w.WriteHeader(cmp.Or(code, http.StatusNotFound))
			if code == http.StatusOK {
				_, _ = io.WriteString(w, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"databases.example.com"}}`)
				return
			}
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(cmp.Or(code, http.StatusNotFound)),
				Reason: map[bool]metav1.StatusReason{true: metav1.StatusReasonForbidden, false: metav1.StatusReasonNotFound}[code > 0]})
			return
		}
		data, _ := io.ReadAll(r.Body)
		path, query, body = r.URL.Path, r.URL.RawQuery, string(data)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(data)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: t}}], clusters: [{name: a, cluster: {server: '" + server.URL + "'}}]}"
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (out, failed string) {
		var stdout, stderr strings.Builder
		Main(append(append([]string{"atoll"}, args...), "--kubeconfig", kubeconfig), &stdout, &stderr)
		return stdout.String(), stderr.String()
	}
	for _, c := range []struct{ args, out, sent, to, query string }{
		{"api export databases --resource databases.example.com -w apis", "apiexport.tenancy.atoll.dev/databases created\n",
			`"resources":[{"group":"example.com","resource":"databases"}]`, "/clusters/apis/apis/tenancy.atoll.dev/v1alpha1/apiexports", ""},
		{"api bind apis:databases -w team-a --dry-run", "apibinding.tenancy.atoll.dev/databases created (server dry run)\n",
			`"export":{"name":"databases","path":"apis"}`, "/clusters/team-a/apis/tenancy.atoll.dev/v1alpha1/apibindings", "dryRun=All"},
		{"api bind databases --from apis --name db -w team-a", "apibinding.tenancy.atoll.dev/db created\n",
			`"metadata":{"name":"db"}`, "/clusters/team-a/apis/tenancy.atoll.dev/v1alpha1/apibindings", ""},
	} {
		out, failed := run(strings.Fields(c.args)...)
		if out != c.out || failed != "" || !strings.Contains(body, c.sent) || path != c.to || query != c.query {
			t.Errorf("atoll %s: %q, %q; sent %s to %s?%s", c.args, out, failed, body, path, query)
		}
	}
	out, failed := run(strings.Fields("api export some --resource databases.example.com,typo.example.com,hidden.example.com -w apis")...)
	if out != "apiexport.tenancy.atoll.dev/some created\n" || strings.Count(failed, "Warning: ") != 2 ||
		!strings.Contains(failed, `Warning: workspace "apis" has no CustomResourceDefinition typo.example.com: the APIExport exports it as soon as there is one`) ||
		!strings.Contains(failed, `whether workspace "apis" has the CustomResourceDefinition hidden.example.com is not known`) {
		t.Errorf("an export of resources without a definition: %q, %q", out, failed)
	}
	for args, want := range map[string]string{
		"api export databases --resource databases.example.com": "the root has no apiexports: set the workspace with -w PATH",
		"api export databases -w apis":                          "set --resource",
		"api bind databases -w team-a":                          "set --from",
		"get pods -w team-a":                                    "the clusters of workspace team-a are not reached through Atoll: use kubectl with a kubeconfig of the cluster",
		"clusters allow-deletions east -w team-a":               "workspace team-a has no clusters, policies or placement: use -w root",
		"transitions -w team-a":                                 "workspace team-a has no clusters, policies or placement: use -w root",
		"show p -w team-a":                                      "workspace team-a has no plans, applies or providers: use -w root",
	} {
		if out, failed := run(strings.Fields(args)...); !strings.Contains(failed, want) {
			t.Errorf("atoll %s: %q, %q, want %q", args, out, failed, want)
		}
	}
}

func TestWorkspaceTop(t *testing.T) {
	objects, workspaces, bytes := int64(200), int64(5), resource.MustParse("1Mi")
	all := []v1alpha1.Workspace{
		{ObjectMeta: metav1.ObjectMeta{Name: "idle"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Status: v1alpha1.WorkspaceStatus{Usage: &v1alpha1.WorkspaceUsage{Objects: 7, Bytes: resource.MustParse("900"), Definitions: 2}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}, Spec: v1alpha1.WorkspaceSpec{Limits: &v1alpha1.WorkspaceLimits{Objects: &objects, Bytes: &bytes, Workspaces: &workspaces, Expressions: &objects}},
			Status: v1alpha1.WorkspaceStatus{Usage: &v1alpha1.WorkspaceUsage{Objects: 150, Bytes: resource.MustParse("256Ki"), Workspaces: 3, Expressions: 40}}},
	}
	var out strings.Builder
	if err := printUse(&out, "table", usesOf(all, "bytes")); err != nil {
		t.Fatal(err)
	}
	if want := `NAME     OBJECTS     OBJECTS(limit)   OBJECTS(%)   BYTES       BYTES(limit)   BYTES(%)   WORKSPACES   WORKSPACES(limit)   DEFINITIONS   DEFINITIONS(limit)   EXPRESSIONS   EXPRESSIONS(limit)
team-a   150         200              75%          256.0 KiB   1.0 MiB        25%        3            5                   0             200                  40            200
small    7           <none>           <none>       900 B       <none>         <none>     0            <none>              2             200                  0             1000
idle     <unknown>   <none>           <none>       <unknown>   <none>         <none>     <unknown>    <none>              <unknown>     200                  <unknown>     1000
`; out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
	out.Reset()
	if err := printUse(&out, "json", usesOf(all[1:2], "name")); err != nil || strings.Join(strings.Fields(out.String()), "") != `{"workspaces":[{"name":"small","objects":7,"bytes":900,"workspaces":0,"definitions":2,"expressions":0}]}` {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestExplainRootOnly: what only the root serves is explained with the remedy, and nothing else.
func TestExplainRootOnly(t *testing.T) {
	of := explainRootOnly{workspace: "team-a"}
	for _, c := range []struct {
		path     string
		unserved bool
		want     string
	}{
		{"fleet.atoll.dev/v1alpha1/sharedapis", true, "workspace team-a has no sharedapis: use -w root"},
		{"fleet.atoll.dev/v1alpha1/namespaces/default/fleetquotas/q", true, "workspace team-a has no fleetquotas: use -w root"},
		{"fleet.atoll.dev/v1alpha1/clusters", true, "workspace team-a has no clusters, policies or placement: use -w root"}, // an earlier version
		{"fleet.atoll.dev/v1alpha1/clusters/east", false, ""},
		{"fleet.atoll.dev/v1alpha1/clusters/east/proxy/api/v1/pods", false, "the clusters of workspace team-a are not reached through Atoll: use kubectl with a kubeconfig of the cluster"},
		{"infra.atoll.dev/v1alpha1/plans", true, "workspace team-a has no plans, applies or providers: use -w root"},
		{"apps/v1/deployments/web", true, ""},
	} {
		if got := of.explain(strings.Split(c.path, "/"), c.unserved); got != c.want {
			t.Errorf("%s: %q", c.path, got)
		}
	}
}
