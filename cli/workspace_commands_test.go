package cli_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// localCommands connect to no Atoll, or not over its API, so they have no flag -w. The subcommands of keys and kv are among them.
var localCommands = []string{"server", "kubeconfig", "keys", "syncer", "interpret", "kv", "provider-keeper", "provider-launcher", "version"}

// inWorkspaceStep is a command in a workspace: it works there, or fails with the remedy.
type inWorkspaceStep struct {
	command, args string
	code          int
	out           string // stdout and stderr contain it
}

const (
	noProviders = "the workspace has no Providers"
	noShared    = "workspace team-a has no sharedapis: use -w root"
	noPull      = "mode pull is not available in workspace team-a: use --mode push"
	unreached   = "the clusters of workspace team-a are not reached through Atoll: use kubectl with a kubeconfig of the cluster"
	kubectlNote = "For kubectl in this workspace, run `atoll workspace use team-a` first"
)

// inWorkspaceSteps are all commands that connect to Atoll, in their order: east and west join first, and leave last. A new command needs an
// entry, so that its author decides about workspaces. FILES is a directory.
var inWorkspaceSteps = []inWorkspaceStep{
	{"join", "east --kubeconfig FILES/east", 0, "cluster/east joined\n"},
	{"join", "west --kubeconfig FILES/west", 0, "cluster/west joined\n"},
	{"join", "north --mode pull --server https://192.0.2.1", 1, noPull},
	{"join", "north --mode pull --bootstrap --server https://192.0.2.1", 1, noPull},
	{"explain", "deployment/web", 0, "east"},
	{"explain", "deployment/none", 1, "run `atoll preview -f FILE -w team-a`"},
	{"explain", "gadget/one", 0, "custom resources of a workspace are not placed"},
	{"preview", "-f FILES/app.yaml", 0, "api"},
	{"preview drain", "east", 0, ""},
	{"preview join", "south --labels region=eu", 0, ""},
	{"preview policy", "-f FILES/policy.yaml", 0, ""},
	{"preview rebalance", "--all", 0, ""},
	{"preview move", "deployment/web --to west", 0, ""},
	{"rebalance", "--all", 0, ""},
	{"cordon", "east", 0, "cluster/east cordoned\n"},
	{"move", "deployment/web --to east", 1, "`atoll uncordon east -w team-a`"},
	{"uncordon", "east", 0, "cluster/east uncordoned\n"},
	{"pause", "deployment/web", 0, "deployments.apps/web paused\n"},
	{"resume", "deployment/web", 0, "deployments.apps/web resumed\n"},
	{"abort", "deployment/none", 1, "`atoll explain deployments.apps/none -n default -w team-a` says why"},
	{"retry", "deployment/web", 0, "deployments.apps/web avoids no clusters\n"},
	{"transitions", "-A", 0, ""},
	{"drain", "east --dry-run", 0, "cluster/east is drained (server dry run)\n"},
	{"drain", "nowhere", 1, "the clusters are east, west"},
	{"clusters allow-deletions", "nowhere", 1, kubectlNote},
	{"drain", "east --wait=false", 0, "cluster/east is drained\n"},
	{"uncordon", "east", 0, "its drain is ended\n"},
	{"move", "deployment/web --to west --force --wait=false", 0, "deployments.apps/web "},
	{"replace", "east --by west --dry-run", 0, "(server dry run)\n"},
	{"adopt", "--all --dry-run=client", 0, "No conflicts found"},
	{"adopt", "configmap/theirs --from west --dry-run=client", 0, "theirs"},
	{"approve", "placement/web --yes", 0, "eneration 1"},
	{"clusters take-over", "--all --dry-run", 0, "no cluster belongs to another control plane"},
	{"clusters allow-deletions", "east", 0, "cluster/east deletions allowed until "},

	{"get", "configmaps", 1, unreached},
	{"expose", "shop.example.org --to east", 1, noShared},
	{"unexpose", "shop.example.org", 1, noShared},
	{"plan", "", 1, noProviders},
	{"show", "p", 1, "not found"},
	{"approve", "p", 1, "not found"},
	{"apply", "", 1, noProviders},
	{"cancel", "a", 1, "not found"},
	{"destroy", "", 1, noProviders},
	{"drift", "", 1, noProviders},
	{"rollback", "", 0, "No applies found in namespace default."},
	{"graph", "", 0, ""},
	{"import", "network main net-1", 1, "no Provider serves any kind"},
	{"import", "-f FILES/app.yaml", 1, "state file"},
	{"move-state", "network/main backbone", 1, "no Provider serves any kind"},
	{"export", "", 0, "Exported 0 resources"},

	{"workspace create", ":child", 0, "workspace/team-a:child created\n"},
	{"workspace list", "", 0, "child"},
	{"workspace tree", "", 0, "child"},
	{"workspace top", "", 0, "child"},
	{"workspace copy", ":child :copy", 0, "team-a:copy"},
	{"workspace move", ":copy :moved", 0, "workspace/team-a:copy moved to team-a:moved\n"},
	{"workspace backup", ":child -f FILES/child.backup", 0, ""},
	{"workspace restore", ":restored -f FILES/child.backup", 0, "team-a:restored"},
	{"workspace delete", ":child :moved :restored", 0, "workspace/team-a:restored deleted\n"},
	{"workspace use", ":none", 1, "workspace team-a:none does not exist"},
	{"api export", "gadgets --resource gadgets.example.com", 0, "gadgets"},
	{"api bind", "nowhere:gadgets", 1, "nowhere"},

	{"leave", "west --dry-run", 0, "cluster/west leaves"},
	{"leave", "west --force", 0, "cluster/west left\n"},
	{"leave", "east --keep-workloads", 0, "cluster/east left\n"},
}

