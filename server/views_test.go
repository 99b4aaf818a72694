package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/server"
)

// holder has a syncer's credential.
type syncerCredential struct {
	server string // URL of Atoll
	config *rest.Config
	client *http.Client
}

// pull joins a cluster in mode Pull and returns its syncer's credential and kubeconfig.
func pull(t *testing.T, a atoll, cluster string) (syncerCredential, []byte) {
	t.Helper()
	if err := join.Pull(t.Context(), a.config(t), cluster, false, false, nil); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := view.RequestKubeconfig(t.Context(), a.config(t), cluster, "")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return syncerCredential{a.URL(), config, client}, kubeconfig
}

// send sends a path unchanged: Go's client would clean it.
func (h syncerCredential) send(t *testing.T, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, h.server, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	path, query, _ := strings.Cut(path, "?")
	r.URL = &url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Opaque: "//" + r.URL.Host + path, RawQuery: query}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	answer, err := h.client.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(said)
}

// A syncer's credential gives access to its own view and to what all authenticated
// users may read. Everything else is refused, and no response contains a secret.
func TestSyncerCredentialIsLimitedToItsView(t *testing.T) {
	a := newServer(t, server.Config{DataDir: t.TempDir(), MemberAddress: outward(t)})
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	kube := a.client(t)
	const word = "swordfish"
	if _, err := kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "word"},
		StringData: map[string]string{"word": word}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	teach := fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"ResourceInterpretation","metadata":{"name":"secrets"},"spec":{"target":{"apiVersion":"v1","kind":"Secret"},"health":"'Healthy'"}}`, v1alpha1.Group, v1alpha1.Version)
	// A new server may not have installed its CRDs yet.
	eventually(t, "the interpretation is stored", func(context.Context) error {
		out, err := a.kubectl(t, teach, "apply", "-f", "-")
		if err != nil {
			return fmt.Errorf("%w %s", err, out)
		}
		return nil
	})
	pull(t, a, "west")
	east, _ := pull(t, a, "east")

	const own = "/services/clusters/east"
	for _, path := range []string{"/api", "/apis", "/api/v1", "/apis/" + v1alpha1.Group + "/" + v1alpha1.Version,
		"/api/v1/secrets", "/apis/fleet.atoll.dev/v1alpha1/boundobjects", "/apis/fleet.atoll.dev/v1alpha1/clusters/east", "/readyz"} {
		if code, said := east.send(t, "GET", own+path, ""); code != http.StatusOK {
			t.Errorf("own view: GET %s: %d %s", path, code, said)
		}
	}
	for _, path := range []string{"/api", "/apis", "/openapi/v3", "/version", "/readyz"} {
		if code, said := east.send(t, "GET", path, ""); code != http.StatusOK {
			t.Errorf("allowed for authenticated users: GET %s: %d %s", path, code, said)
		}
	}

	fleetAPI := "/apis/fleet.atoll.dev/v1alpha1/"
	binding := fleetAPI + "namespaces/default/resourcebindings/secret-word"
	type attempt struct{ method, path, body string }
	attempts := []attempt{
		// Other views.
		{"GET", "/services/clusters/west/api", ""},
		{"GET", "/services/clusters/west/api/v1/secrets", ""},
		{"GET", "/services/clusters/west/api/v1/secrets?watch=true", ""},
		{"POST", "/services/clusters/west/credential", "{}"},
		{"PUT", "/services/clusters/west" + fleetAPI + "clusters/west/status", `{"ready":true,"reason":"ClusterReady"}`},
		{"GET", "/services/clusters/nowhere/api", ""},
		{"GET", "/services/clusters/", ""},
		{"GET", "/services/clusters", ""},
		{"GET", "/services/", ""},
		// Paths.
		{"GET", own + "/../west/api/v1/secrets", ""},
		{"GET", own + "/../../../api/v1/secrets", ""},
		{"GET", own + "/%2e%2e/west/api/v1/secrets", ""},
		{"GET", own + "%2f..%2fwest/api/v1/secrets", ""},
		{"GET", own + "/..%2f..%2f..%2fapi/v1/secrets", ""},
		{"GET", own + "/..%5cwest/api/v1/secrets", ""},
		{"GET", own + "//../west/api/v1/secrets", ""},
		{"GET", "//services/clusters/west/api/v1/secrets", ""},
		{"GET", "/services//clusters/west/api/v1/secrets", ""},
		{"GET", "/services/clusters//west/api/v1/secrets", ""},
		{"GET", "/services/clusters/east/west/api/v1/secrets", ""},
		{"GET", "/services/clusters/%77est/api/v1/secrets", ""},
		{"GET", "/services/clusters/east%00/api/v1/secrets", ""},
		{"GET", "/services/clusters/EAST/api/v1/secrets", ""},
		{"GET", "/services/clusters/./west/api/v1/secrets", ""},
		{"GET", "/api/../services/clusters/west/api/v1/secrets", ""},
		{"GET", own + "/api/v1/namespaces/default/secrets/word", ""}, // not bound to east
		{"GET", own + "/api/v1/namespaces/default/secrets/../../../../../../api/v1/secrets", ""},
		{"GET", own + fleetAPI + "boundnamespaces/default", ""},
		// All of the main API, without the view.
		{"GET", "/api/v1/secrets", ""},
		{"GET", "/api/v1/secrets?watch=true", ""},
		{"GET", "/api/v1/namespaces/default/secrets/word", ""},
		{"GET", "/api/v1/namespaces/atoll-system/secrets", ""},
		{"GET", "/api/v1/namespaces", ""},
		{"GET", "/api/v1/configmaps", ""},
		{"GET", "/api/v1/pods", ""},
		{"GET", "/apis/apps/v1/deployments", ""},
		{"GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", ""},
		{"GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", ""},
		{"GET", "/apis/coordination.k8s.io/v1/leases", ""},
		{"GET", "/api/v1/events", ""},
		{"GET", fleetAPI + "clusters", ""},
		{"GET", fleetAPI + "clusters/east", ""},
		{"GET", fleetAPI + "resourcebindings", ""},
		{"GET", fleetAPI + "clusterresourcebindings", ""},
		{"GET", binding, ""},
		{"GET", "/metrics", ""},
		{"GET", "/debug/pprof/", ""},
		{"GET", "/logs", ""},
		{"GET", "/configz", ""},
		// Status writes through the main API instead of its view.
		{"PUT", fleetAPI + "clusters/east", "{}"},
		{"PUT", fleetAPI + "clusters/east/status", "{}"},
		{"PATCH", fleetAPI + "clusters/east/status", "{}"},
		{"DELETE", fleetAPI + "clusters/east", ""},
		{"PATCH", binding, "{}"},
		{"PATCH", binding + "/status?fieldManager=atoll-syncer-east&force=true", "{}"},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/atoll-system/leases/syncer-east", "{}"},
		{"POST", "/api/v1/namespaces/default/events", "{}"},
		// Other writes.
		{"POST", "/api/v1/namespaces/default/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`},
		{"POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"}}`},
		{"DELETE", "/api/v1/namespaces/default/secrets/word", ""},
		{"POST", fleetAPI + "clusters", "{}"},
		{"POST", fleetAPI + "namespaces/default/resourcebindings", "{}"},
		// Requests that could give it another identity.
		{"POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", "{}"},
		{"POST", "/api/v1/namespaces/default/serviceaccounts/default/token", "{}"},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", "{}"},
		{"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "{}"},
		{"POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "{}"},
		{"POST", "/apis/apiregistration.k8s.io/v1/apiservices", "{}"},
		// Connections to other endpoints.
		{"GET", "/api/v1/namespaces/default/pods/x/exec?command=id", ""},
		{"POST", "/api/v1/namespaces/default/pods/x/exec?command=id", ""},
		{"GET", "/api/v1/namespaces/default/pods/x/log", ""},
		{"POST", "/api/v1/namespaces/default/pods/x/portforward", ""},
		{"GET", "/api/v1/namespaces/default/pods/x/proxy/", ""},
		{"GET", "/api/v1/namespaces/default/services/x/proxy/", ""},
		{"GET", "/api/v1/nodes/x/proxy/", ""},
		{"GET", own + "/api/v1/namespaces/default/pods/x/exec?command=id", ""},
		{"POST", own + "/api/v1/namespaces/default/pods/x/exec?command=id", ""},
		// Its view used like a complete API.
		{"POST", own + "/api/v1/namespaces/default/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`},
		{"PUT", own + fleetAPI + "clusters/east", "{}"},
		{"PATCH", own + fleetAPI + "clusters/east/status", "{}"},
		{"PUT", own + fleetAPI + "clusters/west/status", `{"ready":true,"reason":"ClusterReady"}`},
		{"DELETE", own + fleetAPI + "clusters/east", ""},
		// Types: another cluster's, more than it may report, and objects derived from
		// them.
		{"PUT", own + fleetAPI + "clusters/west/types", `{"groups":{}}`},
		{"PUT", own + fleetAPI + "clusters/west/apigroup", `{"group":"example.com"}`},
		{"PUT", "/services/clusters/west" + fleetAPI + "clusters/west/types", `{"groups":{}}`},
		{"PUT", "/services/clusters/west" + fleetAPI + "clusters/west/apigroup", `{"group":"example.com"}`},
		{"PUT", "/services/clusters/west" + fleetAPI + "clusters/east/types", `{"groups":{}}`},
		{"POST", own + fleetAPI + "clusters/east/types", `{"groups":{}}`},
		{"PATCH", own + fleetAPI + "clusters/east/types", `{"groups":{}}`},
		{"DELETE", own + fleetAPI + "clusters/east/types", ""},
		{"GET", own + fleetAPI + "clusters/east/types", ""},
		{"GET", own + fleetAPI + "clusters/east/apigroup", ""},
		{"PUT", own + fleetAPI + "clusters/east/types", `{"groups":{"example.com":{"digest":"x","size":99999999}}}`},
		{"PUT", own + fleetAPI + "clusters/east/types", `[]`},
		{"PUT", own + fleetAPI + "clusters/east/apigroup", `{"group":"example.com","content":"bm8gZ3ppcA=="}`},
		{"PUT", own + fleetAPI + "clusters/east/apigroup", groupReport(t, "example.com", "other.com", "CustomResourceDefinition")},
		{"PUT", own + fleetAPI + "clusters/east/apigroup", groupReport(t, "fleet.atoll.dev", "fleet.atoll.dev", "CustomResourceDefinition")},
		{"PUT", own + fleetAPI + "clusters/east/apigroup", groupReport(t, "apps", "apps", "CustomResourceDefinition")},
		{"PUT", own + fleetAPI + "clusters/east/apigroup", groupReport(t, "example.com", "example.com", "CustomResourceDefinition")}, // not listed
		{"GET", fleetAPI + "apiresourceimports", ""},
		{"PATCH", fleetAPI + "apiresourceimports/widgets.west.v1.example.com?fieldManager=atoll-imports&force=true", `{}`},
		{"PUT", fleetAPI + "apiresourceimports/widgets.west.v1.example.com", `{}`},
		{"POST", fleetAPI + "apiresourceimports", `{}`},
		{"PATCH", fleetAPI + "negotiatedapiresources/widgets.v1.example.com", `{"spec":{"publish":true}}`},
		{"POST", fleetAPI + "typepolicies", `{}`},
		{"POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{}`},
		{"GET", "/api/v1/namespaces/atoll-system/configmaps", ""},
		{"GET", "/api/v1/namespaces/atoll-system/configmaps/types.west", ""},
		{"PATCH", "/api/v1/namespaces/atoll-system/configmaps/types.west?fieldManager=atoll-imports&force=true", `{}`},
		{"GET", own + "/api/v1/namespaces/atoll-system/configmaps/types.west", ""},
		// ResourceInterpretations.
		{"GET", fleetAPI + "resourceinterpretations", ""},
		{"GET", own + fleetAPI + "resourceinterpretations/secrets", ""}, // none of its objects is bound to east
		{"PUT", own + fleetAPI + "resourceinterpretations/secrets", `{}`},
		{"GET", "/services/clusters/west" + fleetAPI + "resourceinterpretations", ""},
		{"OPTIONS", own + "/api/v1/secrets", ""},
	}
	for _, x := range attempts {
		code, said := east.send(t, x.method, x.path, x.body)
		if code < 400 || code >= 500 || strings.Contains(said, word) || strings.Contains(said, "c3dvcmRmaXNo") {
			t.Errorf("%s %s: %d %s", x.method, x.path, code, said)
		}
	}

	// Impersonation and forged headers.
	for _, headers := range [][]string{
		{"Impersonate-User", "atoll-admin"},
		{"Impersonate-User", "atoll-admin", "Impersonate-Group", "system:masters"},
		{"Impersonate-User", "atoll:syncer:west", "Impersonate-Group", v1alpha1.SyncersGroup},
		{"Impersonate-Group", "system:masters"},
		{"X-Remote-User", "atoll-admin", "X-Remote-Group", "system:masters"},
		{"X-Forwarded-User", "atoll-admin"},
		{"Authorization", "Bearer x"},
		{"Authorization", "Basic YXRvbGwtYWRtaW46"},
	} {
		for _, path := range []string{"/api/v1/secrets", "/services/clusters/west/api/v1/secrets"} {
			if code, said := east.send(t, "GET", path, "", headers...); code < 400 || strings.Contains(said, "c3dvcmRmaXNo") {
				t.Errorf("GET %s with %v: %d %s", path, headers, code, said)
			}
		}
	}
	if code, said := east.send(t, "GET", own+"/api", "", "Impersonate-User", "atoll-admin", "Impersonate-Group", "system:masters"); code != http.StatusForbidden {
		t.Errorf("impersonation in its view: %d %s", code, said)
	}

	// Its permissions according to the API.
	code, said := east.send(t, "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`)
	var rules struct {
		Status struct {
			ResourceRules []struct{ APIGroups, Resources, Verbs []string }
		}
	}
	if err := json.Unmarshal([]byte(said), &rules); err != nil || code != http.StatusCreated {
		t.Errorf("%d %s", code, said)
	}
	for _, r := range rules.Status.ResourceRules {
		for _, resource := range r.Resources {
			if !strings.HasPrefix(resource, "self") {
				t.Errorf("unexpected permission: %v %s", r.Verbs, resource)
			}
		}
	}

	// The member port authenticates members' API servers, and no syncer. Until the
	// server has read the list of members, it is not ready for any client.
	eventually(t, "the member port rejects the syncer", func(context.Context) error {
		code, err := onMemberPort(t, a, east)
		if code != http.StatusUnauthorized && code != http.StatusServiceUnavailable {
			t.Fatalf("the member port: %d %v", code, err)
		}
		if code == http.StatusServiceUnavailable {
			return errors.New("the member port is not ready")
		}
		return nil
	})
}

