package moving

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

var web = Object{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
	Kind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: "web"}

func bindingOf(t *testing.T, text string) *v1alpha1.ResourceBinding {
	t.Helper()
	b := &v1alpha1.ResourceBinding{}
	if err := yaml.UnmarshalStrict([]byte(text), b); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return b
}

// TestJudge: an object has arrived when its clusters run it and no other has it, and has returned when it avoids a
// cluster that it went to.
func TestJudge(t *testing.T) {
	const (
		times  = "startTime: 2026-01-01T00:00:00Z, progressTime: 2026-01-01T00:00:00Z"
		update = "lastUpdateTime: 2026-01-01T00:00:00Z"
		avoids = "avoided: [{name: west, reason: TransitionDeadlineExceeded, message: had no room, time: 2026-01-01T00:00:00Z, until: 2026-01-01T00:10:00Z, attempts: 1}]"
	)
	earlier := map[string]metav1.Time{"west": metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}
	for _, tt := range []struct {
		name, binding string
		before        map[string]metav1.Time
		want          string // arrived, returned, or the text
		fraction      float64
	}{
		{"no decision", "", nil, "no decision yet", 0},
		{"not decided since", "spec: {clusters: [{name: east, replicas: 3}]}", nil, "waiting for the scheduler's decision", 0},
		{"not scheduled", "{spec: {clusters: [{name: east, replicas: 3}]}, status: {conditions: [{type: Scheduled, status: 'False', reason: NoRoom, message: west is full}]}}", nil, "NoRoom: west is full", 0},
		{"the first step", "spec: {clusters: [{name: east, replicas: 3}], goal: [{name: west, replicas: 3}], transition: {id: a, cause: Moved, " + times + "}}", nil,
			"Starting: east 3 -> -, west - -> 3", 0},
		{"grows", "{spec: {clusters: [{name: east, replicas: 3}, {name: west, replicas: 1}], goal: [{name: west, replicas: 4}], transition: {id: a, cause: Moved, " + times + "}}, " +
			"status: {transition: {id: a, cause: Moved, phase: Growing, waitingFor: 1 replica in west, since: 2026-01-01T00:00:00Z}}}", nil,
			"Growing: east 3 -> -, west 1 -> 4, waiting for 1 replica in west", 0.25},
		{"the status is of an earlier one", "{spec: {clusters: [{name: east}], goal: [{name: west}], transition: {id: b, cause: Moved, " + times + "}}, " +
			"status: {transition: {id: a, cause: Moved, phase: Failed, since: 2026-01-01T00:00:00Z}}}", nil, "Starting: east whole -> -, west - -> whole", 0},
		{"goes back", "{spec: {clusters: [{name: east, replicas: 2}, {name: west, replicas: 1}], goal: [{name: east, replicas: 3}], " + avoids + ", transition: {id: b, cause: RolledBack, " + times + "}}}", nil,
			"goes back: Starting: east 2 -> 3, west 1 -> -", 0},
		{"went back", "spec: {clusters: [{name: east, replicas: 3}], " + avoids + "}", nil, "returned west: had no room", 0},
		{"failed before", "spec: {clusters: [{name: east, replicas: 3}], " + avoids + "}", earlier, "waiting for the scheduler's decision", 0},
		{"not applied", "spec: {clusters: [{name: west, replicas: 3}]}", nil, "west 3, waiting for west to get it", 1},
		{"rejected", "{spec: {clusters: [{name: west}]}, status: {clusters: [{name: west, health: Degraded, reason: ApplyFailed, message: forbidden there, " + update + "}]}}", nil, "waiting for west: forbidden there", 1},
		{"progresses", "{spec: {clusters: [{name: west}]}, status: {clusters: [{name: west, uid: u, health: Progressing, " + update + "}]}}", nil, "waiting for west, where it is Progressing", 1},
		{"not removed", "{spec: {clusters: [{name: west}]}, status: {clusters: [{name: west, uid: u, health: Healthy, " + update + "}, {name: east, uid: v, health: Healthy, " + update + "}]}}", nil, "waiting for east to remove it", 1},
		{"the old one is away", "{spec: {clusters: [{name: west}]}, status: {clusters: [{name: west, uid: u, health: Healthy, " + update + "}, " +
			"{name: east, uid: v, health: Healthy, " + update + ", stale: {since: 2026-01-01T00:00:00Z, reason: ClusterUnreachable}}]}}", nil, "arrived", 1},
		{"arrived", "{spec: {clusters: [{name: west}]}, status: {clusters: [{name: west, uid: u, health: Healthy, " + update + "}]}}", nil, "arrived", 1},
		{"arrived after a failure", "{spec: {clusters: [{name: west}], " + avoids + "}, status: {clusters: [{name: west, uid: u, health: Healthy, " + update + "}]}}", earlier, "arrived", 1},
	} {
		var b *v1alpha1.ResourceBinding
		if tt.binding != "" {
			b = bindingOf(t, tt.binding)
		}
		v := judge(&Target{Object: web, Clusters: []string{"west"}}, tt.before, b)
		got := v.text
		if v.arrived {
			got = "arrived"
		} else if v.returned != nil {
			got = "returned " + v.returned.Name + ": " + v.returned.Message
		}
		if !strings.Contains(got, tt.want) || tt.want == "arrived" != v.arrived || v.fraction != tt.fraction {
			t.Errorf("%s: %q, %v; want %q, %v", tt.name, got, v.fraction, tt.want, tt.fraction)
		}
	}
}

// TestFollowerCountsObjects: the progress of many objects counts those that are done, and describes the first other one.
func TestFollowerCountsObjects(t *testing.T) {
	api := web
	api.Name = "api"
	f := &Follower{targets: []*followed{{Target: Target{web, []string{"west"}}}, {Target: Target{api, []string{"west"}}}}}
	arrived := bindingOf(t, "{spec: {clusters: [{name: west}]}, status: {clusters: [{name: west, uid: u, health: Healthy, lastUpdateTime: null}]}}")
	if out := f.observe(map[Object]*v1alpha1.ResourceBinding{web: arrived}); len(out) != 1 || out[0].Object != web || out[0].RolledBack != nil {
		t.Errorf("outcomes: %+v", out)
	}
	if p := f.progress(); p != (Progress{Done: 1, Total: 2, Fraction: 0.5, Text: "Deployment shop/api: there is no decision yet"}) {
		t.Errorf("progress: %+v", p)
	}
	if out := f.observe(map[Object]*v1alpha1.ResourceBinding{web: arrived, api: bindingOf(t, "spec: {clusters: [{name: east}]}")}); len(out) != 0 {
		t.Errorf("outcomes: %+v", out)
	}
	gone := *f.targets[1]
	deleted := &Follower{targets: []*followed{&gone}}
	if out := deleted.observe(nil); len(out) != 1 || out[0].Object != api || !out[0].Deleted {
		t.Errorf("outcomes after the deletion: %+v", out)
	}
	if out := f.observe(map[Object]*v1alpha1.ResourceBinding{web: arrived, api: arrived}); len(out) != 1 || out[0].Object != api || len(f.Pending()) != 0 {
		t.Errorf("outcomes: %+v, pending %v", out, f.Pending())
	}
}
