package cli_test

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// leave runs `atoll leave`, whose flags for Atoll have a prefix.
func (m *moves) leave(line string, code int, words ...string) {
	m.t.Helper()
	m.atollFlag = "--atoll-kubeconfig"
	defer func() { m.atollFlag = "" }()
	m.check("leave "+line, code, words...)
}

// left reports whether a Cluster was deleted.
func (m *moves) left(cluster string) bool {
	return m.api.Get(v1alpha1.ClusterResource, "", cluster) == nil
}

// TestLeaveDrainsFirst: a cluster leaves after it was drained.
func TestLeaveDrainsFirst(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.leave("estt", 1, `cluster "estt" not found`, "did you mean east?")
	m.leave("east --dry-run", 0, "Deployment shop/web   east      3        -       the cluster is drained", "cluster/east leaves after a drain (server dry run)")
	m.leave("east --keep-workloads --dry-run", 0, "cluster/east leaves without a drain, because its workloads keep running there (server dry run)")
	m.leave("east --keep-workloads --cascade=delete", 1, "mutually exclusive")
	m.leave("east --cascade=none", 1, `--cascade "none"`, "delete or orphan")
	if m.left("east") || m.spec("east", "drain") != "none" {
		t.Error("a dry run or a wrong flag changes the cluster")
	}
	m.draining("east", "Draining: 1 object left", "Drained: nothing is left")
	m.leave("east", 0, "cluster east: 1 object left", "east is leaving", "cluster/east left")
	if !m.left("east") {
		t.Error("the Cluster was not deleted")
	}
}

// TestLeaveIsBlocked: a cluster stays in the fleet while objects in it fit nowhere else, unless the user insists.
func TestLeaveIsBlocked(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.draining("east", "Blocked: Deployment shop/web fits nowhere")
	m.leave("east", 1, "cluster east stays in the fleet", "Deployment shop/web fits nowhere", "--force", "--keep-workloads", "`atoll uncordon east`")
	if m.left("east") {
		t.Fatal("the Cluster was deleted")
	}
	m.leave("east --force", 0, "cluster/east left")
	if !m.left("east") {
		t.Error("the Cluster was not deleted")
	}
}

// TestLeaveWithoutADrain: clusters that cannot be used leave as they are, and so do those that keep their workloads.
func TestLeaveWithoutADrain(t *testing.T) {
	t.Parallel()
	for line, condition := range map[string]string{
		"east --keep-workloads": `{type: Ready, status: "True", reason: ClusterReady, lastTransitionTime: "2026-01-01T00:00:00Z"}`,
		"east --cascade=orphan": `{type: Ready, status: "False", reason: ClusterUnreachable, lastTransitionTime: "2026-01-01T00:00:00Z"}`,
		"east --yes":            `{type: Ready, status: "False", reason: OtherControlPlane, lastTransitionTime: "2026-01-01T00:00:00Z"}`,
	} {
		m := newMoves(t)
		m.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: east}, spec: {mode: Pull}, status: {conditions: [` + condition + `]}}`)
		drained := false
		m.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
			spec, _ := r.Object["spec"].(map[string]any)
			drained = drained || spec["drain"] != nil
			return nil
		})
		m.leave(line, 0, "cluster/east leaves without a drain, because it", "cluster/east left")
		if !m.left("east") || drained {
			t.Errorf("leave %s: deleted: %t, drained: %t", line, m.left("east"), drained)
		}
	}
}

// TestLeaveAsksFirst: other clusters get the shares of a cluster that cannot be used at once, so that the command shows
// what moves and asks. Here no one can answer.
func TestLeaveAsksFirst(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: east}, spec: {mode: Pull}, status: {conditions: [
  {type: Ready, status: "False", reason: ClusterUnreachable, lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`)
	moves := "Deployment shop/web   east      3        -       the cluster is leaving the fleet"
	m.leave("east --dry-run", 0, moves, "cluster/east leaves without a drain, because it cannot be used (ClusterUnreachable) (server dry run)")
	m.leave("east", 1, moves, "Deployment shop/web   west      -        2", "cluster/east leaves without a drain, because it cannot be used (ClusterUnreachable)",
		"--keep-workloads", "leave east: standard input is not a terminal or has ended: use --yes")
	if m.left("east") {
		t.Fatal("the Cluster was deleted without a confirmation")
	}
	m.leave("east --yes", 0, "Other clusters get its shares at once", "cluster/east left")
	if !m.left("east") {
		t.Error("the Cluster was not deleted")
	}
}

// TestLeaveChecksFirst: a Cluster that cannot be deleted is not drained.
func TestLeaveChecksFirst(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "delete" {
			return &metav1.Status{Status: metav1.StatusFailure, Code: 403, Reason: metav1.StatusReasonForbidden, Message: "the object is protected from deletion"}
		}
		return nil
	})
	m.leave("east", 1, "protected from deletion")
	m.api.Merge(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web", `{"spec":{"suspend":true}}`)
	m.leave("east", 1, "a policy suspends Deployment shop/web", "--cascade=orphan")
	if writes := m.api.Writes(); slices.ContainsFunc(writes, func(w string) bool { return strings.Contains(w, "clusters") }) {
		t.Errorf("it wrote %v", writes)
	}
}
