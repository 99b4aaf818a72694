package cli_test

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func taintPolicy(spec string) string {
	return `{apiVersion: fleet.atoll.dev/v1alpha1, kind: ClusterTaintPolicy, metadata: {name: disks}, spec: {` + spec + `}}`
}

// taintsByPolicy taints a cluster by a condition that a health checker writes, and previews that.
func (h *fleetFixture) taintsByPolicy(cluster string) {
	h.t.Helper()
	const when, taints = `when: [{type: DisksHealthy, status: "False"}]`, `taints: [{key: broken, effect: NoExecute}]`
	for spec, want := range map[string]string{
		when + ", taints: [{key: fleet.atoll.dev/drain, effect: NoExecute}]": "spec.taints[0].key: Invalid value: \"fleet.atoll.dev/drain\": keys that begin with fleet.atoll.dev/ are reserved for Atoll's own taints: use a key",
		`when: [{type: DeletionsHalted, status: "True"}], ` + taints:         "use the effect NoSchedule or PreferNoSchedule in taints",
		"when: [], " + taints:                                         "spec.when",
		`when: [{type: A, status: "Maybe"}], ` + taints:               "spec.when[0].status",
		when + ", " + taints + ", keepFor: soon":                      "spec.keepFor",
		when + ", " + taints + ", keepFor: 9000h":                     "at most 8760h",
		when + ", " + taints + `, clusters: {expression: "cluster."}`: "ClusterTaintPolicy disks is invalid: spec.clusters: expression",
	} {
		code, _, stderr := run(h.t, "atoll", "preview", "policy", "-f", h.file("bad.yaml", taintPolicy(spec)), "--atoll-kubeconfig", h.kubeconfig)
		if code != 1 || !strings.Contains(stderr, want) {
			h.t.Errorf("%s: exit code %d, want %q\n%s", spec, code, want, stderr)
		}
	}
	policy := h.file("disks.yaml", taintPolicy(when+", "+taints))
	notes := func() string {
		h.t.Helper()
		code, _, stderr := run(h.t, "atoll", "preview", "policy", "-f", policy, "--atoll-kubeconfig", h.kubeconfig)
		if code != 0 {
			h.t.Fatalf("exit code %d: %s", code, stderr)
		}
		return stderr
	}
	if got := notes(); got != "ClusterTaintPolicy disks would change no taints now.\n" {
		h.t.Errorf("without the condition: %s", got)
	}
	checked := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": cluster},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "DisksHealthy", "status": "False", "reason": "Failing", "message": "",
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}}}}
	_, err := h.dynamic.Resource(v1alpha1.ClusterResource).ApplyStatus(h.t.Context(), cluster, checked, metav1.ApplyOptions{FieldManager: "health-checker"})
	h.must(err)
	if got, want := notes(), "cluster "+cluster+" gets the taint broken:NoExecute: condition DisksHealthy is False (Failing)\n"; got != want {
		h.t.Errorf("with the condition: %s, want %s", got, want)
	}
	h.comesTrue("a taint policy", []string{"preview", "policy", "-f", policy}, func() {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ClusterTaintPolicy",
			"metadata": map[string]any{"name": "disks"}, "spec": map[string]any{"when": []any{map[string]any{"type": "DisksHealthy", "status": "False"}},
				"taints": []any{map[string]any{"key": "broken", "effect": "NoExecute"}}}}}
		_, err := h.dynamic.Resource(v1alpha1.ClusterTaintPolicyResource).Create(h.t.Context(), u, metav1.CreateOptions{})
		h.must(err)
	})
}
