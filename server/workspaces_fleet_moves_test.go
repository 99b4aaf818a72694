package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// TestWorkspaceFleetMoves: a workspace that moves keeps its clusters, and its fleet continues at the new path. A copy has the Clusters too, and
// neither writes to them nor removes anything when they leave it.
func TestWorkspaceFleetMoves(t *testing.T) {
	s := startFleets(t, server.Config{DataDir: t.TempDir(), WorkspaceMemberNetworks: loopbackMembers()})
	t.Cleanup(func() { _ = s.stop() })
	s.createWorkspace(t, "from")
	top := s.createWorkspace(t, "top")
	member := measured(t)
	from := s.in("from")
	from.joinMember(t, "east", member.Member())
	from.mustKubectl(t, "", "create", "deployment", "before", "--image=web")
	from.awaitPlaced(t, member, "default", "before")
	claim := func() string {
		t.Helper()
		lease := member.Get(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "kube-system", v1alpha1.ClaimLease)
		if lease == nil {
			return ""
		}
		holder, _ := lease.Object["spec"].(map[string]any)["holderIdentity"].(string)
		return holder
	}
	holder := claim()
	if holder == "" {
		t.Error("the cluster is not claimed")
	}

	if _, err := clientsOf(t, s.config(t)).Resource(tenancy.WorkspaceResource).Create(t.Context(),
		object("Workspace", "copy", map[string]any{"source": map[string]any{"name": "from"}}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, s.config(t), "copy", tenancy.WorkspaceReady, "Served", "")
	copied := s.in("copy")
	copied.awaitReason(t, "east", v1alpha1.ReasonOtherControlPlane)
	copied.mustKubectl(t, "", "delete", "deployment", "before")
	copied.mustKubectl(t, "", "annotate", "cluster", "east", v1alpha1.LeaveAnnotation+"="+v1alpha1.LeaveOrphan) // as atoll leave --cascade=orphan
	copied.mustKubectl(t, "", "delete", "cluster", "east", "--timeout=60s")
	if member.Get(deployments, "default", "before") == nil || claim() != holder {
		t.Error("the copy has changed the cluster of its source")
	}

	mustMove(t, top, "from", "to")
	s.gone(t, "from")
	to := s.in("top:to")
	to.mustKubectl(t, "", "create", "deployment", "after", "--image=web")
	to.awaitPlaced(t, member, "default", "after")
	if member.Get(deployments, "default", "before") == nil {
		t.Error("the move has removed an object from the cluster")
	}
	if now := claim(); now != holder {
		t.Errorf("after the move, the cluster belongs to %s, not to %s", now, holder)
	}
	to.mustKubectl(t, "", "delete", "cluster", "east", "--timeout=60s")
	s.awaitNoFleet(t, "top")
	s.awaitNoFleet(t, "copy")
}

// TestWorkspaceFleetRights: the roles of Kubernetes include the fleet's kinds, a ScaleSchedule has its author's rights in the workspace, whatever the
// request says about the author. No definition replaces the fleet's kinds.
func TestWorkspaceFleetRights(t *testing.T) {
	s := startFleets(t, server.Config{DataDir: t.TempDir(), WorkspaceMemberNetworks: loopbackMembers()})
	t.Cleanup(func() { _ = s.stop() })
	s.createWorkspace(t, "rights")
	a := s.in("rights")
	for user, role := range map[string]string{"reader": "view", "writer": "edit"} {
		a.mustKubectl(t, "", "create", "rolebinding", user, "--clusterrole="+role, "--user="+user, "-n", "default")
	}
	for _, tt := range []struct {
		user, verb, resource string
		want                 string
	}{
		{"reader", "get", "resourcebindings.fleet.atoll.dev", "yes"}, {"reader", "create", "placements.fleet.atoll.dev", "no"},
		{"writer", "create", "placements.fleet.atoll.dev", "yes"}, {"writer", "create", "serviceexports.multicluster.x-k8s.io", "yes"},
		{"writer", "update", "resourcebindings.fleet.atoll.dev", "no"}, {"writer", "create", "clusters.fleet.atoll.dev", "no"},
	} {
		if out, _ := a.kubectl(t, "", "auth", "can-i", tt.verb, tt.resource, "--as="+tt.user, "-n", "default"); !strings.Contains(out, tt.want) {
			t.Errorf("%s may %s %s: %s", tt.user, tt.verb, tt.resource, out)
		}
	}
	for _, group := range []string{v1alpha1.Group, "multicluster.x-k8s.io"} {
		out, err := a.kubectl(t, definition("Cluster", "clusters", group), "create", "-f", "-")
		if err == nil || !strings.Contains(out, "gets the group "+group+" from the server: use another group") {
			t.Errorf("a definition in the group %s: %v %s", group, err, out)
		}
	}
	if out := a.mustKubectl(t, "", "explain", "cluster.spec.kubeconfigSecretRef"); !strings.Contains(out, "kubeconfig") {
		t.Error(out)
	}

	a.joinMember(t, "east", measured(t).Member())
	a.awaitReason(t, "east", v1alpha1.ReasonClusterReady)
	a.mustKubectl(t, "", "create", "deployment", "web", "--image=web")
	a.mustKubectl(t, "", "create", "role", "schedules", "--verb=*", "--resource=scaleschedules.fleet.atoll.dev")
	a.mustKubectl(t, "", "create", "rolebinding", "schedules", "--role=schedules", "--user=reader", "--user=writer")
	passed := time.Now().UTC().Add(-time.Minute)
	for user, want := range map[string][2]string{"reader": {"Forbidden", "Failed"}, "writer": {"Scheduled", "Succeeded"}} {
		a.mustKubectl(t, fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: ScaleSchedule, metadata: {name: web, namespace: default}, spec: {author: {username: atoll-admin, groups: ["system:masters"]},
			target: {apiVersion: apps/v1, kind: Deployment, name: web}, rules: [{name: r, schedule: "%d %d * * *", replicas: 3}]}}`, passed.Minute(), passed.Hour()), "create", "-f", "-", "--as="+user)
		a.mustKubectl(t, "", "wait", "scaleschedule/web", "--for=jsonpath={.status.conditions[0].reason}="+want[0], "--timeout=60s")
		if got := a.mustKubectl(t, "", "get", "scaleschedule", "web", "-o", "jsonpath={.spec.author.username}"); got != user {
			t.Errorf("the author is %s, not %s", got, user)
		}
		a.mustKubectl(t, "", "patch", "scaleschedule", "web", "--subresource=status", "--type=json",
			"-p", `[{"op":"replace","path":"/status/rules/0/activeSince","value":"`+passed.Add(-10*time.Minute).Format(time.RFC3339)+`"}]`)
		a.mustKubectl(t, "", "wait", "scaleschedule/web", "--for=jsonpath={.status.rules[0].lastResult}="+want[1], "--timeout=60s")
		a.mustKubectl(t, "", "delete", "scaleschedule", "web")
	}

}
