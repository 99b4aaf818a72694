package cli_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var deploymentResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

const (
	healthyIn = `{name: %s, uid: u, health: Healthy, lastUpdateTime: "2026-01-01T00:00:00Z"}`
	movingTo  = `{id: t1, cause: Moved, startTime: "2026-01-01T00:00:00Z", progressTime: "2026-01-01T00:00:00Z"}`
)

// moves is an Atoll with the clusters east and west, and Deployment web in east. The controllers' part is played by
// the bindings that reads find, one after the other.
type moves struct {
	t          *testing.T
	api        *fakeapi.Server
	kubeconfig string
	// atollFlag is the flag for the kubeconfig, if it is another one than kubectl's.
	atollFlag string
}

func newMoves(t *testing.T) *moves {
	kinds := fakeapi.BuiltIns("v1 Namespace", "v1 ConfigMap", "v1 Secret", "apps/v1 Deployment")
	m := &moves{t: t, api: fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), kinds...)...)}
	m.kubeconfig = (&twoAPIs{t: t}).file("atoll", kubeconfigOf(m.api))
	m.put(`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)
	for _, name := range []string{"east", "west", "full"} {
		m.cluster(name, map[string]string{"full": ", limits: {pods: 1}"}[name])
	}
	m.deployment("web", 3)
	m.binding("web", `{clusters: [{name: east, replicas: 3, reason: Chosen}]}`, "")
	return m
}

// put stores an object in YAML.
func (m *moves) put(text string) {
	m.t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		m.t.Fatalf("%v\n%s", err, text)
	}
	m.api.Put(u)
}

// cluster stores a Cluster that is Ready, with more fields of its spec.
func (m *moves) cluster(name, spec string) {
	m.t.Helper()
	m.put(fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: %s}, spec: {mode: Pull%s}, status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: ok, lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`, name, spec))
}

func (m *moves) deployment(name string, replicas int) {
	m.t.Helper()
	m.put(fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s, namespace: shop}, spec: {replicas: %d, selector: {matchLabels: {app: web}},
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: "web:1"}]}}}}`, name, replicas))
}

// binding stores a Deployment's binding with more fields of its spec, and its status.
func (m *moves) binding(name, spec, status string) {
	m.t.Helper()
	b := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: ResourceBinding, metadata: {name: deployment.apps-%s, namespace: shop}, spec: %s, status: {%s}}`, name, spec, status)
	if err := yaml.Unmarshal([]byte(text), &b.Object); err != nil {
		m.t.Fatalf("%v\n%s", err, text)
	}
	resource := map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": ""}
	if u := m.api.Get(deploymentResource, "shop", name); u != nil {
		resource["uid"] = string(u.GetUID())
	}
	if err := unstructured.SetNestedField(b.Object, resource, "spec", "resource"); err != nil {
		m.t.Fatal(err)
	}
	if err := unstructured.SetNestedField(b.Object, []any{}, "spec", "requiredBy"); err != nil {
		m.t.Fatal(err)
	}
	m.api.Put(b)
}

// onceLabelled calls a step at each read of web's binding after its label is set.
func (m *moves) onceLabelled(steps ...func()) {
	m.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb != "get" || r.Resource != v1alpha1.ResourceBindingResource || len(steps) == 0 {
			return nil
		}
		if m.label() == "" {
			return nil
		}
		next := steps[0]
		steps = steps[1:]
		next()
		return nil
	})
}

func (m *moves) label() string {
	return m.api.Get(deploymentResource, "shop", "web").GetLabels()[v1alpha1.ClusterLabel]
}

func (m *moves) atoll(line string) (code int, stdout, stderr string) {
	m.t.Helper()
	return run(m.t, append(append([]string{"atoll"}, strings.Fields(line)...), cmp.Or(m.atollFlag, "--kubeconfig"), m.kubeconfig)...)
}

// check runs a command and compares its exit code; all of the words must be in its output.
func (m *moves) check(line string, code int, words ...string) {
	m.t.Helper()
	got, stdout, stderr := m.atoll(line)
	ok := got == code
	for _, word := range words {
		ok = ok && strings.Contains(stdout+stderr, word)
	}
	if !ok {
		m.t.Errorf("atoll %s: exit code %d\n%s%s\nwant %d and %q", line, got, stdout, stderr, code, words)
	}
}

