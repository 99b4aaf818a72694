package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/server"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// streaming serves a cluster, and in front of it what containers answer: the request that arrived, and for a connection that changes its protocol also what
// the client sends.
func streaming(member *fakeapi.Server) http.Handler {
	api := member.Member()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch parts := strings.Split(r.URL.Path, "/"); {
		case r.Header.Get("Upgrade") != "":
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s %s for %q\n", r.Header.Get("Upgrade"), r.Method, r.URL.RequestURI(), r.Header.Get("Impersonate-User"))
			_ = rw.Flush()
			if line, err := rw.ReadString('\n'); err == nil {
				fmt.Fprintf(rw, "echo %s", line)
			}
			_ = rw.Flush()
		case slices.Contains(parts, "log"), slices.Contains(parts, "eviction"), slices.Contains(parts, "proxy"):
			fmt.Fprintf(w, "%s %s", r.Method, r.URL.Path)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

// run creates a Deployment, and a pod of it in the cluster.
func (a atoll) run(t *testing.T, s atoll, member *fakeapi.Server, namespace, inCluster, name string) {
	t.Helper()
	a.mustKubectl(t, "", "create", "deployment", name, "--image="+name, "-n", namespace)
	s.awaitPlaced(t, member, inCluster, name)
	deployment := member.Get(deployments, inCluster, name)
	member.Put(map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": map[string]any{"namespace": inCluster, "name": name + "-1",
		"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": string(deployment.GetUID()), "controller": true}}}})
	runPod(member, inCluster, name+"-1-a", name+"-1")
}

// upgraded opens a connection that changes its protocol, and returns the first line of it, and the answer to one that it sends.
func upgraded(t *testing.T, config *rest.Config, path string, header ...string) (answer string) {
	t.Helper()
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	settings.NextProtos = []string{"http/1.1"}
	host, prefix, _ := strings.Cut(strings.TrimPrefix(config.Host, "https://"), "/")
	if prefix != "" {
		prefix = "/" + prefix
	}
	conn, err := tls.Dial("tcp", host, settings)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "POST %s%s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", prefix, path, host)
	if config.BearerToken != "" {
		fmt.Fprintf(conn, "Authorization: Bearer %s\r\n", config.BearerToken)
	}
	fmt.Fprintf(conn, "%s\r\n", strings.Join(append(header, ""), "\r\n"))
	in := bufio.NewReader(conn)
	got, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(got.Body)
		return fmt.Sprintf("%d %s", got.StatusCode, text)
	}
	line, err := in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "hello\n")
	echo, err := in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line + echo
}

