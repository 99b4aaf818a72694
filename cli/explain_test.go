package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// fleetFixture is a namespace on a real server, with clusters whose heartbeats report
// Ready. No workload runs in them, but the scheduler decides on placement.
type fleetFixture struct {
	t          *testing.T
	kubeconfig string
	dynamic    dynamic.Interface
	kube       kubernetes.Interface
}

func (h *fleetFixture) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// atoll runs a command that must succeed, and returns its output.
func (h *fleetFixture) atoll(args ...string) string {
	h.t.Helper()
	code, stdout, stderr := run(h.t, append(append([]string{"atoll"}, args...), "--atoll-kubeconfig", h.kubeconfig)...)
	if code != 0 || stderr != "" {
		h.t.Fatalf("atoll %s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// join creates a Cluster whose syncer appears alive until the test ends.
func (h *fleetFixture) join(name string) {
	h.t.Helper()
	c := newCluster(name)
	h.must(unstructured.SetNestedMap(c.Object, map[string]any{"mode": "Pull"}, "spec"))
	_, err := h.dynamic.Resource(v1alpha1.ClusterResource).Create(h.t.Context(), c, metav1.CreateOptions{})
	h.must(err)
	said, err := json.Marshal(fleet.Observation{Ready: true, Reason: v1alpha1.ReasonClusterReady})
	h.must(err)
	leases := h.kube.CoordinationV1().Leases(v1alpha1.SystemNamespace)
	now := metav1.NowMicro()
	lease, err := leases.Create(h.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.HeartbeatLease(name),
		Labels: map[string]string{v1alpha1.HeartbeatLabel: name}, Annotations: map[string]string{v1alpha1.ObservationAnnotation: string(said)}},
		Spec: coordinationv1.LeaseSpec{RenewTime: &now}}, metav1.CreateOptions{})
	h.must(err)
	beating := make(chan struct{})
	ctx, stop := context.WithCancel(h.t.Context())
	h.t.Cleanup(func() { stop(); <-beating })
	go func() {
		defer close(beating)
		for ticker := time.NewTicker(v1alpha1.HeartbeatInterval / 2); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				now := metav1.NowMicro()
				lease.Spec.RenewTime = &now
				if next, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
					lease = next
				}
			}
		}
	}()
	eventually(h.t, "cluster "+name+" is Ready", func() bool {
		u, err := h.dynamic.Resource(v1alpha1.ClusterResource).Get(h.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		c := &v1alpha1.Cluster{}
		return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c) == nil && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterReady)
	})
}

// create creates an object in the namespace.
func (h *fleetFixture) create(resource, manifest string) {
	h.t.Helper()
	u := &unstructured.Unstructured{}
	h.must(yaml.Unmarshal([]byte(manifest), &u.Object))
	gv, err := schema.ParseGroupVersion(u.GetAPIVersion())
	h.must(err)
	_, err = h.dynamic.Resource(gv.WithResource(resource)).Namespace("harbour").Create(h.t.Context(), u, metav1.CreateOptions{})
	h.must(err)
}

// decided returns the placement decisions in the namespace: for each object, its
// clusters.
func (h *fleetFixture) decided() map[string]string {
	h.t.Helper()
	list, err := h.dynamic.Resource(v1alpha1.ResourceBindingResource).Namespace("harbour").List(context.WithoutCancel(h.t.Context()), metav1.ListOptions{})
	h.must(err)
	out := map[string]string{}
	for _, item := range list.Items {
		b := &v1alpha1.ResourceBinding{}
		h.must(runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, b))
		for _, c := range b.Spec.Clusters {
			what := "whole"
			if c.Replicas != nil {
				what = fmt.Sprint(*c.Replicas)
			}
			out[b.Spec.Resource.Kind+" "+b.Spec.Resource.Name+" "+c.Name] = what
		}
	}
	return out
}

// comesTrue previews a change, makes it, and requires exactly the predicted decisions.
func (h *fleetFixture) comesTrue(what string, preview []string, do func()) {
	h.t.Helper()
	var said struct {
		Moves []scheduler.Move `json:"moves"`
	}
	h.must(json.Unmarshal([]byte(h.atoll(append(preview, "-o", "json")...)), &said))
	want := h.decided()
	for _, m := range said.Moves {
		if m.Namespace != "harbour" {
			h.t.Errorf("%s: unexpected move of %s %s/%s", what, m.Kind, m.Namespace, m.Name)
		}
		place := m.Kind + " " + m.Name + " " + m.Cluster
		if before, ok := want[place]; ok && before != m.Before || !ok && m.Before != scheduler.NoShare {
			h.t.Errorf("%s: %s: previewed state before %s, actual %q", what, place, m.Before, before)
		}
		if m.Reason == "" || m.Why == "" {
			h.t.Errorf("%s: %s would change without a reason: %+v", what, place, m)
		}
		want[place] = m.After
		if m.After == scheduler.NoShare {
			delete(want, place)
		}
	}
	if len(said.Moves) == 0 {
		h.t.Fatalf("%s would move nothing", what)
	}
	do()
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("%s: said\n%v\nbecame\n%v", what, want, h.decided())
		}
	})
	eventually(h.t, what+" has the previewed effect", func() bool { return maps.Equal(h.decided(), want) })
}

