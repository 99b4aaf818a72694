package interpret

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// report is the report of a healthy cluster with n replicas.
func report(t *testing.T, cluster string, generation int64, n int32, change ...string) MemberStatus {
	t.Helper()
	status := fmt.Sprintf(`
observedGeneration: 1
replicas: %[1]d
updatedReplicas: %[1]d
readyReplicas: %[1]d
availableReplicas: %[1]d
conditions:
- {type: Available, status: "True", reason: MinimumReplicasAvailable, message: ok, lastUpdateTime: "2026-01-01T00:00:00Z", lastTransitionTime: "2026-01-01T00:00:00Z"}
- {type: Progressing, status: "True", reason: NewReplicaSetAvailable, message: ok, lastUpdateTime: "2026-01-01T00:00:0%[1]dZ", lastTransitionTime: "2026-01-01T00:00:00Z"}
`, n)
	for i := 0; i+1 < len(change); i += 2 {
		if !strings.Contains(status, change[i]) {
			t.Fatalf("nothing to change: %q", change[i])
		}
		status = strings.Replace(status, change[i], change[i+1], 1)
	}
	return MemberStatus{Cluster: cluster, Replicas: &n, Generation: generation, Current: true, Status: parse(t, status).Object}
}

func deployment(t *testing.T, generation, replicas, observed int) *unstructured.Unstructured {
	t.Helper()
	return parse(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, generation: %d}
spec: {replicas: %d}
status: {observedGeneration: %d}
`, generation, replicas, observed))
}

func aggregated[T any](t *testing.T, group, kind string, obj *unstructured.Unstructured, members ...MemberStatus) T {
	t.Helper()
	status, ok, err := mustFind(t, group, kind).Aggregate(obj, members)
	if err != nil || !ok {
		t.Fatalf("%v %v", ok, err)
	}
	var out T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDeploymentsAddUp(t *testing.T) {
	s := aggregated[appsv1.DeploymentStatus](t, "apps", "Deployment", deployment(t, 2, 7, 1), report(t, "east", 2, 4), report(t, "west", 2, 3))
	if s.Replicas != 7 || s.ReadyReplicas != 7 || s.UpdatedReplicas != 7 || s.AvailableReplicas != 7 || s.UnavailableReplicas != 0 {
		t.Errorf("counts: %+v", s)
	}
	if s.ObservedGeneration != 2 {
		t.Errorf("observed generation %d, want 2", s.ObservedGeneration)
	}
	p := deploymentCondition(s, appsv1.DeploymentProgressing)
	if p == nil || p.Reason != "NewReplicaSetAvailable" || p.LastUpdateTime.Second() != 4 {
		t.Errorf("Progressing: %+v, want done, as of the latest report", p)
	}
	if a := deploymentCondition(s, appsv1.DeploymentAvailable); a == nil || a.Status != "True" {
		t.Errorf("Available: %+v", a)
	}
}

// TestObservedGeneration: a client that waits must not be released too early.
func TestObservedGeneration(t *testing.T) {
	behind := report(t, "west", 2, 3)
	behind.Current = false
	silent := MemberStatus{Cluster: "west", Replicas: behind.Replicas}
	tests := []struct {
		name    string
		obj     *unstructured.Unstructured
		members []MemberStatus
		want    int64
	}{
		{"all report the latest", deployment(t, 5, 7, 4), []MemberStatus{report(t, "east", 5, 4), report(t, "west", 5, 3)}, 5},
		{"one runs an older template", deployment(t, 5, 7, 4), []MemberStatus{report(t, "east", 5, 4), report(t, "west", 4, 3)}, 4},
		{"one has not acted", deployment(t, 5, 7, 4), []MemberStatus{report(t, "east", 5, 4), behind}, 4},
		{"one does not report yet", deployment(t, 5, 7, 4), []MemberStatus{report(t, "east", 5, 4), silent}, 4},
		{"the replicas are not divided again yet", deployment(t, 5, 8, 4), []MemberStatus{report(t, "east", 5, 4), report(t, "west", 5, 3)}, 4},
		{"it never goes back", deployment(t, 5, 7, 4), []MemberStatus{report(t, "east", 5, 4), report(t, "west", 3, 3)}, 4},
	}
	for _, tt := range tests {
		s := aggregated[appsv1.DeploymentStatus](t, "apps", "Deployment", tt.obj, tt.members...)
		if s.ObservedGeneration != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, s.ObservedGeneration, tt.want)
		}
	}
}

func TestDeploymentConditions(t *testing.T) {
	condition := func(s appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) string {
		c := deploymentCondition(s, kind)
		if c == nil {
			return "none"
		}
		return string(c.Status) + " " + c.Reason
	}
	busy := report(t, "west", 2, 3, "reason: NewReplicaSetAvailable", "reason: ReplicaSetUpdated")
	stuck := report(t, "west", 2, 3, `{type: Progressing, status: "True", reason: NewReplicaSetAvailable`, `{type: Progressing, status: "False", reason: ProgressDeadlineExceeded`)
	down := report(t, "west", 2, 3, `{type: Available, status: "True"`, `{type: Available, status: "False"`)
	stale := report(t, "west", 2, 3)
	stale.Stale = "not answering"
	full := report(t, "west", 2, 3, "{type: Available", `{type: ReplicaFailure, status: "True", reason: FailedCreate, message: quota}
- {type: Available`)
	none := report(t, "west", 2, 0, `{type: Available, status: "True"`, `{type: Available, status: "False"`)
	tests := []struct {
		name                            string
		other                           MemberStatus
		available, progressing, failure string
	}{
		{"all well", report(t, "west", 2, 3), "True MinimumReplicasAvailable", "True NewReplicaSetAvailable", "none"},
		{"one rolls out", busy, "True MinimumReplicasAvailable", "True ReplicaSetUpdated", "none"},
		{"one gave up", stuck, "True MinimumReplicasAvailable", "False ProgressDeadlineExceeded", "none"},
		{"one is down", down, "False MinimumReplicasUnavailable", "True NewReplicaSetAvailable", "none"},
		{"one does not answer", stale, "False MinimumReplicasUnavailable", "True NewReplicaSetAvailable", "none"},
		{"one is full", full, "True MinimumReplicasAvailable", "True NewReplicaSetAvailable", "True FailedCreate"},
		{"one has nothing to run", none, "True MinimumReplicasAvailable", "True NewReplicaSetAvailable", "none"},
	}
	for _, tt := range tests {
		s := aggregated[appsv1.DeploymentStatus](t, "apps", "Deployment", deployment(t, 2, 7, 1), report(t, "east", 2, 4), tt.other)
		got := []string{condition(s, appsv1.DeploymentAvailable), condition(s, appsv1.DeploymentProgressing), condition(s, appsv1.DeploymentReplicaFailure)}
		want := []string{tt.available, tt.progressing, tt.failure}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
		if tt.other.Stale != "" && (s.ReadyReplicas != 4 || s.AvailableReplicas != 4 || s.Replicas != 7 || s.UnavailableReplicas != 3) {
			t.Errorf("%s: unknown replicas count as ready: %+v", tt.name, s)
		}
	}
}

func TestSlowestClusterCounts(t *testing.T) {
	obj := parse(t, "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {generation: 1}\nspec: {replicas: 3}")
	member := func(ready int) MemberStatus {
		return MemberStatus{Cluster: "c", Generation: 1, Current: true, Status: parse(t, fmt.Sprintf(
			"{replicas: 3, readyReplicas: %d, updatedReplicas: 3, currentRevision: a, updateRevision: a}", ready)).Object}
	}
	s := aggregated[appsv1.StatefulSetStatus](t, "apps", "StatefulSet", obj, member(3), member(2))
	if s.Replicas != 3 || s.ReadyReplicas != 2 || s.ObservedGeneration != 1 {
		t.Errorf("%+v, want 2 of 3 ready", s)
	}
}

func TestDaemonSetsAddUp(t *testing.T) {
	obj := parse(t, "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {generation: 1}")
	m := MemberStatus{Cluster: "c", Generation: 1, Current: true, Status: parse(t, "{desiredNumberScheduled: 3, numberReady: 3, numberAvailable: 3}").Object}
	gone := m
	gone.Stale = "gone"
	s := aggregated[appsv1.DaemonSetStatus](t, "apps", "DaemonSet", obj, m, gone)
	if s.DesiredNumberScheduled != 6 || s.NumberReady != 3 || s.NumberUnavailable != 3 {
		t.Errorf("%+v, want 3 of 6 ready", s)
	}
}

func TestJobs(t *testing.T) {
	obj := parse(t, "apiVersion: batch/v1\nkind: Job\nmetadata: {generation: 1}")
	k := mustFind(t, "batch", "Job")
	running := MemberStatus{Cluster: "w", Status: parse(t, `{active: 1, startTime: "2026-01-01T00:00:00Z"}`).Object}
	done := MemberStatus{Cluster: "e", Status: parse(t, `{succeeded: 1, startTime: "2026-01-01T00:00:00Z", completionTime: "2026-01-01T00:01:00Z",
  conditions: [{type: Complete, status: "True", lastTransitionTime: "2026-01-01T00:01:00Z"}]}`).Object}
	failed := MemberStatus{Cluster: "n", Status: parse(t, `{failed: 1, startTime: "2026-01-01T00:00:00Z",
  conditions: [{type: Failed, status: "True", reason: BackoffLimitExceeded, message: gave up}]}`).Object}
	finished := func(members ...MemberStatus) string {
		status, _, err := k.Aggregate(obj, members)
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		conditions, _, _ := unstructured.NestedSlice(status, "conditions")
		for _, c := range conditions {
			out += fmt.Sprint(c.(map[string]any)["type"], " ")
		}
		return strings.TrimSpace(out)
	}
	for want, members := range map[string][]MemberStatus{
		"":                            {done, running},
		"SuccessCriteriaMet Complete": {done, done},
		"FailureTarget Failed":        {done, failed},
	} {
		if got := finished(members...); got != want {
			t.Errorf("%d clusters: %q, want %q", len(members), got, want)
		}
	}
	if got := finished(failed, running); got != "" {
		t.Errorf("failed in one while another runs: %q, want nothing yet", got)
	}
	if !k.Finished(parse(t, `status: {conditions: [{type: Complete, status: "True"}]}`)) || k.Finished(parse(t, "status: {active: 1}")) {
		t.Error("Finished is wrong")
	}
}

func TestNothingToSummarise(t *testing.T) {
	if _, ok, err := mustFind(t, "", "ConfigMap").Aggregate(parse(t, "data: {}"), []MemberStatus{{Cluster: "c"}}); ok || err != nil {
		t.Errorf("ConfigMap: %v %v", ok, err)
	}
	if _, ok, err := mustFind(t, "apps", "Deployment").Aggregate(deployment(t, 1, 1, 0), nil); ok || err != nil {
		t.Errorf("on no cluster: %v %v", ok, err)
	}
	_, _, err := mustFind(t, "apps", "Deployment").Aggregate(deployment(t, 1, 1, 0),
		[]MemberStatus{{Cluster: "east", Status: map[string]any{"replicas": "many"}}})
	if err == nil || !strings.Contains(err.Error(), "east") {
		t.Errorf("a report that cannot be read: %v, want an error that names the cluster", err)
	}
}

func TestHealth(t *testing.T) {
	tests := []struct {
		group, kind, manifest string
		want                  v1alpha1.Health
	}{
		{"apps", "Deployment", "metadata: {generation: 2}\nspec: {replicas: 1}\nstatus: {observedGeneration: 1, replicas: 1, updatedReplicas: 1, availableReplicas: 1}", v1alpha1.Progressing},
		{"apps", "Deployment", "metadata: {generation: 1}\nspec: {replicas: 1}\nstatus: {observedGeneration: 1, replicas: 1, updatedReplicas: 1, availableReplicas: 1}", v1alpha1.Healthy},
		{"apps", "Deployment", "metadata: {generation: 1}\nspec: {replicas: 2}\nstatus: {observedGeneration: 1, replicas: 2, updatedReplicas: 2, availableReplicas: 1}", v1alpha1.Progressing},
		{"apps", "Deployment", "metadata: {generation: 1}\nspec: {replicas: 0}\nstatus: {observedGeneration: 1}", v1alpha1.Healthy},
		{"apps", "Deployment", "metadata: {generation: 1}\nstatus: {observedGeneration: 1, conditions: [{type: Progressing, status: \"False\", message: stuck}]}", v1alpha1.Degraded},
		{"apps", "Deployment", "metadata: {generation: 1}", v1alpha1.Progressing},
		{"apps", "StatefulSet", "metadata: {generation: 1}\nspec: {replicas: 2, updateStrategy: {type: RollingUpdate}}\nstatus: {observedGeneration: 1, readyReplicas: 2, currentRevision: a, updateRevision: b}", v1alpha1.Progressing},
		{"apps", "StatefulSet", "metadata: {generation: 1}\nspec: {replicas: 2, updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}}\nstatus: {observedGeneration: 1, readyReplicas: 2, currentRevision: a, updateRevision: b}", v1alpha1.Healthy},
		{"apps", "DaemonSet", "metadata: {generation: 1}\nspec: {updateStrategy: {type: RollingUpdate}}\nstatus: {observedGeneration: 1, desiredNumberScheduled: 2, updatedNumberScheduled: 2, numberAvailable: 1}", v1alpha1.Progressing},
		{"batch", "Job", "metadata: {generation: 1}\nstatus: {active: 1}", v1alpha1.Progressing},
		{"batch", "Job", "status: {conditions: [{type: Failed, status: \"True\"}]}", v1alpha1.Degraded},
		{"batch", "Job", "status: {conditions: [{type: Complete, status: \"True\"}]}", v1alpha1.Healthy},
		{"batch", "CronJob", "spec: {}", v1alpha1.Healthy},
		{"", "PersistentVolumeClaim", "status: {phase: Pending}", v1alpha1.Progressing},
		{"", "PersistentVolumeClaim", "status: {phase: Bound}", v1alpha1.Healthy},
		{"", "PersistentVolumeClaim", "status: {phase: Lost}", v1alpha1.Degraded},
		{"", "Service", "spec: {type: LoadBalancer}", v1alpha1.Progressing},
		{"", "Service", "spec: {type: ClusterIP}", v1alpha1.Healthy},
		{"", "Secret", "data: {}", v1alpha1.Healthy},
		{"batch", "Job", "status: {active: many}", v1alpha1.Unknown},
	}
	for _, tt := range tests {
		got, why := mustFind(t, tt.group, tt.kind).Health(parse(t, tt.manifest))
		if got != tt.want {
			t.Errorf("%s: %s (%s), want %s\n%s", tt.kind, got, why, tt.want, tt.manifest)
		}
		if got != v1alpha1.Healthy && why == "" && got != v1alpha1.Degraded {
			t.Errorf("%s is %s without a message", tt.kind, got)
		}
	}
}
