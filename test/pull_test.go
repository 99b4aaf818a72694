package test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/programs"
)

// island is a system with one member in mode Pull, whose syncer reaches Atoll over a
// link that can be cut.
type island struct {
	*fixture
	t      *testing.T
	view   string   // kubeconfig
	stored []string // flags with the place of that kubeconfig
	access string   // kubeconfig of the syncer for the member
	link   *programs.Link
	syncer *exec.Cmd
}

func pulled(t *testing.T) *island {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	f := &fixture{dir: t.TempDir(), members: map[string]*member.Cluster{}}
	var err error
	if f.System, err = system.Open(ctx, system.Config{Dir: f.dir}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.System.Close() })
	started := make(chan error, 1)
	go func() {
		m, err := f.StartMember(ctx, "island")
		f.members["island"] = m
		started <- err
	}()
	if err := errors.Join(f.StartAtoll(ctx), <-started); err != nil {
		t.Fatal(err)
	}
	i := &island{fixture: f, t: t, view: filepath.Join(f.dir, "view.kubeconfig")}
	rest, err := f.REST()
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(rest.Host)
	if err != nil {
		t.Fatal(err)
	}
	if i.link, err = programs.NewLink(at.Host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.link.Close)
	f.atoll(t, "join", "island", "--mode", "pull", "--server", "https://"+i.link.Address(), "--view-kubeconfig", i.view)
	i.stored, i.access = []string{"--view-kubeconfig", i.view}, i.account()
	return i
}

// start starts the syncer, a process of its own.
func (i *island) start() {
	i.t.Helper()
	log, err := os.OpenFile(filepath.Join(i.dir, "logs", "syncer.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		i.t.Fatal(err)
	}
	defer log.Close() // the process has its own
	cmd := programs.Command(context.Background(), i.dir, "atoll", "", append([]string{"syncer", "--kubeconfig", i.access, "-v", "2"}, i.stored...)...)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	i.syncer = cmd
	i.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait()
		if i.t.Failed() {
			said, _ := os.ReadFile(log.Name())
			i.t.Logf("the syncer said:\n%s", said[max(0, len(said)-4000):])
		}
	})
}

// kill ends the syncer as a crash would.
func (i *island) kill() {
	i.t.Helper()
	if err := i.syncer.Process.Kill(); err != nil {
		i.t.Fatal(err)
	}
	_, _ = i.syncer.Process.Wait()
}

// eventually waits until kubectl prints something.
func (i *island) says(cluster, want string, args ...string) {
	i.t.Helper()
	eventually(i.t, settle, cluster+": kubectl "+strings.Join(args, " "), func(ctx context.Context) error {
		out, err := i.tryKubectl(ctx, cluster, "", args...)
		if err == nil && out != want {
			err = fmt.Errorf("prints %q, not %q", out, want)
		}
		return err
	})
}

// identities returns the UIDs of the fleet's objects in the member, by kind and name.
func (i *island) identities() string {
	i.t.Helper()
	return i.kubectl(i.t, "island", "get", "deployments,configmaps,secrets", "-n", "shop", "-l", "fleet.atoll.dev/managed=true",
		"--sort-by=.metadata.name", "-o", "jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.uid} {end}")
}

const islandApp = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, namespace: shop}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: word, namespace: shop}
stringData: {word: swordfish}
---
apiVersion: v1
kind: Secret
metadata: {name: unbound, namespace: shop, labels: {fleet.atoll.dev/configuration: WhereNeeded}}
stringData: {word: herring}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: web
          image: nginx
          envFrom: [{configMapRef: {name: conf}}, {secretRef: {name: word}}]