// groupReport returns a syncer's report of an API group with one type.
func groupReport(t *testing.T, group, of, source string) string {
	t.Helper()
	var content bytes.Buffer
	w := gzip.NewWriter(&content)
	_, err := fmt.Fprintf(w, `{"types":[{"source":%q,"spec":{"groupVersion":{"group":%q,"version":"v1"},"scope":"Namespaced","plural":"widgets","kind":"Widget","openAPIV3Schema":{"type":"object"}}}]}`, source, of)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	said, err := json.Marshal(fleet.GroupReport{Group: group, Content: content.Bytes()})
	if err != nil {
		t.Fatal(err)
	}
	return string(said)
}

// onMemberPort sends a request with a syncer's certificate to the member port.
func onMemberPort(t *testing.T, a atoll, h syncerCredential) (int, error) {
	t.Helper()
	pair, err := tls.X509KeyPair(h.config.CertData, h.config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+a.MemberAddress()+"/api/v1/secrets", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Remote-User", "admin")
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	return answer.StatusCode, nil
}

// A credential is valid until another is issued, or the cluster has left.
func TestSyncerCredentialIsRevoked(t *testing.T) {
	a := theServer(t)
	name := "revoked"
	client := a.dynamic(t).Resource(v1alpha1.ClusterResource)
	first, _ := pull(t, a, name)
	path := "/services/clusters/" + name + "/api"
	can := func(h syncerCredential, want int) func(context.Context) error {
		return func(context.Context) error {
			if code, said := h.send(t, "GET", path, ""); code != want {
				return fmt.Errorf("%d %s; want %d", code, said, want)
			}
			return nil
		}
	}
	eventually(t, "the first credential is valid", can(first, 200))
	second, _ := pull(t, a, name)
	eventually(t, "the second credential is valid", can(second, 200))
	eventually(t, "the first credential is revoked", can(first, 403))
	if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a cluster that has left is not served", can(second, 403))
	third, _ := pull(t, a, name)
	eventually(t, "a cluster of the same name is served", can(third, 200))
	eventually(t, "the new cluster has another credential", can(second, 403))
	if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A cluster in mode Pull is Ready while its syncer reports it.
func TestPullClusterIsReadyByHeartbeat(t *testing.T) {
	a := theServer(t)
	name := "beating"
	_, kubeconfig := pull(t, a, name)
	remote, err := view.NewRemote(view.RemoteConfig{Kubeconfig: kubeconfig, Save: func(context.Context, []byte) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- remote.Run(ctx) }()
	defer func() { stop(); <-done }()
	eventually(t, "the Cluster's condition says that no syncer connected", a.reason(t, name, v1alpha1.ReasonErrorInstallingSyncer))
	eventually(t, "the view serves the cluster", func(context.Context) error {
		if c, ok := remote.Cluster(); !ok || c.Name != name {
			return errors.New("the view does not serve the cluster")
		}
		return nil
	})
	if err := remote.Observe(t.Context(), fleet.Observation{Ready: true, Reason: v1alpha1.ReasonClusterReady, Version: "v1.2.3", ID: "somewhere"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Cluster is Ready", a.reason(t, name, v1alpha1.ReasonClusterReady))
	if err := remote.Observe(t.Context(), fleet.Observation{Reason: v1alpha1.ReasonClusterNotReady, Message: "etcd failed"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Cluster is not Ready", a.reason(t, name, v1alpha1.ReasonClusterNotReady))
	if err := a.dynamic(t).Resource(v1alpha1.ClusterResource).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// reason checks the reason of a Cluster's Ready condition.
func (a atoll) reason(t *testing.T, cluster, want string) func(context.Context) error {
	client := a.dynamic(t)
	return func(ctx context.Context) error {
		u, err := client.Resource(v1alpha1.ClusterResource).Get(ctx, cluster, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, err := json.Marshal(u.Object["status"])
		if err != nil {
			return err
		}
		if !bytes.Contains(status, []byte(`"reason":"`+want+`"`)) {
			return fmt.Errorf("%s", status)
		}
		return nil
	}
}

// kubectl can read a view like a cluster.
func TestKubectlReadsAView(t *testing.T) {
	a := theServer(t)
	name := "looked-at"
	_, kubeconfig := pull(t, a, name)
	file := filepath.Join(t.TempDir(), "view.kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	out := a.mustKubectl(t, "", "--kubeconfig", file, "api-resources", "--verbs=list", "-o", "name")
	for _, want := range []string{"deployments.apps", "secrets", "boundobjects.fleet.atoll.dev"} {
		if !strings.Contains(out, want) {
			t.Errorf("api-resources has no %s:\n%s", want, out)
		}
	}
	if out := a.mustKubectl(t, "", "--kubeconfig", file, "get", "clusters.fleet.atoll.dev", "-o", "name"); strings.TrimSpace(out) != "cluster.fleet.atoll.dev/"+name {
		t.Errorf("clusters: %s", out)
	}
	if out, err := a.kubectl(t, "", "--kubeconfig", file, "delete", "clusters.fleet.atoll.dev", name); err == nil || !strings.Contains(out, "may only report") {
		t.Errorf("delete: %v %s", err, out)
	}
	if err := a.dynamic(t).Resource(v1alpha1.ClusterResource).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