// TestMove: an object gets its label when the cluster takes it, and the command follows it until it has moved.
func TestMove(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.check("move deployment/web -n shop --to west --dry-run", 0, "Deployment shop/web   east      3        -", "Deployment shop/web   west      -        3", "moves to west (server dry run)")
	m.check("preview move deployment/web -n shop --to west", 0, "Deployment shop/web   west      -        3")
	if m.label() != "" {
		t.Error("a dry run sets the label")
	}
	m.onceLabelled(
		func() {
			m.binding("web", `{clusters: [{name: east, replicas: 3, reason: Chosen}], goal: [{name: west, replicas: 3, reason: Chosen}], transition: `+movingTo+`}`, "")
		},
		func() {
			m.binding("web", `{clusters: [{name: east, replicas: 2, reason: Chosen}, {name: west, replicas: 1, reason: Chosen}], goal: [{name: west, replicas: 3, reason: Chosen}], transition: `+movingTo+`}`,
				`transition: {id: t1, cause: Moved, phase: Growing, waitingFor: 1 replica in west, since: "2026-01-01T00:00:00Z"}`)
		},
		func() {
			m.binding("web", `{clusters: [{name: west, replicas: 3, reason: Chosen}]}`, fmt.Sprintf("clusters: ["+healthyIn+"]", "west"))
		})
	m.check("move deployment web -n shop --to west", 0, "deployments.apps/web moves to west", "Deployment shop/web: Starting: east 3 -> -, west - -> 3",
		"Growing: east 2 -> -, west 1 -> 3, waiting for 1 replica in west", "deployments.apps/web moved")
	if m.label() != "west" {
		t.Errorf("the label is %q", m.label())
	}
	m.check("move deployment/web -n shop --to west", 0, "Nothing has to move.")
	m.check("move deployment/web -n shop --anywhere --wait=false", 0, "runs where its policy says")
	if m.label() != "" {
		t.Errorf("the label is still %q", m.label())
	}
	m.check("move deployment/web -n shop --anywhere", 0, "has no label")
}

// TestMoveRollsBack: an object that returns makes the command fail with the reason and the remedies.
func TestMoveRollsBack(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.onceLabelled(func() {
		m.binding("web", `{clusters: [{name: east, replicas: 3, reason: Chosen}], avoided: [{name: west, reason: TransitionDeadlineExceeded, message: had no room for 2 replicas,
  time: "2026-01-01T00:10:00Z", until: "2026-01-01T00:20:00Z", attempts: 1}]}`, "")
	})
	m.check("move deployment/web -n shop --to west", 1, "Deployment shop/web did not move", "cluster west had no room for 2 replicas (TransitionDeadlineExceeded)",
		"after 2026-01-01T00:20:00Z", "`atoll retry deployments.apps/web -n shop`", "`atoll move deployments.apps/web -n shop --anywhere`")
}

// TestMoveIsAborted: an object that another user makes return is tried again only on request.
func TestMoveIsAborted(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.onceLabelled(func() {
		m.binding("web", `{clusters: [{name: east, replicas: 3, reason: Chosen}], avoided: [{name: west, reason: TransitionAborted, message: is avoided because a user aborted the transition to it,
  time: "2026-01-01T00:10:00Z", attempts: 1}]}`, "")
	})
	m.check("move deployment/web -n shop --to west", 1, "a user aborted the transition to it (TransitionAborted)\nTo try again, run `atoll retry deployments.apps/web -n shop`")
}

// TestMoveStopsWaiting: neither the timeout nor an interrupt ends the move, and the error tells the user.
func TestMoveStopsWaiting(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.check("move deployment/web -n shop --to west --timeout 1ms", 1, "not done after 1ms", "The move goes on", "atoll transitions -n shop")
	if m.label() != "west" {
		t.Error("the timeout ends the move")
	}
	m = newMoves(t)
	ctx, interrupt := context.WithCancel(t.Context())
	m.onceLabelled(interrupt)
	root := cli.New("atoll")
	var out bytes.Buffer
	root.SetArgs([]string{"move", "deployment/web", "-n", "shop", "--to", "west", "--kubeconfig", m.kubeconfig})
	root.SetOut(&out)
	root.SetErr(&out)
	if err := root.ExecuteContext(ctx); err == nil || !strings.HasPrefix(err.Error(), "stopped waiting\n") || !strings.Contains(err.Error(), "The move goes on") {
		t.Errorf("after an interrupt: %v\n%s", err, out.String())
	}
	if m.label() != "west" {
		t.Error("an interrupt ends the move")
	}
}