`

// An app runs in a cluster that Atoll cannot connect to. No failure of its syncer, of the server or of the
// network removes any of its objects, and changes made during the failure arrive afterwards.
func TestAClusterThatPulls(t *testing.T) {
	t.Parallel()
	i := pulled(t)
	if out := i.kubectl(t, "atoll", "get", "secrets", "-A", "--field-selector", "type=fleet.atoll.dev/kubeconfig", "-o", "name"); out != "" {
		t.Errorf("Atoll has a way to some cluster: %s", out)
	}
	ready := []string{"get", "cluster", "island", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].reason}`}
	i.says("atoll", "ErrorInstallingSyncer", ready...)
	i.start()
	i.says("atoll", "ClusterReady", ready...)
	i.says("atoll", "3/3", "get", "cluster", "island", "-o", "jsonpath={.status.nodes.summary}")
	// Without any permission that the syncer needs for itself, the message would end with that.
	i.says("atoll", "the cluster answers and is ready", "get", "cluster", "island", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`)

	i.apply(t, islandApp)
	replicas := []string{"get", "deployment", "web", "-n", "shop", "-o", "jsonpath={.status.readyReplicas}/{.spec.replicas}"}
	i.says("atoll", "2/2", replicas...)
	i.says("island", "blue", "get", "configmap", "conf", "-n", "shop", "-o", "jsonpath={.data.color}")
	before := i.identities()
	for _, want := range []string{"Deployment/web", "ConfigMap/conf", "Secret/word"} {
		if !strings.Contains(before, want) {
			t.Errorf("the member has %s, without %s", before, want)
		}
	}
	// Through the tunnel of the syncer.
	pods := []string{"get", "pods", "-n", "shop", "-o", `jsonpath={range .items[*]}{.metadata.labels.fleet\.atoll\.dev/cluster}/{.status.phase} {end}`}
	i.says("atoll", "island/Running island/Running", pods...)
	if out, err := i.tryKubectl(t.Context(), "island", "", "get", "secret", "unbound", "-n", "shop"); err == nil {
		t.Errorf("the member has objects that are not bound to it: %s", out)
	}

	t.Run("the view contains the bound objects and is read-only", func(t *testing.T) {
		self := []string{"get", "secrets", "-A", "-o", "jsonpath={.items[*].metadata.name}"}
		if out, err := i.run(t.Context(), "kubectl", i.view, "", self...); err != nil || out != "word" {
			t.Errorf("secrets in the view: %q %v", out, err)
		}
		if out, err := i.run(t.Context(), "kubectl", i.view, "", "delete", "deployment", "web", "-n", "shop"); err == nil {
			t.Errorf("a delete in the view: %q", out)
		}
	})

	t.Run("an operator, its type and a ResourceInterpretation", i.custom)

	t.Run("a namespace that is emptied before it goes", func(t *testing.T) {
		i.apply(t, emptiedApp)
		there := []string{"get", "deployment,namespace", "-A", "-l", "fleet.atoll.dev/managed=true", "-o", "name",
			"--field-selector", "metadata.name!=web,metadata.name!=shop,metadata.name!=operator,metadata.name!=gadgetry"}
		i.says("island", "deployment.apps/tmp\nnamespace/brief", there...)
		i.kubectl(t, "atoll", "delete", "deployment", "tmp", "-n", "brief")
		i.says("island", "namespace/brief", there...)
		i.kubectl(t, "atoll", "delete", "namespace", "brief")
		i.says("island", "", there...)
	})

	t.Run("a shared API is refused", func(t *testing.T) {
		i.apply(t, "apiVersion: fleet.atoll.dev/v1alpha1\nkind: SharedAPI\nmetadata: {name: kinds}\nspec: {groups: [kinds.example.com], clusters: [island]}")
		i.says("atoll", "ClusterPulls", "get", "sharedapi", "kinds", "-o", "jsonpath={.status.clusters[0].reason}")
		i.kubectl(t, "atoll", "delete", "sharedapi", "kinds", "--timeout=60s")
	})

	t.Run("a syncer that is killed", func(t *testing.T) {
		i.kill()
		i.kubectl(t, "atoll", "scale", "deployment", "web", "-n", "shop", "--replicas=3")
		i.kubectl(t, "atoll", "patch", "configmap", "conf", "-n", "shop", "--type=merge", "-p", `{"data":{"color":"red"}}`)
		i.same(before)
		i.start()
		i.says("atoll", "3/3", replicas...)
		i.says("island", "red", "get", "configmap", "conf", "-n", "shop", "-o", "jsonpath={.data.color}")
		i.same(before)
	})

	t.Run("a server that is killed", func(t *testing.T) {
		i.KillAtoll()
		i.same(before)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := i.StartAtoll(ctx); err != nil {
			t.Fatal(err)
		}
		i.kubectl(t, "atoll", "scale", "deployment", "web", "-n", "shop", "--replicas=4")
		i.says("atoll", "4/4", replicas...)
		i.same(before)
	})

	t.Run("a network that is cut", func(t *testing.T) {
		i.link.Cut()
		i.kubectl(t, "atoll", "scale", "deployment", "web", "-n", "shop", "--replicas=5")
		i.kubectl(t, "atoll", "delete", "secret", "word", "-n", "shop", "--wait=false")
		// The syncer continues with the state that it knows and does not need Atoll.
		i.kubectl(t, "island", "scale", "deployment", "web", "-n", "shop", "--replicas=1")
		i.says("island", "4", "get", "deployment", "web", "-n", "shop", "-o", "jsonpath={.spec.replicas}")
		i.says("atoll", "ClusterUnreachable", ready...)
		i.same(before)
		i.link.Heal()
		i.says("atoll", "5/5", replicas...)
		i.says("atoll", "ClusterReady", ready...)
		i.says("atoll", strings.TrimSpace(strings.Repeat("island/Running ", 5)), pods...)
		i.says("island", "", "get", "secret", "word", "-n", "shop", "--ignore-not-found", "-o", "name")
	})

	t.Run("a cluster that leaves", func(t *testing.T) {
		// An object that left earlier left its namespace behind, because the namespace still exists in Atoll.
		i.apply(t, emptiedApp)
		emptied := []string{"get", "deployment/tmp", "namespace/brief", "-n", "brief", "--ignore-not-found", "-o", "name"}
		i.says("island", "deployment.apps/tmp\nnamespace/brief", emptied...)
		i.kubectl(t, "atoll", "delete", "deployment", "tmp", "-n", "brief")
		i.says("island", "namespace/brief", emptied...)
		// No other cluster takes its objects, so it stays until the user says otherwise.
		if out, err := i.run(t.Context(), "atoll", i.Kubeconfig(), "", "leave", "island"); err == nil || !strings.Contains(err.Error(), "Deployment shop/web") || !strings.Contains(err.Error(), "--force") {
			t.Errorf("the only cluster leaves: %q, %v; want an error with the objects and the remedy", out, err)
		}
		i.says("island", "5", "get", "deployment", "web", "-n", "shop", "-o", "jsonpath={.status.availableReplicas}")
		i.atoll(t, "leave", "island", "--force")
		i.says("atoll", "", "get", "apiresourceimports", "-o", "name")
		i.says("atoll", "", "get", "configmaps", "-n", "atoll-system", "-l", "fleet.atoll.dev/reported-types", "-o", "name")
		i.says("island", "", "get", "deployments,configmaps", "-n", "shop", "-l", "fleet.atoll.dev/managed=true", "-o", "name")
		i.says("island", "", "get", "namespaces", "-l", "fleet.atoll.dev/managed=true", "-o", "name")
		if out, err := i.run(t.Context(), "kubectl", i.view, "", "get", "secrets", "-A"); err == nil {
			t.Errorf("the view is served after the cluster has left: %q", out)
		}
	})

	t.Run("it joins again with a bootstrap token", func(t *testing.T) { i.joinByToken(t, ready) })
}

// custom has the member take a type that an operator brings, and objects of it.
func (i *island) custom(t *testing.T) {
	condition := func(kind, name, condition string) []string {
		return []string{"get", kind, name, "-o", fmt.Sprintf(`jsonpath={.status.conditions[?(@.type==%q)].status}`, condition)}
	}
	i.apply(t, operatorManifest)
	i.allowWhenForbidden("--allow customresourcedefinitions.apiextensions.k8s.io", "clusterresourcebinding/customresourcedefinition.apiextensions.k8s.io-gadgets.kinds.example.com")
	i.allowWhenForbidden("--allow-rbac", "clusterresourcebinding/clusterrole.rbac.authorization.k8s.io-gadget-operator")
	i.says("atoll", "2/2", "get", "deployment", "web", "-n", "shop", "-o", "jsonpath={.status.readyReplicas}/{.spec.replicas}")
	i.says("island", "True", condition("crd", "gadgets.kinds.example.com", "Established")...)
	imported := "gadgets.island.v1.kinds.example.com"
	i.says("atoll", "True", condition("apiresourceimport", imported, "Available")...)
	i.says("atoll", "True", condition("apiresourceimport", imported, "Compatible")...)

	i.apply(t, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: ResourceInterpretation, metadata: {name: gadgets},
spec: {target: {apiVersion: kinds.example.com/v1, kind: Gadget}, health: "self.spec.size > 2 ? 'Degraded' : 'Healthy'"}}`)
	i.apply(t, "apiVersion: kinds.example.com/v1\nkind: Gadget\nmetadata: {name: one, namespace: gadgetry}\nspec: {size: 3}")
	i.allowWhenForbidden("--allow gadgets.kinds.example.com", "resourcebinding/gadget.kinds.example.com-one", "-n", "gadgetry")
	i.says("island", "3", "get", "gadget", "one", "-n", "gadgetry", "-o", "jsonpath={.spec.size}")
	i.kubectl(t, "island", "patch", "gadget", "one", "-n", "gadgetry", "--subresource=status", "--type=merge",
		"-p", `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Made","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	i.says("atoll", "True", "get", "gadget", "one", "-n", "gadgetry", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	health := []string{"get", "resourcebinding", "gadget.kinds.example.com-one", "-n", "gadgetry", "-o", "jsonpath={.status.clusters[0].health}"}
	i.says("atoll", "Degraded", health...)
	i.kubectl(t, "atoll", "patch", "resourceinterpretation", "gadgets", "--type=merge", "-p", `{"spec":{"health":"'Progressing'"}}`)
	i.says("atoll", "Progressing", health...)
}

// emptiedApp is a namespace and one Deployment.
const emptiedApp = `
apiVersion: v1
kind: Namespace
metadata: {name: brief}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: tmp, namespace: brief}
spec:
  replicas: 1
  selector: {matchLabels: {app: tmp}}
  template:
    metadata: {labels: {app: tmp}}
    spec: {containers: [{name: tmp, image: tmp}]}
`

// same checks that the member's objects are the same, with the same UIDs.
func (i *island) same(before string) {
	i.t.Helper()
	if now := i.identities(); now != before {
		i.t.Errorf("the member had %s and has %s", before, now)
	}
}
