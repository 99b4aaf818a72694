package interpret

import (
	"fmt"
	"math/rand"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestDuplicatedRollouts: where every cluster runs the whole object, the counts above say that a
// rollout is complete, as kubectl rollout status reads them, exactly when it is complete in every
// cluster. The counts never exceed what one cluster can report.
func TestDuplicatedRollouts(t *testing.T) {
	random := rand.New(rand.NewSource(4))
	complete := map[string]func(status map[string]any, want int64) bool{
		"Deployment": func(s map[string]any, want int64) bool {
			updated, all, available := statusCount(s, "updatedReplicas"), statusCount(s, "replicas"), statusCount(s, "availableReplicas")
			return updated >= want && all <= updated && available >= updated
		},
		"ReplicaSet": func(s map[string]any, want int64) bool { return statusCount(s, "availableReplicas") >= want },
		"StatefulSet": func(s map[string]any, want int64) bool {
			return statusCount(s, "readyReplicas") >= want && s["currentRevision"] == s["updateRevision"]
		},
	}
	for kind, complete := range complete {
		k := mustFind(t, "apps", kind)
		both := 0
		for range 5_000 {
			want := int64(1 + random.Intn(3))
			obj := parse(t, fmt.Sprintf("metadata: {generation: 1}\nspec: {replicas: %d}", want))
			all, largest := true, int64(0)
			members := make([]MemberStatus, 1+random.Intn(3))
			for i := range members {
				replicas := want + int64(random.Intn(3)/2)
				updated := replicas - int64(random.Intn(4)/2)
				ready := replicas - int64(random.Intn(4)/3)
				status := map[string]any{"replicas": replicas, "updatedReplicas": max(0, updated), "readyReplicas": ready,
					"availableReplicas": ready - ready*int64(random.Intn(4)/3), "currentRevision": "a", "updateRevision": "a"}
				if updated < replicas {
					status["updateRevision"] = "b"
				}
				members[i] = MemberStatus{Cluster: fmt.Sprint("c", i), Generation: 1, Current: true, Status: status}
				if random.Intn(8) == 0 {
					members[i].Stale = "not answering"
				}
				all = all && members[i].Stale == "" && complete(status, want)
				largest = max(largest, replicas)
			}
			got, _, err := k.Aggregate(obj, members)
			if err != nil {
				t.Fatal(err)
			}
			if complete(got, want) != all {
				t.Fatalf("%s of %d: complete %v above, and %v in all clusters\nabove   %v\nmembers %v", kind, want, !all, all, got, members)
			}
			if statusCount(got, "replicas") > largest || statusCount(got, "availableReplicas") > statusCount(got, "replicas") {
				t.Fatalf("%s of %d: no cluster reports %v: %v", kind, want, got, members)
			}
			if all {
				both++
			}
		}
		if both < 100 {
			t.Errorf("%s: only %d rollouts were complete", kind, both)
		}
	}
}

func statusCount(status map[string]any, field string) int64 {
	n, _ := number(status, field)
	return n
}

// TestOverriddenCounts: an override that sets the replicas of one cluster divides nothing.
func TestOverriddenCounts(t *testing.T) {
	east, west := report(t, "east", 2, 3), report(t, "west", 2, 1)
	east.Replicas = nil
	s := aggregated[appsv1.DeploymentStatus](t, "apps", "Deployment", deployment(t, 2, 3, 1), east, west)
	if s.ObservedGeneration != 2 || s.Replicas != 3 || s.ReadyReplicas != 3 {
		t.Errorf("generation %d is observed with %d of %d replicas ready, want generation 2 with 3 of 3", s.ObservedGeneration, s.ReadyReplicas, s.Replicas)
	}
}

// TestJobCountsNeverDecrease: API servers reject a status of a Job with fewer ended pods.
func TestJobCountsNeverDecrease(t *testing.T) {
	obj := parse(t, "apiVersion: batch/v1\nkind: Job\nmetadata: {generation: 1}\nstatus: {succeeded: 4, failed: 2}")
	one := int32(3)
	for _, replicas := range []*int32{nil, &one} {
		s := aggregated[batchv1.JobStatus](t, "batch", "Job", obj, MemberStatus{Cluster: "west", Replicas: replicas, Status: map[string]any{"active": int64(1), "succeeded": int64(1)}})
		if s.Succeeded != 4 || s.Failed != 2 || s.Active != 1 {
			t.Errorf("%+v, want the counts from before a cluster left", s)
		}
	}
}

// TestCountsOfCustomKinds: the counts of a custom resource with replicas follow the same rule, by
// their names.
func TestCountsOfCustomKinds(t *testing.T) {
	k := Generic(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Rollout"}, "rollouts", false, &Scale{Replicas: []string{"spec", "replicas"}})
	three := int32(3)
	for name, tt := range map[string]struct {
		share *int32
		want  string
	}{
		"divided":    {&three, "6 5 1"},
		"duplicated": {nil, "3 2 1"},
	} {
		members := []MemberStatus{
			{Cluster: "east", Replicas: tt.share, Status: map[string]any{"replicas": int64(3), "readyReplicas": int64(3), "unavailableReplicas": int64(0)}},
			{Cluster: "west", Replicas: tt.share, Status: map[string]any{"replicas": int64(3), "readyReplicas": int64(2), "unavailableReplicas": int64(1)}},
		}
		s, _, err := k.Aggregate(&unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(3)}}}, members)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(s["replicas"], " ", s["readyReplicas"], " ", s["unavailableReplicas"]); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