// TestCommandsKnowWorkspaces: each command connects to no Atoll, or has the flag -w and a step in a workspace.
func TestCommandsKnowWorkspaces(t *testing.T) {
	known := map[string]bool{}
	for _, step := range inWorkspaceSteps {
		known[step.command] = true
	}
	var walk func(cmd *cobra.Command, path string)
	walk = func(cmd *cobra.Command, path string) {
		local := slices.Contains(localCommands, strings.Fields(path + " ")[0])
		has := cmd.Flags().Lookup("workspace") != nil
		switch {
		case has && local:
			t.Errorf("atoll %s has the flag -w: remove it from localCommands", path)
		case has && !known[path]:
			t.Errorf("atoll %s: add a step in a workspace to inWorkspaceSteps", path)
		case !has && !local && !cmd.HasSubCommands():
			t.Errorf("atoll %s has no flag -w (target.addPlainFlags): add it, or add the command to localCommands if it connects to no Atoll", path)
		}
		delete(known, path)
		for _, below := range cmd.Commands() {
			walk(below, strings.TrimSpace(path+" "+below.Name()))
		}
	}
	for _, cmd := range cli.New("atoll").Commands() {
		walk(cmd, cmd.Name())
	}
	for path := range known {
		t.Errorf("there is no command atoll %s with the flag -w", path)
	}
}