// raw returns the answer to a GET.
func raw(t *testing.T, client *kubernetes.Clientset, path string) string {
	t.Helper()
	out, err := client.RESTClient().Get().AbsPath(path).DoRaw(t.Context())
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// TestPlacedWorkspacePods: in a workspace whose objects run in the clusters of the root, and in one within it, users see the pods of their objects, the events
// about them, and reach the containers.
func TestPlacedWorkspacePods(t *testing.T) {
	s := startFleets(t, server.Config{DataDir: t.TempDir(), WorkspaceIdle: time.Second})
	t.Cleanup(func() { _ = s.stop() })
	member := measured(t)
	s.joinMember(t, "east", streaming(member))
	team := s.createPlaced(t, "team")
	inner := team.createPlaced(t, "inner")
	team.mustKubectl(t, "", "create", "namespace", "shop")
	team.run(t, s, member, "shop", "team--shop", "web")
	inner.mustKubectl(t, "", "create", "configmap", "first", "--from-literal=a=b")
	deep := hashed(t, s, "inner--default")
	inner.run(t, s, member, "default", deep, "deep")

	team.awaitOutput(t, "shop web-1-a east.reef", "get", "pods", "-n", "shop", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.namespace} {.items[*].metadata.name} {.items[*].spec.nodeName}")
	if out := team.mustKubectl(t, "", "get", "pods", "-A", "-o", "wide"); !strings.Contains(out, "web-1-a") || !strings.Contains(out, "CLUSTER") || !strings.Contains(out, "deep-1-a") {
		t.Error(out) // the pod of inner is in a namespace of team
	}
	inner.awaitOutput(t, "default/deep-1-a", "get", "pods", "-A", "-o", "jsonpath={.items[*].metadata.namespace}/{.items[*].metadata.name}")
	if out := inner.mustKubectl(t, "", "get", "pod", "deep-1-a", "-o", "jsonpath={.metadata.namespace} {.metadata.labels}"); !strings.HasPrefix(out, "default ") || !strings.Contains(out, "east") {
		t.Error(out)
	}
	if out := team.mustKubectl(t, "", "logs", "web-1-a", "-n", "shop"); out != "GET /api/v1/namespaces/team--shop/pods/web-1-a/log" {
		t.Error(out)
	}
	if out := team.mustKubectl(t, "", "logs", "deployment/web", "-n", "shop"); !strings.Contains(out, "/pods/web-1-a/log") {
		t.Error(out)
	}
	if out := inner.mustKubectl(t, "", "logs", "deep-1-a"); out != "GET /api/v1/namespaces/"+deep+"/pods/deep-1-a/log" {
		t.Error(out)
	}
	testPlacedConnections(t, team, inner, deep)
	testPlacedEvents(t, team, member)
	testPlacedWatch(t, team, member)
}

func testPlacedConnections(t *testing.T, team, inner atoll, deep string) {
	t.Helper()
	for path, want := range map[string]string{
		"/api/v1/namespaces/default/pods/deep-1-a/exec?command=id&stdout=true": "POST /api/v1/namespaces/" + deep + "/pods/deep-1-a/exec?command=id&stdout=true for \"\"\necho hello\n",
		"/api/v1/namespaces/default/pods/deep-1-a/portforward":                 "POST /api/v1/namespaces/" + deep + "/pods/deep-1-a/portforward for \"\"\necho hello\n",
	} {
		if got := upgraded(t, inner.config(t), path); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
	want := "POST /api/v1/namespaces/team--shop/pods/web-1-a/attach for \"\"\necho hello\n"
	if got := upgraded(t, team.config(t), "/api/v1/namespaces/shop/pods/web-1-a/attach", "Impersonate-User: system:admin", "Impersonate-Group: system:masters"); got != want {
		t.Errorf("as another user of the workspace: %s", got)
	}
	team.mustKubectl(t, "", "create", "service", "clusterip", "front", "--tcp=80", "-n", "shop")
	eventually(t, "the proxy of the Service answers", func(context.Context) error {
		if out := raw(t, team.client(t), "/api/v1/namespaces/shop/services/front:80/proxy/path"); out != "GET /api/v1/namespaces/team--shop/services/front:80/proxy/path" {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if out := raw(t, team.client(t), "/api/v1/namespaces/shop/pods/web-1-a/proxy/status"); out != "GET /api/v1/namespaces/team--shop/pods/web-1-a/proxy/status" {
		t.Error(out)
	}
	if err := team.client(t).CoreV1().Pods("shop").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "web-1-a"}}); err != nil {
		t.Errorf("eviction: %v", err)
	}
	if err := team.client(t).CoreV1().Pods("shop").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "none"}}); !apierrors.IsNotFound(err) {
		t.Errorf("eviction of no pod: %v", err)
	}
}

// testPlacedEvents: kubectl describe shows an event that the cluster has about a copy.
func testPlacedEvents(t *testing.T, team atoll, member *fakeapi.Server) {
	t.Helper()
	for name, about := range map[string]map[string]any{
		"of-web": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "team--shop", "name": "web", "uid": string(member.Get(deployments, "team--shop", "web").GetUID())},
		"of-pod": {"apiVersion": "v1", "kind": "Pod", "namespace": "team--shop", "name": "web-1-a", "uid": string(member.Get(podResource, "team--shop", "web-1-a").GetUID())},
	} {
		member.Put(map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"namespace": "team--shop", "name": name}, "involvedObject": about,
			"reason": "Seen", "message": "the event " + name, "type": "Normal"})
	}
	team.awaitOutput(t, "the event of-web", "describe", "deployment", "web", "-n", "shop")
	team.awaitOutput(t, "the event of-pod", "describe", "pod", "web-1-a", "-n", "shop")
	team.awaitOutput(t, "shop", "get", "events", "-A", "--field-selector", "involvedObject.namespace=shop,reason=Seen", "-o", "jsonpath={.items[*].involvedObject.namespace}")
}

// testPlacedWatch: a watch continues at the version of a list, and reports pods of namespaces that come later.
func testPlacedWatch(t *testing.T, team atoll, member *fakeapi.Server) {
	t.Helper()
	all := team.client(t).CoreV1().Pods("")
	list, err := all.List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	runPod(member, "team--shop", "web-1-b", "web-1")
	w, err := all.Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=web", ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	added := nextPod(t, w, watch.Added, "shop/web-1-b")
	team.mustKubectl(t, "", "delete", "pod", "web-1-b", "-n", "shop")
	if member.Get(podResource, "team--shop", "web-1-b") != nil {
		t.Error("the pod is still in the cluster")
	}
	nextPod(t, w, watch.Deleted, "shop/web-1-b")
	again, err := all.Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=web", ResourceVersion: added.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Stop()
	nextPod(t, again, watch.Deleted, "shop/web-1-b")
	if _, err := all.Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=other", ResourceVersion: added.ResourceVersion}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch at the version of another list: %v", err)
	}
}

