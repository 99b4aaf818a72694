package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// loopbackMembers permits the members of tests, which are on this machine.
func loopbackMembers() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

// startFleets starts a server on which fleets of workspaces stop soon after the last Cluster is gone.
func startFleets(t *testing.T, cfg server.Config, prepare ...func(*server.Server)) atoll {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := server.New(ctx, cfg)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	s.SettleFleets(time.Second)
	for _, do := range prepare {
		do(s)
	}
	a := atoll{Server: s, cancel: cancel, done: make(chan error, 1)}
	go func() { a.done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
		return a
	case err := <-a.done:
		t.Fatal(errors.Join(err, s.Close()))
	case <-time.After(time.Minute):
		t.Fatal(errors.Join(fmt.Errorf("the server was not ready within a minute: %s", a.readiness()), a.stop()))
	}
	return a
}

// in returns the API of a workspace.
func (a atoll) in(path string) atoll {
	a.path = "/clusters/" + path
	return a
}

// awaitPlaced waits until a Deployment is in a cluster.
func (a atoll) awaitPlaced(t *testing.T, member *fakeapi.Server, namespace, name string) {
	t.Helper()
	eventually(t, name+" is in the cluster", func(context.Context) error {
		if member.Get(deployments, namespace, name) == nil {
			out, _ := a.kubectl(t, "", "get", "clusters,resourcebindings", "-n", namespace, "-o", "yaml")
			return errors.New(out)
		}
		return nil
	})
}

