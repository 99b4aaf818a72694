package cli_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// inTransition is the spec of a binding in transition from east to west.
const inTransition = `{clusters: [{name: east, replicas: 2, reason: Chosen}, {name: west, replicas: 1, reason: Chosen}], goal: [{name: west, replicas: 3, reason: Chosen}],
  transition: {id: t1, cause: Moved, from: [{name: east, replicas: 3, reason: Chosen}], startTime: "2026-01-01T00:00:00Z", progressTime: "2026-01-01T00:00:00Z"}}`

const waitsInWest = `transition: {id: t1, cause: Moved, phase: Waiting, waitingFor: 1 replica in west, since: "2026-01-01T00:00:00Z"}`

// TestTransitions: the list has the objects in transition, and only those.
func TestTransitions(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	m.check("transitions -n shop", 0, "No objects are in transition in namespace shop.")
	m.deployment("api", 1)
	m.binding("api", `{clusters: [{name: east, reason: Chosen}]}`, "")
	m.binding("web", inTransition, waitsInWest)
	m.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: ClusterResourceBinding, metadata: {name: clusterrole.rbac.authorization.k8s.io-reader}, spec: {requiredBy: [],
  resource: {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, name: reader, uid: u}, clusters: [{name: east, reason: Chosen}], goal: [{name: west, reason: Chosen}],
  transition: {id: t2, cause: Drained, from: [{name: east, reason: Chosen}], startTime: "2026-01-01T00:00:00Z", progressTime: "2026-01-01T00:00:00Z"}}}`)
	for line, want := range map[string][]string{
		"transitions -n shop":          {"OBJECT           CAUSE   FROM     TO       PHASE     WAITING FOR         SINCE", "Deployment web   Moved   east 3   west 3   Waiting   1 replica in west   "},
		"transitions -A":               {"NAMESPACE   OBJECT               CAUSE     FROM     TO       PHASE", "-           ClusterRole reader   Drained   east     west     -", "shop        Deployment web       Moved     east 3   west 3   Waiting"},
		"transitions -A -o name":       {"clusterrole.rbac.authorization.k8s.io/reader\ndeployment.apps/web\n"},
		"transitions -n shop -o yaml":  {"transitions:\n- apiVersion: apps/v1\n", "  - cluster: west\n    goal: \"3\"\n    now: \"1\"\n", "waitingFor: 1 replica in west"},
		"transitions -n other -o json": {"{\n  \"transitions\": []\n}\n"},
	} {
		code, stdout, stderr := m.atoll(line)
		for _, part := range want {
			if code != 0 || !strings.Contains(stdout, part) {
				t.Errorf("atoll %s: exit code %d\n%s%s\nwant\n%s", line, code, stdout, stderr, part)
			}
		}
		if strings.Contains(stdout, "api\n") || strings.Contains(stdout, "Deployment api") {
			t.Errorf("atoll %s lists an object that is not in transition\n%s", line, stdout)
		}
	}
	m.check("transitions -A -n shop", 1, "exclude each other")
	m.check("transitions -o wide", 1, "-o must be one of")
}

// TestTransitionRequests: pause, resume, abort and retry change the annotation, report the outcome, and keep
// concurrent writes of other clients.
func TestTransitionRequests(t *testing.T) {
	t.Parallel()
	m := newMoves(t)
	annotation := func(want string) {
		t.Helper()
		if got := m.api.Get(deploymentResource, "shop", "web").GetAnnotations()[v1alpha1.TransitionAnnotation]; got != want {
			t.Errorf("the annotation is %q, want %q", got, want)
		}
	}
	m.check("pause", 1, "no objects specified", "atoll transitions -A")
	m.check("pause deployment/wbe -n shop", 1, `Deployment "wbe" not found`)
	m.check("abort deployment/web -n shop", 1, "Deployment shop/web is not in transition", "atoll move")
	m.check("retry deployment/web -n shop", 0, "deployments.apps/web avoids no clusters")
	m.check("resume deployment/web -n shop", 0, "deployments.apps/web not paused")
	annotation("")
	m.check("pause deployment/web -n shop --dry-run", 0, "deployments.apps/web paused (server dry run)")
	annotation("")

	// Another client writes between the command's read and its write.
	raced := false
	m.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "patch" && r.Resource == deploymentResource && !raced {
			raced = true
			m.api.Merge(deploymentResource, "shop", "web", `{"metadata":{"annotations":{"fleet.atoll.dev/transition":"{\"soak\":\"1m\"}"}}}`)
		}
		return nil
	})
	m.check("pause deployment/web -n shop", 0, "deployments.apps/web paused")
	annotation(`{"paused":true,"soak":"1m"}`)
	m.check("pause deployment/web -n shop", 0, "deployments.apps/web already paused")
	m.check("resume deployment/web -n shop", 0, "deployments.apps/web resumed")
	annotation(`{"soak":"1m"}`)

	// The policy pauses it.
	m.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Placement, metadata: {name: web, namespace: shop}, spec: {transition: {paused: true}}}`)
	m.binding("web", strings.Replace(inTransition, "{clusters", "{policy: {kind: Placement, name: web, why: selected}, avoided: [{name: full, reason: TransitionAborted, message: x, "+
		`time: "2026-01-01T00:00:00Z", until: "2026-01-01T00:00:00Z", attempts: 1}], clusters`, 1), waitsInWest)
	m.check("resume deployment/web -n shop", 0, "deployments.apps/web resumed")
	annotation(`{"paused":false,"soak":"1m"}`)

	m.check("abort deployment/web -n shop", 0, "deployments.apps/web aborted")
	annotation(`{"abort":"t1","paused":false,"soak":"1m"}`)
	m.check("retry deployment/web -n shop", 0, "deployments.apps/web retries full")

	m.binding("web", strings.Replace(inTransition, "cause: Moved", "cause: RolledBack", 1), "")
	m.check("abort deployment/web -n shop", 1, "already goes back")
	m.api.Merge(deploymentResource, "shop", "web", `{"metadata":{"annotations":{"fleet.atoll.dev/transition":"paused"}}}`)
	m.check("pause deployment/web -n shop", 1, "fleet.atoll.dev/transition of Deployment shop/web is invalid: it is not a JSON object", "`kubectl annotate deployments.apps web -n shop fleet.atoll.dev/transition-`")
	annotation("paused")
}
