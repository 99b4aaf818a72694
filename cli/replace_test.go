package cli_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestReplace: labels that name the old cluster name the new one afterwards, then the old one is drained.
func TestReplace(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.api.Delete(v1alpha1.ClusterResource, "", "full")
	m.deployment("pinned", 1)
	m.binding("pinned", `{clusters: [{name: east, replicas: 1, reason: Chosen}]}`, "")
	m.api.Merge(deploymentResource, "shop", "pinned", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"east"}}}`)
	m.put(`{apiVersion: v1, kind: Namespace, metadata: {name: old, labels: {fleet.atoll.dev/cluster: east}}}`)
	m.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Placement, metadata: {name: api, namespace: shop}, spec: {selector: {names: [api]}, clusters: {names: [east]}}}`)
	m.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: ClusterPlacement, metadata: {name: both}, spec: {selector: {names: [other]}, clusters: {names: [east, west]}}}`)
	for line, words := range map[string][]string{
		"replace":                         {"no cluster specified"},
		"replace east":                    {"no replacement", "--by"},
		"replace east --by east":          {"is the cluster itself"},
		"replace east --by west --rate 0": {"--rate 0"},
		"replace estt --by west":          {`cluster "estt" not found`, "did you mean east?"},
		"replace east --by wset":          {`cluster "wset" not found`, "did you mean west?"},
	} {
		m.check(line, 1, words...)
	}
	m.check("replace east --by west --dry-run", 0, "warning: Placement shop/api names cluster east and not west",
		"Deployment shop/pinned   east      1        -", "Deployment shop/pinned   west      -        1", "Deployment shop/web      west      -        3",
		"namespaces/old moves to west (server dry run)", "deployments.apps/pinned -n shop moves to west (server dry run)", "cluster/east is drained (server dry run)")
	if writes := m.api.Writes(); slices.ContainsFunc(writes, func(w string) bool { return !strings.HasSuffix(w, "(dry run)") }) {
		t.Errorf("a dry run wrote %v", writes)
	}
	m.draining("east", "Draining: 2 objects left", "Drained: nothing is left")
	m.check("replace east --by west --rate 100", 0, "cluster/east is drained\n", "cluster/east replaced by west", "`atoll leave east`")
	if got := m.spec("east", "drain"); got != "map[rate:100]" {
		t.Errorf("spec.drain is %s", got)
	}
	pinned := m.api.Get(deploymentResource, "shop", "pinned").GetLabels()[v1alpha1.ClusterLabel]
	namespace := m.api.Get(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "old").GetLabels()[v1alpha1.ClusterLabel]
	if pinned != "west" || namespace != "west" || m.label() != "" {
		t.Errorf("the labels are %q, %q, and %q", pinned, namespace, m.label())
	}
}

// TestReplaceNeedsRoom: nothing begins to move if some objects would stay, unless the user insists.
func TestReplaceNeedsRoom(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Placement, metadata: {name: web, namespace: shop}, spec: {selector: {names: [web]}, clusters: {names: [east]}}}`)
	m.check("replace east --by west", 1, "warning: Placement shop/web names cluster east and not west", "No other cluster takes these objects", "cluster east would keep 1 of its objects", "--force")
	if got := m.spec("east", "drain"); got != "none" {
		t.Errorf("spec.drain is %s", got)
	}
	m.check("replace east --by west --force --wait=false", 0, "cluster/east is drained\n")
}