// awaitReason waits until the condition Ready of a Cluster has a reason, and returns its message.
func (a atoll) awaitReason(t *testing.T, cluster, reason string) (message string) {
	t.Helper()
	eventually(t, cluster+" has the reason "+reason, func(context.Context) error {
		out := a.mustKubectl(t, "", "get", "cluster", cluster, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].reason} {.status.conditions[?(@.type=="Ready")].message}`)
		found, rest, _ := strings.Cut(out, " ")
		if message = rest; found != reason {
			return errors.New(out)
		}
		return nil
	})
	return message
}

// awaitNoFleet waits until no workspace on a path of the root is marked.
func (a atoll) awaitNoFleet(t *testing.T, root string) {
	t.Helper()
	eventually(t, "workspace "+root+" has no fleet any more", func(ctx context.Context) error {
		w, err := a.dynamic(t).Resource(tenancy.WorkspaceResource).Get(ctx, root, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if marks, _, _ := unstructured.NestedMap(w.Object, "status", "fleets"); len(marks) > 0 {
			return fmt.Errorf("%v", marks)
		}
		return nil
	})
}

// TestWorkspaceFleet: a Deployment in a workspace runs in the workspace's own cluster, and its status comes back. Another workspace neither sees nor
// gets the cluster. After a restart, the fleet continues without a request. A workspace with a Cluster, and one above it, cannot be deleted.
// When the Cluster has left, the workspace has no fleet any more, and can be.
func TestWorkspaceFleet(t *testing.T) {
	cfg := server.Config{DataDir: t.TempDir(), WorkspaceMemberNetworks: loopbackMembers(), WorkspaceIdle: time.Second}
	s := startFleets(t, cfg)
	t.Cleanup(func() { _ = s.stop() })
	s.createWorkspace(t, "top")
	s.createNested(t, "top", "a")
	s.createWorkspace(t, "b")
	a, b := s.in("top:a"), s.in("b")
	ofA, ofB := measured(t), measured(t)
	shared := ofA.Member()
	a.joinMember(t, "east", shared)
	b.joinMember(t, "west", ofB.Member())

	ns := a.namespace(t)
	a.mustKubectl(t, "", "create", "deployment", "web", "--image=web", "-n", ns)
	b.mustKubectl(t, "", "create", "deployment", "other", "--image=web")
	a.awaitPlaced(t, ofA, ns, "web")
	b.awaitPlaced(t, ofB, "default", "other")
	if ofB.Get(deployments, ns, "web") != nil || ofA.Get(deployments, "default", "other") != nil {
		t.Error("a workspace has placed an object in the cluster of another one")
	}
	if out := a.mustKubectl(t, "", "get", "clusters", "-o", "name"); out != "cluster.fleet.atoll.dev/east\n" {
		t.Error(out)
	}
	if out := s.mustKubectl(t, "", "get", "clusters", "-o", "name"); strings.Contains(out, "east") {
		t.Error(out)
	}
	ofA.Merge(deployments, ns, "web", `{"status":{"observedGeneration":1,"replicas":1,"readyReplicas":1,"updatedReplicas":1,"availableReplicas":1}}`)
	eventually(t, "the status comes back", func(context.Context) error {
		if out := a.mustKubectl(t, "", "get", "deployment", "web", "-n", ns, "-o", "jsonpath={.status.readyReplicas}"); out != "1" {
			return errors.New(out)
		}
		return nil
	})

	s.createWorkspace(t, "c")
	c := s.in("c")
	c.joinMember(t, "mine", shared)
	if message := c.awaitReason(t, "mine", v1alpha1.ReasonOtherControlPlane); !strings.Contains(message, "workspace top:a") {
		t.Error(message)
	}
	c.mustKubectl(t, "", "delete", "cluster", "mine", "--timeout=60s")
	if ofA.Get(deployments, ns, "web") == nil {
		t.Error("a workspace that has not claimed the cluster has removed an object from it")
	}

	for path, refused := range map[string]atoll{"top": s, "a": s.in("top")} {
		if out, err := refused.kubectl(t, "", "delete", "workspace", path); err == nil || !strings.Contains(out, "workspace top:a has Clusters") || !strings.Contains(out, "delete them first") {
			t.Errorf("deletion of %s: %v %s", path, err, out)
		}
	}

	if err := s.stop(); err != nil {
		t.Error(err)
	}
	ofA.Delete(deployments, ns, "web")
	s = startFleets(t, cfg)
	a, b = s.in("top:a"), s.in("b")
	eventually(t, "the fleet continues without a request", func(context.Context) error {
		if ofA.Get(deployments, ns, "web") == nil {
			return errors.New("the Deployment is not in the cluster")
		}
		return nil
	})

	a.mustKubectl(t, "", "delete", "cluster", "east", "--timeout=60s")
	if ofA.Get(deployments, ns, "web") != nil {
		t.Error("the cluster has left, and the Deployment is still there")
	}
	s.awaitNoFleet(t, "top")
	eventually(t, "the workspace sleeps", func(context.Context) error {
		if awake := s.Awake(); slices.ContainsFunc(awake, func(key string) bool { return strings.HasSuffix(key, " top:a") }) {
			return fmt.Errorf("%v are awake", awake)
		}
		return nil
	})
	s.mustKubectl(t, "", "delete", "workspace", "top", "--timeout=60s")
	b.mustKubectl(t, "", "delete", "cluster", "west", "--timeout=60s")
}

// TestWorkspaceFleetAttacks: what users of a workspace write does not lead the server to its own machine, to files, or to programs, and what a
// workspace cannot have is refused with the remedy.
func TestWorkspaceFleetAttacks(t *testing.T) {
	s := theServer(t) // permits no member on this machine
	s.createWorkspace(t, "pirates")
	a := s.in("pirates")
	a.joinMember(t, "own-machine", http.NotFoundHandler())
	kubeconfig := func(cluster, user string) string {
		return "{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {" + cluster + "}}], users: [{name: u, user: {" + user + "}}]}"
	}
	const server = "server: 'https://192.0.2.1'"
	join := func(name, content string) {
		t.Helper()
		a.mustKubectl(t, "", "create", "secret", "generic", name, "--type="+v1alpha1.KubeconfigSecretType, "--from-literal="+v1alpha1.KubeconfigSecretKey+"="+content)
		a.mustKubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: "+name+"}, spec: {kubeconfigSecretRef: {namespace: default, name: "+name+"}}}", "create", "-f", "-")
	}
	message := func(name, want string) {
		t.Helper()
		eventually(t, name+" is refused", func(context.Context) error {
			out := a.mustKubectl(t, "", "get", "cluster", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}`)
			if !strings.HasPrefix(out, "False ") || !strings.Contains(out, want) {
				return errors.New(out)
			}
			return nil
		})
	}
	join("named", kubeconfig("server: 'https://localhost:6443'", "token: x"))
	join("metadata", kubeconfig("server: 'https://169.254.169.254'", "token: x"))
	join("program", kubeconfig(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never}"))
	join("provider", kubeconfig(server, "auth-provider: {name: gcp}"))
	join("token-file", kubeconfig(server, "tokenFile: /etc/passwd"))
	join("key-file", kubeconfig(server, "client-certificate: /etc/passwd, client-key: /etc/passwd"))
	join("ca-file", kubeconfig(server+", certificate-authority: /etc/passwd", "token: x"))
	join("proxy", kubeconfig(server+", proxy-url: 'http://127.0.0.1:1'", "token: x"))
	for _, name := range []string{"own-machine", "named", "metadata"} {
		message(name, "clusters of workspaces may not be at")
	}
	message("program", "runs a program")
	message("provider", "auth-provider")
	message("token-file", "references files")
	message("key-file", "references files")
	message("ca-file", "references a CA file")
	message("proxy", "proxy-url")

	out, err := a.kubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: pull}, spec: {mode: Pull}}", "create", "-f", "-")
	if err == nil || !strings.Contains(out, "spec.mode: Pull is not available in a workspace") {
		t.Errorf("mode Pull: %v %s", err, out)
	}
	for _, resource := range v1alpha1.RootResources {
		if _, err := a.dynamic(t).Resource(resource).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", resource.Resource, err)
		}
	}
	for _, path := range []string{"own-machine/proxy/api", "own-machine/proxy/"} {
		if _, err := a.client(t).RESTClient().Get().AbsPath("/apis/fleet.atoll.dev/v1alpha1/clusters/" + path).DoRaw(t.Context()); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if out, err := s.kubectl(t, "", "delete", "workspace", "pirates"); err == nil || !strings.Contains(out, "workspace pirates has Clusters") {
		t.Errorf("deletion: %v %s", err, out)
	}
	a.mustKubectl(t, "", "delete", "clusters", "--all", "--timeout=60s")
}
