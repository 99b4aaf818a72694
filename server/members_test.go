package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/playground/keys"
	"github.com/atoll-dev/atoll/server"
)

// outward returns an address of this machine that others can reach: members do not call
// loopback addresses.
func outward(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	t.Fatal("this machine has only loopback addresses: add one, for example with `ip link add atoll0 type dummy; ip addr add 192.0.2.1/32 dev atoll0`")
	return ""
}

// proxy acts as the API server of a member.
type proxy struct {
	client *http.Client
	url    string
}

// ask sends a request for a user of the member.
func (p proxy) ask(t *testing.T, method, path, body, user string, more ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if user != "" {
		req.Header.Set("X-Remote-User", user)
		req.Header.Set("X-Remote-Group", "system:authenticated")
	}
	for i := 0; i+1 < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	response, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

func (p proxy) want(t *testing.T, status int, says, method, path, body, user string, more ...string) {
	t.Helper()
	if got, answer := p.ask(t, method, path, body, user, more...); got != status || !strings.Contains(answer, says) {
		t.Errorf("%s %s as %s: %d %s; want %d with %q", method, path, user, got, answer, status, says)
	}
}

// flow returns the FlowSchema of a request.
func (p proxy) flow(t *testing.T, path, user string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Remote-User", user)
	req.Header.Set("X-Remote-Group", "system:authenticated")
	response, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid")
}

// eventually repeats a request until it returns a status.
func (p proxy) eventually(t *testing.T, status int, method, path, body, user string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s %s as %s", method, path, user), func(context.Context) error {
		if got, answer := p.ask(t, method, path, body, user); got != status {
			return fmt.Errorf("%d %s; want %d", got, answer, status)
		}
		return nil
	})
}

// TestMembersAreServed checks what a member's API server gets on the member port: the
// groups exposed to it, for users that the workspace identifies as that member's.
func TestMembersAreServed(t *testing.T) {
	ip := outward(t)
	a := newServer(t, server.Config{DataDir: t.TempDir(), MemberAddress: ip, WithoutWorkloadAPIs: true})
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	ctx := t.Context()
	client, kube := a.dynamic(t), a.client(t)
	widgets := defineWidgets(t, client)

	east, west := newProxy(t, a), newProxy(t, a)
	for name, p := range map[string]testedProxy{"east": east, "west": west} {
		joinByHand(t, client, name, p.authority)
	}
	// Nothing is served before anything is exposed.
	const objects = "/apis/shared.example.org/v1/namespaces/default/widgets"
	east.eventually(t, 401, "GET", objects, "", "alice") // once the server has read the list of clusters

	share := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.atoll.dev/v1alpha1", "kind": "SharedAPI", "metadata": map[string]any{"name": "widgets"},
		"spec": map[string]any{"groups": []any{"shared.example.org"}, "clusters": []any{"east"}}}}
	if _, err := client.Resource(v1alpha1.SharedAPIResource).Create(ctx, share, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	east.eventually(t, 403, "GET", objects, "", "alice")

	// Atoll's RBAC decides, by the users' names in the workspace.
	east.want(t, 403, `east:alice`, "GET", objects, "", "alice")
	for name, subject := range map[string]rbacv1.Subject{
		"alice": {Kind: "User", Name: "east:alice", APIGroup: rbacv1.GroupName},
		"all":   {Kind: "Group", Name: "atoll:cluster:east", APIGroup: rbacv1.GroupName},
	} {
		verbs := []string{"get", "list"}
		if name == "alice" {
			verbs = []string{"*"}
		}
		if _, err := kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"shared.example.org"}, Resources: []string{"*"}, Verbs: verbs}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			Subjects: []rbacv1.Subject{subject}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	east.eventually(t, 200, "GET", objects, "", "bob")
	const widget = `{"apiVersion":"shared.example.org/v1","kind":"Widget","metadata":{"name":"one"},"spec":{"size":1}}`
	east.eventually(t, 201, "POST", objects, widget, "alice")
	east.want(t, 200, `"size":1`, "GET", objects+"/one", "", "bob")
	east.want(t, 403, "east:bob", "DELETE", objects+"/one", "", "bob")
	if _, err := client.Resource(widgets).Namespace("default").Get(ctx, "one", metav1.GetOptions{}); err != nil {
		t.Errorf("the object created by alice of east: %v", err)
	}

	// A missing namespace is created for a user with permission to create the object, and not for
	// others.
	namespaced := func(namespace string) string {
		return "/apis/shared.example.org/v1/namespaces/" + namespace + "/widgets"
	}
	east.want(t, 403, "east:bob", "POST", namespaced("fresh"), widget, "bob")
	east.want(t, 404, "", "GET", namespaced("fresh")+"/one", "", "alice")
	east.want(t, 201, "", "POST", namespaced("fresh"), widget, "alice")
	if ns, err := kube.CoreV1().Namespaces().Get(ctx, "fresh", metav1.GetOptions{}); err != nil || ns.Annotations[v1alpha1.ProvidedForAnnotation] != "east" {
		t.Errorf("the namespace for alice: %v, %v", ns, err)
	}
	if _, err := client.Resource(v1alpha1.SharedAPIResource).Patch(ctx, "widgets", types.MergePatchType,
		[]byte(`{"spec":{"namespaces":"Require"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	east.eventually(t, 404, "POST", namespaced("required")+"?dryRun=All", widget, "alice")
	east.want(t, 404, "kubectl create namespace required", "POST", namespaced("required"), widget, "alice")

	// The roles exist: for the member's garbage collector, and for bindings.
	east.eventually(t, 200, "GET", objects, "", "system:serviceaccount:kube-system:generic-garbage-collector")
	if _, err := kube.RbacV1().ClusterRoles().Get(ctx, "atoll:member-coordination", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	// Members' users have their own priority level.
	if flow, err := kube.FlowcontrolV1().FlowSchemas().Get(ctx, "atoll-members", metav1.GetOptions{}); err != nil {
		t.Error(err)
	} else {
		eventually(t, "members' requests use the FlowSchema", func(ctx context.Context) error {
			if got := east.flow(t, objects, "alice"); got != string(flow.UID) {
				return fmt.Errorf("FlowSchema %s, want %s", got, flow.UID)
			}
			return nil
		})
	}

	// Nothing else is accessible.
	east.want(t, 403, "not exposed", "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", "alice")
	east.want(t, 403, "", "GET", "/api/v1/secrets", "", "alice")
	// The member's own administrators have no special permissions.
	east.want(t, 403, "east:root", "DELETE", objects+"/one", "", "root", "X-Remote-Group", "system:masters")
	// Requests of the member's aggregator pass.
	east.want(t, 200, `"widgets"`, "GET", "/apis/shared.example.org/v1", "", "system:kube-aggregator", "X-Remote-Group", "system:masters")
	// Another member, an unknown certificate, no certificate, and the main port with
	// east's.
	west.want(t, 401, "", "GET", objects+"/one", "", "alice")
	newProxy(t, a).want(t, 401, "", "GET", objects+"/one", "", "alice")
	(proxy{&http.Client{Transport: &http.Transport{TLSClientConfig: east.roots}}, east.url}).want(t, 401, "", "GET", objects+"/one", "", "alice")
	(proxy{east.client, a.URL()}).want(t, 401, "", "GET", objects+"/one", "", "alice")

	// The CRD stays marked, and the server's member address is announced.
	leases, err := kube.CoordinationV1().Leases(v1alpha1.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.MemberEndpointLabel})
	if err != nil || len(leases.Items) != 1 || leases.Items[0].Annotations[v1alpha1.AddressAnnotation] != a.MemberAddress() {
		t.Errorf("announced: %v, %v; want %s", leases, err, a.MemberAddress())
	}

	// After the withdrawal the group is not accessible.
	if err := client.Resource(v1alpha1.SharedAPIResource).Delete(ctx, "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	east.eventually(t, 401, "GET", objects, "", "alice")
}

func defineWidgets(t *testing.T, client dynamic.Interface) schema.GroupVersionResource {
	t.Helper()
	crd := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.shared.example.org"},
		"spec":{"group":"shared.example.org","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"}}}}}}}]}}`),
		&crd.Object); err != nil {
		t.Fatal(err)
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := client.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widgets := schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: "widgets"}
	eventually(t, "widgets are served", func(ctx context.Context) error {
		_, err := client.Resource(widgets).List(ctx, metav1.ListOptions{})
		return err
	})
	return widgets
}