func (h *fleetFixture) file(name, manifest string) string {
	h.t.Helper()
	path := filepath.Join(h.t.TempDir(), name)
	h.must(os.WriteFile(path, []byte(manifest), 0o600))
	return path
}

func deploymentOf(name, labels, more string) string {
	return `
apiVersion: apps/v1
kind: Deployment
metadata: {name: ` + name + `, namespace: harbour, labels: {` + labels + `}}
spec:
  replicas: 5
  selector: {matchLabels: {app: ` + name + `}}
  template:
    metadata: {labels: {app: ` + name + `}}
    spec: {containers: [{name: c, image: i` + more + `}]}
`
}

const fixturePolicy = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: harbour}
spec:
  selector: {names: [web]}
  clusters: {names: [south, center]}
  mode: Duplicated
`

// explainAtAServer compares the commands' predictions with what the scheduler then
// does.
func explainAtAServer(t *testing.T, config *rest.Config, kubeconfig string) {
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	h := &fleetFixture{t, kubeconfig, dyn, kube}
	for _, name := range []string{"harbour", v1alpha1.SystemNamespace} {
		_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			h.must(err)
		}
	}
	h.join("north")
	h.join("south")
	web := deploymentOf("web", "", ", envFrom: [{configMapRef: {name: conf}}]")
	h.comesTrue("the app", []string{"preview", "-f", h.file("web.yaml", web)}, func() { h.create("deployments", web) })
	h.create("configmaps", "{apiVersion: v1, kind: ConfigMap, metadata: {name: conf, namespace: harbour}}")
	eventually(t, "its dependencies follow", func() bool { return len(h.decided()) == 4 })
	h.explains()
	h.explainsToTeams()
	h.mistakes()

	h.comesTrue("a third cluster", []string{"preview", "join", "center"}, func() { h.join("center") })
	h.comesTrue("a policy", []string{"preview", "policy", "-f", h.file("policy.yaml", fixturePolicy)}, func() { h.create("placements", fixturePolicy) })
	pinned := deploymentOf("pinned", "fleet.atoll.dev/cluster: south", "")
	h.comesTrue("a pinned app", []string{"preview", "-f", h.file("pinned.yaml", pinned)}, func() { h.create("deployments", pinned) })
	free := deploymentOf("free", "", "")
	h.comesTrue("a free app", []string{"preview", "-f", h.file("free.yaml", free)}, func() { h.create("deployments", free) })

	if out := h.atoll("preview", "drain", "south"); !strings.HasPrefix(out, "OBJECT") || !regexp.MustCompile(`\nDeployment harbour/free +south +\d +- +`).MatchString(out) {
		t.Errorf("as a table:\n%s", out)
	}
	if code, out, _ := run(t, "atoll", "preview", "drain", "south", "--detailed-exitcode", "-o", "yaml", "--atoll-kubeconfig", kubeconfig); code != 2 || !strings.HasPrefix(out, "moves:\n- after:") {
		t.Errorf("as YAML: exit code %d\n%s", code, out)
	}
	h.comesTrue("a drain", []string{"preview", "drain", "south"}, func() {
		_, err := dyn.Resource(v1alpha1.ClusterResource).Patch(t.Context(), "south", types.MergePatchType, []byte(`{"spec":{"drain":{}}}`), metav1.PatchOptions{})
		h.must(err)
	})
	if out := h.atoll("preview", "drain", "south", "--detailed-exitcode"); !strings.HasPrefix(out, "Nothing would move.\n\nNo other cluster takes these objects:\n") || !strings.Contains(out, "\nDeployment harbour/pinned   ") {
		t.Errorf("drained cluster:\n%s", out)
	}
	h.taintsByPolicy("center")
	h.volumePolicies()
	h.schedules()
}

// explains checks the explanation of an app and of its dependencies.
func (h *fleetFixture) explains() {
	h.t.Helper()
	var e struct {
		Kind, Reason string
		Scheduled    bool
		Pending      bool
		Policy       v1alpha1.PolicyReference
		RequiredBy   []v1alpha1.Requirer
		Clusters     []struct {
			Cluster  string
			Chosen   bool
			Replicas *int32
			Reason   string
			Message  string
		}
	}
	h.must(json.Unmarshal([]byte(h.atoll("explain", "deploy/web", "-n", "harbour", "-o", "json")), &e))
	var chosen []string
	for _, c := range e.Clusters {
		if c.Chosen {
			chosen = append(chosen, c.Cluster)
		}
		if c.Chosen && c.Replicas == nil || c.Reason == "" || c.Message == "" {
			h.t.Errorf("cluster %s: %+v", c.Cluster, c)
		}
	}
	slices.Sort(chosen)
	if e.Kind != "Deployment" || !e.Scheduled || e.Pending || e.Policy.Kind != v1alpha1.PolicyDefault || !slices.Equal(chosen, []string{"north", "south"}) {
		h.t.Errorf("explanation: %+v", e)
	}
	for _, line := range []struct{ what, format, want string }{
		{"deployment/web", "table", "Deployment harbour/web: scheduled ("},
		{"deployments.apps/web", "table", "\nCLUSTER   CHOSEN   REPLICAS   REASON"},
		{"Deployment/web", "yaml", "kind: Deployment\n"},
		{"configmap/conf", "table", "Needed by: Deployment web\n"},
		{"cluster/north", "table", "Cluster north: scheduled (StaysHome): types of fleet.atoll.dev"},
	} {
		if out := h.atoll("explain", line.what, "-n", "harbour", "-o", line.format); !strings.Contains(out, line.want) {
			h.t.Errorf("explain %s -o %s:\n%s\nwant %q", line.what, line.format, out, line.want)
		}
	}
}

// explainsToTeams checks that users with rights in one namespace only get the recorded decision.
func (h *fleetFixture) explainsToTeams() {
	h.t.Helper()
	args := []string{"atoll", "explain", "deploy/web", "-n", "harbour", "--as", "ann", "--kubeconfig", h.kubeconfig}
	grant := func(name, group, resource string) {
		h.t.Helper()
		roles := h.kube.RbacV1()
		_, err := roles.Roles("harbour").Create(h.t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{group}, Resources: []string{resource}}}}, metav1.CreateOptions{})
		h.must(err)
		_, err = roles.RoleBindings("harbour").Create(h.t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef: rbacv1.RoleRef{Kind: "Role", Name: name}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "ann"}}}, metav1.CreateOptions{})
		h.must(err)
	}
	grant("deployments", "apps", "deployments")
	eventually(h.t, "a user without the right to read the decision gets both errors", func() bool {
		code, _, stderr := run(h.t, args...)
		return code == 1 && strings.Contains(stderr, "the recorded decision cannot be read either") && strings.Contains(stderr, `cannot get resource "resourcebindings"`)
	})
	grant("decisions", v1alpha1.Group, "resourcebindings")
	eventually(h.t, "a user of the namespace gets the recorded decision", func() bool {
		code, stdout, stderr := run(h.t, args...)
		return code == 0 && strings.Contains(stderr, "warning: this is the decision as it is recorded") && strings.Contains(stdout, "north") && strings.Contains(stdout, "south")
	})
}

// mistakes checks that errors name the next step.
func (h *fleetFixture) mistakes() {
	h.t.Helper()
	nowhere := h.file("nowhere.yaml", strings.ReplaceAll(deploymentOf("web", "", ""), "namespace: harbour", "namespace: nowhere"))
	unknown := h.file("unknown.yaml", "{apiVersion: example.org/v1, kind: Boat, metadata: {name: boat}}")
	for line, want := range map[string]string{
		"explain deploy/none -n harbour":        "Deployment \"none\" not found in namespace harbour: use another namespace with -n, or another Atoll with --kubeconfig. To preview an object that is not applied yet, run `atoll preview -f FILE`",
		"explain deploy/wep -n harbour":         "(did you mean web?)",
		"explain deploy/web":                    "Deployment \"web\" not found in namespace default, but it exists in harbour: set the namespace with -n",
		"explain clusterrole/none":              "ClusterRole \"none\" not found: use another Atoll",
		"explain boat/web":                      "Atoll does not serve kind \"boat\"",
		"explain web":                           "use a form such as deployment/web",
		"preview drain nroth":                   "(did you mean north?)",
		"preview join north":                    "has already joined",
		"preview join center --cpu lots":        "--cpu lots",
		"preview -f " + nowhere:                 "add the Namespace to the file",
		"preview -f " + unknown:                 "apply the kind's CustomResourceDefinition",
		"preview drain north --atoll-context x": `"x"`,
	} {
		code, stdout, stderr := run(h.t, append(append([]string{"atoll"}, strings.Fields(line)...), "--atoll-kubeconfig", h.kubeconfig)...)
		if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "error: ") || !strings.Contains(stderr, want) {
			h.t.Errorf("atoll %s: exit code %d, want 1 and %q\n%s%s", line, code, want, stdout, stderr)
		}
	}
}
