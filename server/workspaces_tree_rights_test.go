package server_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/server"
)

func rule(resource, verb string, names ...string) rbacv1.PolicyRule {
	r := schema.ParseGroupResource(resource)
	return rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: []string{verb}, ResourceNames: names}
}

// may gives subjects rules in an API, cluster-wide, or in the namespace default alone.
func may(t *testing.T, in *rest.Config, name, namespace string, who rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	t.Helper()
	roles, meta := clientOf(t, in).RbacV1(), metav1.ObjectMeta{Name: name}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	_, err := roles.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	if err == nil && namespace != "" {
		_, err = roles.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{who}}, metav1.CreateOptions{})
	} else if err == nil {
		_, err = roles.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{who}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func person(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

func robot(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name}
}

// at returns a configuration for another path of the server.
func (a atoll) at(as *rest.Config, path string) *rest.Config {
	config := rest.CopyConfig(as)
	config.Host = a.Server.URL() + "/clusters/" + path
	return config
}

// TestWorkspaceTreeRights: a user sees a tree by the RBAC of its top alone, with the verb view on all Workspaces and the verb of the request
// on all objects of the kind. The answer names the right that is missing.
func TestWorkspaceTreeRights(t *testing.T) {
	dir := t.TempDir()
	s := ownServer(t, server.Config{DataDir: dir})
	top := s.createWorkspace(t, "top")
	child := s.createNested(t, "top", "x")
	named(t, child, "config")
	if _, err := clientOf(t, child).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bob, carol, dave := withCertificate(t, s.config(t), dir, "bob"), withCertificate(t, s.config(t), dir, "carol"), withCertificate(t, s.config(t), dir, "dave")
	list := func(as *rest.Config, path string, resource schema.GroupVersionResource) error {
		t.Helper()
		_, err := clientsOf(t, s.at(as, path)).Resource(resource).List(t.Context(), metav1.ListOptions{})
		return err
	}
	const viewMissing, listMissing = "need, by the RBAC of the root, the verb view on workspaces.tenancy.atoll.dev", "the verb list on configmaps, for all names"
	denied := func(how, missing string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), missing) {
			t.Errorf("%s: %v", how, err)
		}
	}
	unknown := func(how string, err error) {
		t.Helper()
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: %v", how, err)
		}
	}
	allowed := func(how string, check func(context.Context) error) {
		t.Helper()
		eventually(t, how, check)
	}
	root := s.config(t)
	s.createWorkspace(t, "other")
	all := rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}
	may(t, top, "all", "", person("bob"), all)
	may(t, child, "all", "", person("bob"), all)
	for _, path := range []string{"*", "top:*", "top:x:*"} {
		denied("the administrator of the top and of a child in "+path, viewMissing, list(bob, path, configMaps))
	}
	may(t, root, "list-carol", "", person("carol"), rule("configmaps", "list"))
	denied("list without view", viewMissing, list(carol, "top:*", configMaps))
	may(t, root, "view-carol", "", person("carol"), rule("workspaces.tenancy.atoll.dev", "view", "top"))
	for _, path := range []string{"top:*", "top:x:*"} {
		allowed("with both rights in "+path, func(context.Context) error { return list(carol, path, configMaps) })
	}
	denied("view on one Workspace, all of them", viewMissing, list(carol, "*", configMaps))
	denied("view on one Workspace, another one", viewMissing+"/other", list(carol, "other:*", configMaps))
	denied("another kind", "the verb list on secrets, for all", list(carol, "top:*", secrets))
	_, err := clientsOf(t, s.at(carol, "top:*")).Resource(configMaps).Watch(t.Context(), metav1.ListOptions{})
	denied("another verb", "the verb watch on configmaps, for all", err)
	denied("a kind that no workspace has", "the verb list on widgets.example.com, for all", list(carol, "top:*", sharedWidgets))
	denied("a workspace of the tree", "", list(carol, "top:x", configMaps))

	may(t, root, "view-dave", "", person("dave"), rule("workspaces.tenancy.atoll.dev", "view"), rule("secrets", "list"), rule("configmaps", "list", "config"))
	may(t, root, "list-default", "default", person("dave"), rule("configmaps", "list"))
	for _, path := range []string{"*", "top:*", "other:*"} {
		allowed("with all rights in "+path, func(context.Context) error { return list(dave, path, secrets) })
		denied("list of one namespace and of one name", listMissing, list(dave, path, configMaps))
		_, err := clientsOf(t, s.at(dave, path)).Resource(configMaps).Namespace("default").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=config"})
		denied("list of one namespace, in that", listMissing, err)
	}

	// Accounts belong to one workspace, and those of the root are its users.
	account := func(in *rest.Config) *rest.Config {
		t.Helper()
		stage := viewStage{t: t, atoll: s}
		as := rest.AnonymousClientConfig(in)
		as.BearerToken = stage.tokenOf(in, "robot")
		may(t, in, "robot", "", robot("robot"), rule("workspaces.tenancy.atoll.dev", "view"), rule("configmaps", "list"))
		return as
	}
	ofRoot, ofTop, ofChild := account(root), account(top), account(child)
	for _, path := range []string{"*", "top:*"} {
		allowed("the root's account may list "+path, func(context.Context) error { return list(ofRoot, path, configMaps) })
		denied("the root's account, another kind", "the verb list on secrets, for all", list(ofRoot, path, secrets))
		unknown("the top's account in "+path, list(ofTop, path, configMaps))
		unknown("the child's account in "+path, list(ofChild, path, configMaps))
		unknown("no credentials in "+path, list(rest.AnonymousClientConfig(top), path, configMaps))
	}

	// Impersonation gives the rights of the other user, and needs the right to it.
	as := func(by *rest.Config, user string, groups ...string) *rest.Config {
		config := rest.CopyConfig(by)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		return config
	}
	for _, path := range []string{"*", "top:*"} {
		denied("impersonation without the right to it", "impersonate", list(as(bob, "atoll-admin", "system:masters"), path, configMaps))
		denied("impersonation of a user without rights", viewMissing, list(as(s.config(t), "nobody"), path, configMaps))
		denied("impersonation of the server", "no client may impersonate the server", list(as(s.config(t), "system:apiserver", "system:masters"), path, configMaps))
	}
	if err := list(as(root, "carol"), "top:*", configMaps); err != nil {
		t.Errorf("impersonation of carol: %v", err)
	}
	denied("impersonation of carol, another kind", "the verb list on secrets, for all", list(as(root, "carol"), "top:*", secrets))
}

