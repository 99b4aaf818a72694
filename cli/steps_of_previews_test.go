package cli_test

import (
	"strings"
	"testing"
)

// TestPreviewsShowSteps: previews of a drain, of a cluster that leaves and of a rebalance show the steps. A cluster that
// leaves without a drain has none.
func TestPreviewsShowSteps(t *testing.T) {
	t.Parallel()
	const steps = "Steps, each when the replicas of the one before are available:\n"
	m := newMoves(t)
	m.binding("web", `{clusters: [{name: east, replicas: 3, reason: Chosen}]}`, `clusters: [{name: east, uid: u, generation: 1, replicas: 3, health: Healthy,
  status: {replicas: 3, updatedReplicas: 3, availableReplicas: 3}, lastUpdateTime: "2026-01-01T00:00:00Z"}]`)
	m.check("drain east --dry-run", 0, steps+"  1. ", "cluster/east is drained (server dry run)")
	m.check("preview drain east", 0, steps+"  1. ")
	m.leave("east --dry-run", 0, steps+"  1. ", "cluster/east leaves after a drain (server dry run)")
	m.check("preview rebalance deployment/web -n shop", 0, "Deployment shop/web   east      3        1", steps+"  1. ", "  4. east 1, full 1, west 1")
	m.atollFlag = "--atoll-kubeconfig"
	if _, out, _ := m.atoll("leave east --keep-workloads --dry-run"); strings.Contains(out, steps) {
		t.Errorf("it shows steps, although it leaves without a drain:\n%s", out)
	}
	m.atollFlag = ""
	m.check("rebalance deployment/web -n shop", 0, steps+"  1. ", "deployments.apps/web rebalanced")
}