// TestMoveNeedsADestination: what keeps an object out of a cluster is an error with the remedy, and nothing is changed.
func TestMoveNeedsADestination(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.cluster("cordoned", ", unschedulable: true")
	m.cluster("drained", ", drain: {}")
	m.cluster("tainted", `, taints: [{key: gpu, effect: NoSchedule}]`)
	m.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: away}, spec: {mode: Pull}, status: {conditions: [{type: Ready, status: "False", reason: ClusterUnreachable, message: no answer, lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`)
	for line, words := range map[string][]string{
		"move":                                                  {"no object specified", "ns/NAME"},
		"move deployment/web -n shop":                           {"no destination", "--anywhere"},
		"move deployment/web -n shop --to=":                     {"no destination"},
		"move a/b c/d --to west":                                {"expected one object", "one by one"},
		"move deployment/web --to x --anywhere":                 {"mutually exclusive"},
		"move deployment/webb -n shop --to west":                {`Deployment "webb" not found in namespace shop`, "did you mean web?"},
		"preview move deployment/webb -n shop --to west":        {`Deployment "webb" not found in namespace shop`, "did you mean web?"},
		"preview move namespace/shpo --to west":                 {`Namespace "shpo" not found`},
		"move nothing/web -n shop --to west":                    {"does not serve kind"},
		"move namespace/shpo --to west":                         {"not found"},
		"move deployment/web -n shop --to wset":                 {`cluster "wset" not found`, "did you mean west?"},
		"move deployment/web -n shop --to cordoned":             {"is cordoned", "`atoll uncordon cordoned`"},
		"move deployment/web -n shop --to drained":              {"is drained", "`atoll uncordon drained`"},
		"move deployment/web -n shop --to away":                 {"is not Ready (ClusterUnreachable): no answer"},
		"move deployment/web -n shop --to tainted":              {"Deployment shop/web: cluster tainted: has the taint gpu", "--force", "atoll explain deployments.apps/web -n shop"},
		"move deployment/web -n shop --to full":                 {"Deployment shop/web: cluster full has room for 1 of its replicas"},
		"move configmap/conf -n shop --to west":                 {"ConfigMap", "not found"},
		"move deployment/web -n shop --to west --dry-run=maybe": {"must be none or server"},
	} {
		m.check(line, 1, words...)
	}
	m.put(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf, namespace: shop}}`)
	m.check("move configmap/conf -n shop --to west", 1, "not placed by a decision of its own", "atoll explain configmaps/conf -n shop")
	if writes := m.api.Writes(); slices.ContainsFunc(writes, func(w string) bool { return !strings.HasSuffix(w, "(dry run)") }) {
		t.Errorf("failed commands wrote %v", writes)
	}
	m.check("move deployment/web -n shop --to tainted --force --wait=false", 0, "warning: Deployment shop/web does not move now", "deployments.apps/web is labelled for tainted")
}

// TestMoveOfOnlyAPart: an object that a cluster runs a part of does not count as moved there if it stays elsewhere, too.
func TestMoveOfOnlyAPart(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.cluster("cordoned", ", unschedulable: true")
	m.binding("web", `{clusters: [{name: east, replicas: 2, reason: Chosen}, {name: cordoned, replicas: 1, reason: Chosen}]}`, "")
	m.check("move deployment/web -n shop --to cordoned --force", 0, "warning: Deployment shop/web does not move now: cluster cordoned: unschedulable", "deployments.apps/web is labelled for cordoned")
	m.binding("web", `{clusters: [{name: west, replicas: 3, reason: Chosen}]}`, "")
	m.check("move deployment/web -n shop --to west", 0, "Nothing has to move.\ndeployments.apps/web is labelled for west")
}

// TestMoveNamespace: the namespace's label moves its objects, except those with their own label.
func TestMoveNamespace(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.deployment("api", 2)
	m.binding("api", `{clusters: [{name: east, replicas: 2, reason: Chosen}]}`, "")
	m.deployment("pinned", 1)
	m.binding("pinned", `{clusters: [{name: east, replicas: 1, reason: Chosen}]}`, "")
	m.api.Merge(deploymentResource, "shop", "pinned", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"east"}}}`)
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	first := true
	m.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb != "list" || r.Resource != v1alpha1.ResourceBindingResource || m.api.Get(namespaces, "", "shop").GetLabels()[v1alpha1.ClusterLabel] == "" {
			return nil
		}
		name, replicas := "web", 3
		if !first {
			name, replicas = "api", 2
		}
		first = false
		m.binding(name, fmt.Sprintf(`{clusters: [{name: west, replicas: %d, reason: Chosen}]}`, replicas), fmt.Sprintf("clusters: ["+healthyIn+"]", "west"))
		return nil
	})
	m.check("move namespace/shop --to west", 0, "namespaces/shop moves to west", "1 of 2 objects moved; Deployment shop/api: waiting for the scheduler's decision", "deployments.apps/web moved", "deployments.apps/api moved")
}