// testedProxy is a member's front proxy and the authority that signed its certificate.
type testedProxy struct {
	proxy
	authority []byte
	roots     *tls.Config
}

func newProxy(t *testing.T, a atoll) testedProxy {
	t.Helper()
	dir := t.TempDir()
	k, err := keys.LoadOrMake(dir, "member")
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(k.FrontProxyCACert)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(k.FrontProxyCert, k.FrontProxyKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(filepath.Dir(a.Kubeconfig()), "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	// Like a member's API server, dial an endpoint and verify the name of the Service.
	anonymous := &tls.Config{RootCAs: roots, ServerName: "atoll.atoll-system.svc"}
	config := anonymous.Clone()
	config.Certificates = []tls.Certificate{pair}
	return testedProxy{
		proxy:     proxy{&http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}, "https://" + a.MemberAddress()},
		authority: authority, roots: anonymous,
	}
}

// joinByHand creates a Cluster without a connection, and writes the status that would
// be read from it.
func joinByHand(t *testing.T, client dynamic.Interface, name string, authority []byte) {
	t.Helper()
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.atoll.dev/v1alpha1", "kind": "Cluster", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": "atoll-system", "name": "none"}}}}
	eventually(t, name+" is created", func(ctx context.Context) error {
		_, err := client.Resource(v1alpha1.ClusterResource).Create(ctx, cluster, metav1.CreateOptions{})
		return err
	})
	status, err := json.Marshal(map[string]any{"status": map[string]any{"frontProxy": v1alpha1.FrontProxy{
		CABundle: authority, AllowedNames: []string{keys.FrontProxyName},
		UsernameHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(v1alpha1.ClusterResource).Patch(t.Context(), name, types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// TestInvalidMemberAddresses: invalid settings are rejected before anything is opened.
func TestInvalidMemberAddresses(t *testing.T) {
	for _, tt := range []struct {
		cfg  server.Config
		says string
	}{
		{server.Config{MemberAddress: "127.0.0.1"}, "loopback"},
		{server.Config{MemberAddress: "0.0.0.0:6444"}, "not a unicast address"},
		{server.Config{MemberAddress: "atoll.example.org"}, "IP:PORT"},
		{server.Config{MemberAddress: "192.0.2.1", MemberPort: server.WithoutMemberPort}, "--member-port"},
		{server.Config{MemberPort: 70000}, "1 to 65535"},
		{server.Config{Cluster: "not a name"}, "the name with which the cluster joined"},
	} {
		tt.cfg.DataDir = t.TempDir()
		if _, err := server.New(t.Context(), tt.cfg); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %q", fmt.Sprint(tt.cfg.MemberAddress, tt.cfg.MemberPort), err, tt.says)
		}
	}
}
