package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestPendingPodsMove: replicas that have had no node for five minutes go to a cluster with room, and others stay. A
// preview shows the same.
func TestPendingPodsMove(t *testing.T) {
	c := newControl(t, clusters)
	reportNodes(c, "east", 1, "8", "8")
	reportNodes(c, "west", 1, "8", "8")
	c.start(t, Config{})
	create(t, c, requesting("web", 8, "1"))
	create(t, c, requesting("late", 2, "1"))
	sharesAre := func(name, want string) {
		t.Helper()
		fakeapi.Until(t, name+" is in "+want, func() bool { return sharesOf(t, c, "shop", "deployment.apps-"+name) == want })
	}
	sharesAre("web", "east 4, west 4")
	sharesAre("late", "east 1, west 1")
	reportNodes(c, "west", 1, "16", "8")
	pending := func(name string, count int, since time.Duration) string {
		return fmt.Sprintf(`{"kind":"Deployment.apps","namespace":"shop","name":"%s","count":%d,"since":"%s"}`, name, count, time.Now().Add(-since).UTC().Format(time.RFC3339))
	}
	c.Merge(v1alpha1.ClusterResource, "", "east", `{"status":{"pendingPods":[`+pending("web", 3, 6*time.Minute)+`,`+pending("late", 1, time.Minute)+`]}}`)
	sharesAre("web", "east 1, west 7")
	fakeapi.Until(t, "an event says why", func() bool {
		list, err := c.Dynamic().Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace("shop").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.Items, func(e unstructured.Unstructured) bool {
			return e.Object["message"] == "Placed on east 1, west 7 (was: east 4, west 4): 3 of its pods had no node in east"
		})
	})
	// The report is older than the move now, and takes nothing more away: the new replica joins the one in the east.
	c.Merge(deployments, "shop", "web", `{"spec":{"replicas":9}}`)
	sharesAre("web", "east 2, west 7")
	sharesAre("late", "east 1, west 1")
}

// TestPendingMovesAreBounded: only some of the objects whose pods lost their nodes at the same time move at once.
func TestPendingMovesAreBounded(t *testing.T) {
	p := newPending()
	now := time.Now()
	since := now.Add(-time.Hour)
	var all []v1alpha1.PendingPods
	for i := range 50 {
		w := v1alpha1.PendingPods{Kind: "Deployment.apps", Namespace: "shop", Name: fmt.Sprint("web-", i), Count: 1}
		w.Since.Time = since
		all = append(all, w)
	}
	if changed := p.report("east", all); len(changed) != 50 {
		t.Errorf("%d workloads are affected", len(changed))
	}
	if again := p.report("east", all); again != nil {
		t.Errorf("the same report again affects %v", again)
	}
	moving := func(now time.Time) (n int) {
		for _, w := range all {
			counts, again := p.due(keyOfPending(w), []placement.Share{{Cluster: "east", Replicas: 2}}, now, pendingTime)
			if n += int(counts["east"]); counts == nil && again != time.Second {
				t.Errorf("%s waits for %s", w.Name, again)
			}
		}
		return n
	}
	if n := moving(now); n != movesAtOnce {
		t.Errorf("%d move at once", n)
	}
	if n := moving(now.Add(5 * time.Second)); n != movesAtOnce+5*movesPerSecond {
		t.Errorf("%d move five seconds later", n)
	}
	if changed := p.report("east", nil); len(changed) != 50 || len(p.of)+len(p.in)+len(p.moving) != 0 {
		t.Errorf("%d workloads are affected, and %v is left", len(changed), p)
	}
}

// TestVolumeClaimsStay: pods with volume claims do not go to another cluster, where their data would be missing.
func TestVolumeClaimsStay(t *testing.T) {
	for name, tt := range map[string]struct {
		manifest string
		moves    bool
	}{
		"no volumes":           {`{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: [{name: c}]}}}}`, true},
		"scratch space":        {`{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: [{name: c}], volumes: [{name: v, emptyDir: {}}]}}}}`, true},
		"a claim":              {`{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: [{name: c}], volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}}}}`, false},
		"claims of a template": {`{apiVersion: apps/v1, kind: StatefulSet, spec: {volumeClaimTemplates: [{metadata: {name: v}}], template: {spec: {containers: [{name: c}]}}}}`, false},
	} {
		u := parse(t, tt.manifest)[0]
		k, _ := interpret.Find(u.GroupVersionKind().GroupKind())
		if movesPending(k, u) != tt.moves || staysPut(k, u) == tt.moves {
			t.Errorf("%s: pending pods move %v, a rebalance leaves it %v", name, movesPending(k, u), staysPut(k, u))
		}
	}
}