// nextPod returns the pod of the next event, which is to be this one.
func nextPod(t *testing.T, w watch.Interface, kind watch.EventType, name string) *corev1.Pod {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				t.Fatal("the watch has ended")
			}
			if e.Type == watch.Modified && kind != watch.Modified {
				continue // the pod is being deleted
			}
			pod, is := e.Object.(*corev1.Pod)
			if !is || e.Type != kind || pod.Namespace+"/"+pod.Name != name {
				t.Fatalf("%s %v, and not %s %s", e.Type, e.Object, kind, name)
			}
			return pod
		case <-deadline:
			t.Fatalf("no event %s %s", kind, name)
		}
	}
}

// TestPlacedWorkspacePodsAttacks: a workspace reaches the pods of its own objects alone: none of another workspace, and none of a namespace of the root that
// has the name of one of its own. RBAC of the workspace decides first, and that of the root after it.
func TestPlacedWorkspacePodsAttacks(t *testing.T) {
	s := startFleets(t, server.Config{DataDir: t.TempDir(), WorkspaceIdle: time.Second})
	t.Cleanup(func() { _ = s.stop() })
	member := measured(t)
	s.joinMember(t, "east", streaming(member))
	s.mustKubectl(t, "", "create", "namespace", "team--x")
	team, other := s.createPlaced(t, "team"), s.createPlaced(t, "other")
	team.mustKubectl(t, "", "create", "namespace", "x")
	team.mustKubectl(t, "", "create", "namespace", "other--default")
	s.run(t, s, member, "team--x", "team--x", "roots")
	other.run(t, s, member, "default", "other--default", "theirs")
	team.run(t, s, member, "default", "team--default", "ours")
	team.awaitOutput(t, "ours-1-a", "get", "pods", "-o", "name")

	if out := team.mustKubectl(t, "", "get", "pods", "-A", "-o", "name"); out != "pod/ours-1-a\n" {
		t.Errorf("the workspace sees %s", out)
	}
	if out := team.mustKubectl(t, "", "get", "events", "-A", "-o", "jsonpath={.items[*].involvedObject.name}"); strings.Contains(out, "theirs") || strings.Contains(out, "roots") {
		t.Errorf("the workspace sees events of %s", out)
	}
	for namespace, pod := range map[string]string{"x": "roots-1-a", "team--x": "roots-1-a", "other--default": "theirs-1-a", "default": "theirs-1-a"} {
		if out, err := team.kubectl(t, "", "logs", pod, "-n", namespace); err == nil || !strings.Contains(out, "not found") {
			t.Errorf("logs of %s/%s: %v %s", namespace, pod, err, out)
		}
		if out := upgraded(t, team.config(t), "/api/v1/namespaces/"+namespace+"/pods/"+pod+"/exec?command=id"); !strings.HasPrefix(out, "404 ") {
			t.Errorf("a connection to %s/%s: %s", namespace, pod, out)
		}
		if out, err := team.kubectl(t, "", "delete", "pod", pod, "-n", namespace); err == nil || !strings.Contains(out, "not found") {
			t.Errorf("deletion of %s/%s: %v %s", namespace, pod, err, out)
		}
	}
	client, err := rest.HTTPClientFor(team.config(t))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Get(team.config(t).Host + "/api/v1/namespaces/default/pods/ours-1-a/proxy/%2e%2e/%2e%2e/%2e%2e/other--default/pods/theirs-1-a/log")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "segment") {
		t.Errorf("a path that leads elsewhere: %d %s", answer.StatusCode, text)
	}

	team.mustKubectl(t, "", "create", "role", "lookers", "--verb=get,list", "--resource=pods")
	team.mustKubectl(t, "", "create", "rolebinding", "lookers", "--role=lookers", "--user=mallory")
	if out := team.mustKubectl(t, "", "--as=mallory", "get", "pods", "-o", "name"); out != "pod/ours-1-a\n" {
		t.Error(out)
	}
	if out, err := team.kubectl(t, "", "--as=mallory", "logs", "ours-1-a"); err == nil || !strings.Contains(out, `User "mallory" cannot get resource "pods/log"`) {
		t.Errorf("logs without the right: %v %s", err, out)
	}
	if out := upgraded(t, team.config(t), "/api/v1/namespaces/default/pods/ours-1-a/exec?command=id", "Impersonate-User: mallory"); !strings.HasPrefix(out, "403 ") {
		t.Errorf("a connection without the right: %s", out)
	}
	if out, err := team.kubectl(t, "", "label", "pod", "ours-1-a", "a=b"); err == nil || !strings.Contains(out, "change the object that they belong to") {
		t.Errorf("a change of a pod: %v %s", err, out)
	}

	s.mustKubectl(t, "", "delete", "rolebinding", "atoll:workspace-placement", "-n", "team--default")
	eventually(t, "RBAC of the root decides", func(context.Context) error {
		if out, err := team.kubectl(t, "", "logs", "ours-1-a"); err == nil || !strings.Contains(out, "forbidden") || !strings.Contains(out, "the workspace above") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if out, _ := team.kubectl(t, "", "get", "pods"); !strings.Contains(out, "the pods of namespace default are missing: ") {
		t.Error(out)
	}
}
