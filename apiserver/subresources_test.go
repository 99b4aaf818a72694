package apiserver_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// gadgets is a custom resource.
func gadgets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "tools.example.com", Version: "v1", Resource: "gadgets"}
}

// serveGadgets starts a server with the custom resource gadgets.
func serveGadgets(t *testing.T, with apiserver.Config) running {
	t.Helper()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	server := startServer(t, keyspace, with, "sole")
	t.Cleanup(func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	})
	defineGadgets(t, server)
	return server
}

func defineGadgets(t *testing.T, server running) {
	t.Helper()
	crds, err := apiextensions.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crdOf(gadgets().Group, "Gadget"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "gadgets are served", func() error {
		if code, _, body := ask(t, server.config, "/apis/tools.example.com/v1/gadgets"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
}

// TestSubresources: a subresource is subject to all of the API's checks and appears in
// discovery, and the rest of the resource does not change.
func TestSubresources(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	cfg := makeFiles(t)
	record := filepath.Join(t.TempDir(), "audit.log")
	cfg.Audit = apiserver.Audit{PolicyFile: filepath.Join(t.TempDir(), "policy.yaml"), LogPath: record}
	if err := os.WriteFile(cfg.Audit.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Subresources = []apiserver.Subresource{{
		Resource: gadgets(), Name: "parts", Kind: "PartList",
		LongRunning: func(r *http.Request) bool { return r.URL.Query().Has("stream") },
		Serve: func(w http.ResponseWriter, r *http.Request, namespace, name string, user apiserver.User) {
			_, bounded := r.Context().Deadline()
			fmt.Fprintf(w, "parts of %s/%s for %s, bounded: %v\n", namespace, name, user.Name, bounded)
			if r.URL.Query().Has("stream") {
				_ = http.NewResponseController(w).Flush()
				<-next
				fmt.Fprintln(w, "the end")
			}
		},
	}}
	server := serveGadgets(t, cfg)
	const path = "/apis/tools.example.com/v1/namespaces/shop/gadgets/hammer"
	reader, viewer := asUser(server.config, "reader"), asUser(server.config, "viewer")
	grant(t, server, "viewer", "gadgets")
	grant(t, server, "reader", "gadgets/parts")

	await(t, "a user with permission for parts reads them", func() error {
		code, _, body := ask(t, reader, path+"/parts")
		if code != http.StatusOK || body != "parts of shop/hammer for reader, bounded: true\n" {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	await(t, "a user with permission for gadgets reads them", func() error {
		if code, _, body := ask(t, viewer, path); code != http.StatusNotFound {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	for _, tt := range []struct {
		who    *rest.Config
		path   string
		code   int
		saying string
	}{
		{viewer, path + "/parts", http.StatusForbidden, `cannot get resource \"gadgets/parts\" in API group \"tools.example.com\" in the namespace \"shop\"`},
		{reader, path, http.StatusForbidden, `cannot get resource \"gadgets\"`},
		{server.config, path + "/parts/more", http.StatusNotFound, `gadgets.tools.example.com \"hammer/parts/more\" not found`},
		{server.config, path + "/pieces", http.StatusNotFound, "not found"},
		{server.config, path + "/status", http.StatusNotFound, `gadgets.tools.example.com \"hammer\" not found`},
		{server.config, "/apis/tools.example.com/v1/gadgets/hammer/parts", http.StatusNotFound, "not found"},
		{server.config, "/apis/tools.example.com/v2/namespaces/shop/gadgets/hammer/parts", http.StatusNotFound, "not found"},
	} {
		if code, _, body := ask(t, tt.who, tt.path); code != tt.code || !strings.Contains(body, tt.saying) {
			t.Errorf("%s: %d %s", tt.path, code, body)
		}
	}
	client, err := rest.HTTPClientFor(server.config)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Post(server.config.Host+path+"/parts", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", answer.StatusCode)
	}

	t.Run("streams last", func(t *testing.T) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.config.Host+path+"/parts?stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		lines := bufio.NewScanner(answer.Body)
		if !lines.Scan() || !strings.HasSuffix(lines.Text(), "bounded: false") {
			t.Errorf("the first line is %q", lines.Text())
		}
		close(next) // only now may it continue, so the first line was sent before the last
		if !lines.Scan() || lines.Text() != "the end" {
			t.Errorf("the last line is %q", lines.Text())
		}
	})
	t.Run("discovery", func(t *testing.T) { discoveredParts(t, server) })
	await(t, "the audit log has it", func() error {
		text, err := os.ReadFile(record)
		if err != nil {
			return err
		}
		for line := range strings.SplitSeq(string(text), "\n") {
			if strings.Contains(line, `"resource":"gadgets"`) && strings.Contains(line, `"subresource":"parts"`) && strings.Contains(line, `"username":"reader"`) {
				return nil
			}
		}
		return fmt.Errorf("not found in %d bytes", len(text))
	})
}

// asUser returns a client configuration for a user with only RBAC permissions.
func asUser(config *rest.Config, name string, groups ...string) *rest.Config {
	out := rest.CopyConfig(config)
	out.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:authenticated")}
	return out
}

// grant lets a user get a resource of the group of gadgets.
func grant(t *testing.T, server running, user, resource string) {
	t.Helper()
	name := strings.ReplaceAll(user+"-"+resource, "/", "-")
	if _, err := server.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{gadgets().Group}, Resources: []string{resource}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := server.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// discoveredParts checks that both forms of discovery have the subresource, in addition
// to upstream's content.
func discoveredParts(t *testing.T, server running) {
	var list metav1.APIResourceList
	var body string
	await(t, "the version is announced", func() error {
		_, _, body = ask(t, server.config, "/apis/tools.example.com/v1", "Accept", "application/json")
		return json.Unmarshal([]byte(body), &list)
	})
	var names []string
	for _, r := range list.APIResources {
		names = append(names, r.Name)
		if r.Name == "gadgets/parts" && (r.Kind != "PartList" || !r.Namespaced || !slices.Equal(r.Verbs, []string{"get"})) {
			t.Errorf("subresource: %+v", r)
		}
	}
	if list.Kind != "APIResourceList" || list.GroupVersion != "tools.example.com/v1" || !slices.Equal(names, []string{"gadgets", "gadgets/status", "gadgets/parts"}) {
		t.Errorf("version: %s", body)
	}
	await(t, "the document of all groups has it", func() error {
		_, _, body := ask(t, server.config, "/apis", "Accept", "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList")
		var all apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			return err
		}
		for _, group := range all.Items {
			for _, version := range group.Versions {
				for _, resource := range version.Resources {
					for _, sub := range resource.Subresources {
						if group.Name == gadgets().Group && resource.Resource == "gadgets" && sub.Subresource == "parts" && sub.ResponseKind.Kind == "PartList" {
							return nil
						}
					}
				}
			}
		}
		return fmt.Errorf("not found in %d groups", len(all.Items))
	})
	// Clients that process all of discovery still work.
	if _, lists, err := server.client.Discovery().ServerGroupsAndResources(); err != nil || len(lists) == 0 {
		t.Errorf("discovery: %v", err)
	}
}