// TestWorkspaceTreePaths: a tree has one spelling, besides the escaped asterisk. It serves lists and watches, and refuses everything else.
func TestWorkspaceTreePaths(t *testing.T) {
	s := ownServer(t, server.Config{})
	named(t, s.createWorkspace(t, "top"), "config")
	named(t, s.createNested(t, "top", "x"), "config")
	client, err := rest.HTTPClientFor(s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	request := func(method, path, body string, headers ...string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	const maps = "/api/v1/configmaps"
	for path, want := range map[string]int{
		"/clusters/*" + maps: 200, "/clusters/%2A" + maps: 200, "/clusters/top:*" + maps: 200, "/clusters/top:%2A" + maps: 200, "/clusters/top:x:*" + maps: 200,
		"/clusters/%2a" + maps: 404, "/clusters/top:%2a" + maps: 404, "/clusters/top%3A*" + maps: 404, "/clusters/%74op:*" + maps: 404,
		"/clusters/*:*" + maps: 404, "/clusters/a*" + maps: 404, "/clusters/*a" + maps: 404, "/clusters/**" + maps: 404, "/clusters/top:*:x" + maps: 404, "/clusters/*:x" + maps: 404,
		"/clusters/:*" + maps: 404, "/clusters/top::*" + maps: 404, "/clusters/top:**" + maps: 404, "/clusters/top:*:*" + maps: 404, "/clusters/missing:*" + maps: 404, "/clusters/TOP:*" + maps: 404,
		"/clusters/*/" + maps: 404, "/clusters//*" + maps: 404, "/clusters/*/clusters/top" + maps: 404, "/clusters/top/clusters/*" + maps: 404, "/clusters/*/../top" + maps: 404,
		"/clusters/*": 404, "/clusters/*/": 404, "/clusters/*/api/": 200, "/clusters/*/apis/example.com/v1//widgets": 404, "/clusters/*//apis/tenancy.atoll.dev/v1alpha1/workspaces": 404,
		"/clusters/top/apiexports/w/clusters/top:*/apis/example.com/v1/widgets": 404,
		"/clusters/*/api/v1/namespaces/default/configmaps/config":               405, "/clusters/*/api/v1/nodes": 404, "/clusters/*/apis/fleet.atoll.dev/v1alpha1/clusters": 200, "/clusters/*/apis/fleet.atoll.dev/v1alpha1/fleetquotas": 404,
		"/clusters/*" + maps + "?watch=1&timeoutSeconds=1": 200, "/clusters/*" + maps + "?continue=forged": 400, "/clusters/*" + maps + "?fieldSelector=data=x": 400,
		"/clusters/*" + maps + "?resourceVersion=x&resourceVersionMatch=Exact": 400, "/clusters/*" + maps + "?labelSelector=%21%21": 400,
	} {
		if code, body := request("GET", path, ""); code != want {
			t.Errorf("GET %s: %d, want %d: %.300s", path, code, want, body)
		}
	}
	object, inDefault := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`, "/api/v1/namespaces/default/configmaps"
	for _, tree := range []string{"/clusters/*", "/clusters/top:*"} {
		for _, write := range [][3]string{{"POST", inDefault, object}, {"PUT", inDefault + "/config", object}, {"PATCH", inDefault + "/config", "{}"}, {"DELETE", inDefault + "/config", ""},
			{"DELETE", inDefault, ""}, {"DELETE", maps, ""}, {"HEAD", maps, ""}, {"POST", "/apis/tenancy.atoll.dev/v1alpha1/workspaces", `{"metadata":{"name":"new"}}`},
			{"POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "{}"}, {"POST", "/apis/example.com/v1/widgets", "{}"}, {"POST", "/api/v1/namespaces/default/serviceaccounts/default/token", "{}"},
			{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "{}"}, {"POST", "/apis", ""}} {
			code, body := request(write[0], tree+write[1], write[2])
			if code != 405 || write[0] != "HEAD" && !strings.Contains(body, "in one workspace, /clusters/PATH") {
				t.Errorf("%s %s%s: %d %s", write[0], tree, write[1], code, body)
			}
		}
	}
	// Tables have the workspace in each form.
	table, ofDefault := "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "/clusters/*"+inDefault+"?labelSelector=seen%3Dyes"
	for query, want := range map[string]string{"": `"cells":["top:x","config"`, "&includeObject=None": `"object":null`, "&includeObject=Object": `"data"`, "&watch=1&timeoutSeconds=1": `"cells":["top:x","config"`} {
		code, body := request("GET", ofDefault+query, "", "Accept", table)
		if code != 200 || query != "&includeObject=Object" && !strings.Contains(body, want) || strings.Count(body, `"Workspace"`) != 1 || !strings.Contains(body, `"cells":["top","config"`) {
			t.Errorf("table %s: %d %s", query, code, body)
		}
	}
	if code, body := request("GET", ofDefault, "", "Accept", "application/vnd.kubernetes.protobuf"); code != 200 || !strings.Contains(body, "top:x") || strings.HasPrefix(body, "{") {
		t.Errorf("protobuf: %d %q", code, body)
	}
	if code, body := request("GET", "/clusters/missing:*"+maps, "", "Accept", table); code != 404 || !strings.Contains(body, `"Status"`) {
		t.Errorf("%d %s", code, body)
	}
	// A controller writes back the object that it has read.
	below, err := clientOf(t, s.workspace(t, "top:*")).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "seen=yes"})
	if err != nil || len(below.Items) != 1 || below.Items[0].Annotations[workspaceOfObject] != "top:x" {
		t.Fatalf("%v, %v", below, err)
	}
	below.Items[0].Data = map[string]string{"changed": "yes"}
	if _, err := clientOf(t, s.workspace(t, "top:x")).CoreV1().ConfigMaps("default").Update(t.Context(), &below.Items[0], metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	list, err := clientOf(t, s.workspace(t, "top:x")).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "seen=yes"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Annotations[workspaceOfObject] != "" || list.Items[0].Data["changed"] != "yes" {
		t.Errorf("the workspace has %v, %v", list, err)
	}
}