// TestCommandsInAWorkspace runs all commands in a workspace with two clusters of its own. With a context that `atoll workspace use` has written, they
// need no flag. The root has no cluster before and afterwards.
func TestCommandsInAWorkspace(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	out, _ := start(t, "server", "--data-dir", data, "--secure-port", "0", "--workspace-member-networks", "127.0.0.0/8")
	eventually(t, "the server is ready", func() bool { return strings.Contains(out.String(), "Atoll serves") })
	kubeconfig := filepath.Join(data, "admin.kubeconfig")
	if code, stdout, stderr := run(t, "atoll", "workspace", "create", "team-a", "--kubeconfig", kubeconfig); code != 0 {
		t.Fatal(stdout, stderr)
	}
	for _, name := range []string{"east", "west"} {
		writeKubeconfig(t, filepath.Join(dir, name), newMember(t, name).Member())
	}
	for name, content := range map[string]string{
		"app.yaml":    `{apiVersion: apps/v1, kind: Deployment, metadata: {name: api}, spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, spec: {containers: [{name: api, image: api}]}}}}`,
		"policy.yaml": `{apiVersion: fleet.atoll.dev/v1alpha1, kind: Placement, metadata: {name: web}, spec: {selector: {kinds: [Deployment]}}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Host += "/clusters/team-a"
	fillWorkspace(t, config)

	use := filepath.Join(dir, "used")
	copied, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(use, copied, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", use)
	if code, stdout, stderr := run(t, "kubectl-atoll", "workspace", "use", "team-a"); code != 0 {
		t.Fatal(stdout, stderr)
	}
	for i, step := range inWorkspaceSteps {
		line := append(strings.Fields(step.command), strings.Fields(strings.ReplaceAll(step.args, "FILES", dir))...)
		program, flags := "atoll", []string{"--atoll-kubeconfig", kubeconfig, "-w", "team-a"}
		if i%2 == 1 && !strings.Contains(step.out, "-w team-a`") && step.out != kubectlNote { // messages of the others have the flag
			program, flags = "kubectl-atoll", nil
		}
		code, stdout, stderr := run(t, slices.Concat([]string{program}, line, flags)...)
		if code != step.code || !strings.Contains(stdout+stderr, step.out) {
			t.Errorf("%s %s: exit code %d\n%s%s\nwant %d\n%s", program, strings.Join(slices.Concat(line, flags), " "), code, stdout, stderr, step.code, step.out)
		}
		if step.command == "join" && step.code == 0 && code != 0 {
			t.FailNow()
		}
	}
	if code, stdout, stderr := run(t, "atoll", "drain", "east", "--atoll-kubeconfig", kubeconfig); code != 1 || !strings.Contains(stderr, "no cluster has joined") {
		t.Errorf("in the root: exit code %d: %s%s", code, stdout, stderr)
	}
}

// fillWorkspace creates a Deployment, a policy, and a custom resource.
func fillWorkspace(t *testing.T, config *rest.Config) {
	t.Helper()
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	web := map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{"replicas": int64(2), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "web", "image": "web:1"}}}}}}
	policy := map[string]any{"apiVersion": "fleet.atoll.dev/v1alpha1", "kind": "Placement", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{"selector": map[string]any{"names": []any{"none"}}}}
	gadgets := map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "gadgets.example.com"},
		"spec": map[string]any{"group": "example.com", "scope": "Namespaced", "names": map[string]any{"kind": "Gadget", "plural": "gadgets"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}}}}
	gadget := map[string]any{"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": map[string]any{"name": "one"}}
	if _, err := dyn.Resource(crdResource).Create(t.Context(), &unstructured.Unstructured{Object: gadgets}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := dyn.Resource(deploymentResource).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: web}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := dyn.Resource(v1alpha1.PlacementResource).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: policy}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the custom resource is stored", func() bool {
		_, err := dyn.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: gadget}, metav1.CreateOptions{})
		return err == nil
	})
}

// newMember is a fake cluster with a ConfigMap of its own.
func newMember(t *testing.T, name string) *fakeapi.Server {
	t.Helper()
	member := fakeapi.New(t, fakeapi.BuiltIns("v1 Namespace", "v1 Node", "v1 Pod", "v1 Event", "v1 ConfigMap", "v1 Secret", "v1 Service", "v1 ServiceAccount",
		"v1 PersistentVolumeClaim", "apps/v1 Deployment", "apps/v1 ReplicaSet", "coordination.k8s.io/v1 Lease")...)
	member.Put(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "kube-system", "uid": "cluster-" + name}})
	member.Put(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "theirs", "namespace": "default"}})
	member.Put(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "reef"},
		"status": map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "4Gi", "pods": "110"}, "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}})
	return member
}

// writeKubeconfig serves an API until the test ends, and writes a kubeconfig for it.
func writeKubeconfig(t *testing.T, file string, api http.Handler) {
	t.Helper()
	served := httptest.NewTLSServer(api)
	t.Cleanup(func() { served.CloseClientConnections(); served.Close() })
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: served.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: served.Certificate().Raw})}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "of-atoll"}
	config.Contexts["x"], config.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(fmt.Errorf("write %s: %w", file, err))
	}
}
