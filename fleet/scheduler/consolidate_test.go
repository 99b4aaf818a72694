package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// overflowing has a Deployment of ten replicas that goes to east first, which had room for four of them; the others run in
// west. Nothing has room in east.
func overflowing(t *testing.T, policy string) (*control, *pods) {
	t.Helper()
	object := strings.NewReplacer("labels: {fleet.atoll.dev/cluster: east}, ", "", "SETTINGS", "", "minAvailable: 8", "maxUnavailable: 100%",
		"image: i,", `image: i, resources: {requests: {cpu: "1"}},`).Replace(ten)
	c := newControl(t, clusters+object+policyOf("groups", `selector: {kinds: [Deployment]}, clusterGroups: [{name: own, clusters: {names: [east]}}, {name: rented, clusters: {}}]`+policy))
	reportUsed(c, "east", "4")
	reportNodes(c, "west", 1, "40", "40")
	p := runPods(t, c, 10)
	t.Run("it overflows", func(t *testing.T) {
		c.start(t, Config{})
		fakeapi.Until(t, "it runs in both", func() bool { return p.all(map[string]int32{"east": 4, "west": 6}) })
	})
	reportUsed(c, "east", "0")
	return c, p
}

// roomSince gives east room for four more, as if that were so for a time, before another leader starts. That one knows
// that the pods run, and that clusters report them.
func roomSince(t *testing.T, c *control, ago time.Duration) {
	t.Helper()
	reportUsed(c, "east", "4")
	c.changeBinding(t, webOf(t, c), func(b *v1alpha1.ResourceBinding) {
		b.Status.Consolidation = &v1alpha1.ConsolidationStatus{Since: metav1.NewTime(time.Now().Add(-ago))}
	})
	c.start(t, Config{})
}

const inTen = `, consolidation: {after: 10m}`

// TestConsolidation: replicas that overflowed go back in steps when the first group has had room for long enough, and no
// replica is missing meanwhile.
func TestConsolidation(t *testing.T) {
	c, p := overflowing(t, inTen)
	roomSince(t, c, 11*time.Minute)
	fakeapi.Until(t, "east runs eight", func() bool {
		b := webOf(t, c)
		return p.all(map[string]int32{"east": 8, "west": 2}) && b.Spec.Transition == nil && b.Status.Consolidation == nil
	})
	if n := p.fewest(); n < 10 {
		t.Errorf("%d replicas were available at an instant, want 10", n)
	}
	sawEvent(t, c, EventTransitionStarted, "(Consolidated)")
	sawEvent(t, c, "Rescheduled", "Placed on east 8, west 2 (was: east 4, west 6): an earlier group of clusters has had room for 10m0s")
}

// TestConsolidationIsPreviewed: a preview shows what would go back by the clock, and a rebalance what would now.
func TestConsolidationIsPreviewed(t *testing.T) {
	c, _ := overflowing(t, inTen)
	c.start(t, Config{})
	caughtUp(t, c)
	if b := webOf(t, c); b.Status.Consolidation != nil {
		t.Errorf("there is room since %s", b.Status.Consolidation.Since)
	}
	reportUsed(c, "east", "4")
	fakeapi.Until(t, "there is room in an earlier group", func() bool {
		c.Merge(deployments, "shop", "web", fmt.Sprintf(`{"metadata":{"annotations":{"at":%q}}}`, time.Now())) // it is decided again
		return webOf(t, c).Status.Consolidation != nil
	})
	says(t, c, "; replicas go back from west to an earlier group of clusters at ")
	moves := func(at time.Time, edit func(p Placed)) (out []string) {
		s, err := Load(t.Context(), c.Dynamic(), at)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range s.Placed {
			edit(p)
		}
		for _, m := range s.Moves(s.Snapshot()) {
			if m.Kind == "Deployment" {
				out = append(out, fmt.Sprintf("%s %s to %s: %s", m.Cluster, m.Before, m.After, m.Why))
			}
		}
		return out
	}
	nothing := func(Placed) {}
	if got := moves(time.Now(), nothing); len(got) > 0 {
		t.Errorf("before the time, %q moves", got)
	}
	if got, want := moves(time.Now().Add(11*time.Minute), nothing), []string{
		"east 4 to 8: Ready and schedulable, in group own; replicas go back from west, since an earlier group has had room for 10m0s",
		"west 6 to 2: Ready and schedulable, in group rented"}; !slices.Equal(got, want) {
		t.Errorf("after the time, %q moves", got)
	}
	if got, want := moves(time.Now(), func(p Placed) {
		p.Object.SetAnnotations(map[string]string{v1alpha1.RebalanceAnnotation: "now"})
	}), []string{"east 4 to 8: Ready and schedulable, in group own", "west 6 to 2: Ready and schedulable, in group rented"}; !slices.Equal(got, want) {
		t.Errorf("by a rebalance, %q moves", got)
	}
}

// TestConsolidationFails: a cluster that does not run more replicas keeps those that it runs, and is not tried again before
// its time.
func TestConsolidationFails(t *testing.T) {
	c, p := overflowing(t, inTen+`, transition: {deadline: 2s}`)
	p.mu.Lock()
	p.broken["east"] = true
	p.mu.Unlock()
	roomSince(t, c, 11*time.Minute)
	fakeapi.Until(t, "it is as before", func() bool {
		b := webOf(t, c)
		return p.all(map[string]int32{"east": 4, "west": 6}) && b.Spec.Transition == nil && len(b.Spec.Avoided) == 1 && b.Spec.Avoided[0].Name == "east"
	})
	c.Merge(deployments, "shop", "web", `{"metadata":{"annotations":{"at":"again"}}}`)
	caughtUp(t, c)
	placedAt(t, c, "east 4, west 6")
	if b := webOf(t, c); b.Status.Consolidation != nil || b.Spec.Transition != nil {
		t.Errorf("it is tried again: %+v %+v", b.Status.Consolidation, b.Spec.Transition)
	}
	if n := p.fewest(); n < 10 {
		t.Errorf("%d replicas were available at an instant, want 10", n)
	}
}

// TestNoConsolidation: replicas stay in a later group without the setting.
func TestNoConsolidation(t *testing.T) {
	c, _ := overflowing(t, "")
	roomSince(t, c, time.Hour)
	caughtUp(t, c)
	if b := webOf(t, c); describe(b.Spec.Clusters) != "east 4, west 6" || b.Spec.Transition != nil {
		t.Errorf("it goes from %s to %s", describe(b.Spec.Clusters), describe(b.Spec.Goal))
	}
}
