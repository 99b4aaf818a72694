package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const namespaceFleet = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: east, uid: e}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: west, uid: w}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: wide, uid: wide}
spec: {selector: {kinds: [Namespace]}, overrides: [{clusters: {names: [east]}, jsonPatch: [{op: add, path: /metadata/labels/a, value: x}]}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: shop, uid: shop}
spec: {selector: {kinds: [Namespace], names: [shop]}, clusters: {names: [east]}, overrides: [{jsonPatch: [{op: add, path: /metadata/labels/b, value: x}]}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, uid: ns1}
---
apiVersion: v1
kind: Namespace
metadata: {name: other, uid: ns2}
---
apiVersion: v1
kind: Namespace
metadata: {name: default, uid: ns3}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: configmap-conf, namespace: other, uid: b}
spec: {resource: {apiVersion: v1, kind: ConfigMap, name: conf, uid: c, resource: configmaps}, clusters: [{name: east, reason: Required}]}
`

// TestExplainNamespace: the explanation of a Namespace says where it is, and the order of the overrides.
func TestExplainNamespace(t *testing.T) {
	control := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 ConfigMap")...)...)
	for _, doc := range strings.Split(namespaceFleet, "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatal(err)
		}
		control.Put(u)
	}
	client, err := dynamic.NewForConfig(control.Config())
	if err != nil {
		t.Fatal(err)
	}
	s, err := scheduler.Load(t.Context(), client, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"shop": {"Policy: ClusterPlacement shop: it names the object", "Overrides in east: ClusterPlacement wide, then ClusterPlacement shop",
			"east yes - Scheduled", "west no - ClusterNotSelected"},
		"other": {"scheduled (ObjectsOfNamespace)", "no ClusterPlacement places it", "Overrides in east: ClusterPlacement wide CLUSTER",
			"east yes - ObjectsOfNamespace", "west no - NoObjects"},
		"default": {"scheduled (StaysHome): every cluster has its own Namespace default"},
	} {
		ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name, "uid": "ns"}}}
		e, err := explainObject(s, ns.GroupVersionKind(), ns)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := e.print(&out); err != nil {
			t.Fatal(err)
		}
		for _, words := range want {
			if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), words) {
				t.Errorf("%s: %q is missing in\n%s", name, words, out.String())
			}
		}
	}
}
