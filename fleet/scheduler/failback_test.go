package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// webBinding returns the binding of web.
func webBinding(t *testing.T, c *control) *v1alpha1.ResourceBinding {
	t.Helper()
	return as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web"))
}

// homeIs waits until web has a home, or none with "".
func homeIs(t *testing.T, c *control, want string) {
	t.Helper()
	fakeapi.Eventually(t, "the home is "+want, func() error {
		is := ""
		if home := webBinding(t, c).Spec.Home; home != nil {
			is = describe(home.Clusters)
		}
		if is != want {
			return errors.New("it is " + is)
		}
		return nil
	})
}

// says waits until the condition Scheduled of web has a text.
func says(t *testing.T, c *control, want string) {
	t.Helper()
	fakeapi.Eventually(t, "it says "+want, func() error {
		if s := meta.FindStatusCondition(webBinding(t, c).Status.Conditions, v1alpha1.BindingScheduled); s == nil || !strings.Contains(s.Message, want) {
			return fmt.Errorf("it says %+v", s)
		}
		return nil
	})
}

// webPolicy places web in one cluster, east if it can.
func webPolicy(rest string) string {
	return policyOf("one", `mode: Single, affinity: [{weight: 100, clusters: {names: [east]}}]`+rest)
}

const inTenMinutes = `, failback: {after: 10m}`

// TestFailback: an object that failed over returns once, when its cluster has been Ready for long enough. The cluster
// that took over may remove it then without a user's permission.
func TestFailback(t *testing.T) {
	c := newControl(t, clusters+app+"\n"+webPolicy(inTenMinutes))
	c.start(t, Config{})
	placedAt(t, c, "east")
	members(t, c, true)
	reported(t, c)
	c.Merge(v1alpha1.ClusterResource, "", "east", fails)
	placedAt(t, c, "west")
	homeIs(t, c, "east")
	says(t, c, "returns to east after that has been Ready for 10m0s, but east: not Ready: ClusterUnreachable")
	reported(t, c)
	// It flaps, and is not Ready for long enough.
	now := time.Now()
	for range 2 {
		c.Merge(v1alpha1.ClusterResource, "", "east", readyAt(now))
		says(t, c, "returns to east at "+now.Add(10*time.Minute).UTC().Format(time.RFC3339))
		placedAt(t, c, "west")
		caughtUp(t, c)
		c.Merge(v1alpha1.ClusterResource, "", "east", fails)
		says(t, c, "not Ready: ClusterUnreachable")
		caughtUp(t, c)
	}
	c.Merge(v1alpha1.ClusterResource, "", "east", readyAt(now))
	says(t, c, "returns to east at ")

	state, err := Load(t.Context(), c.Dynamic(), now.Add(11*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	preview := ""
	for _, m := range state.Moves(state.Snapshot()) {
		if m.Name == "web" && m.Kind == "Deployment" {
			preview += fmt.Sprintf("%s %s to %s: %s. ", m.Cluster, m.Before, m.After, m.Why)
		}
	}
	if want := "east - to whole: Ready and schedulable; the object ran here before, and returns after the cluster has been Ready for 10m0s. west whole to -: the object returns to the clusters where it ran before they were unreachable. "; preview != want {
		t.Errorf("a preview says %s", preview)
	}

	c.Merge(v1alpha1.ClusterResource, "", "east", fails)
	says(t, c, "not Ready: ClusterUnreachable")
	c.Merge(v1alpha1.ClusterResource, "", "east", readyAt(now.Add(-11*time.Minute)))
	placedAt(t, c, "east")
	homeIs(t, c, "")
	waitForRequests(t, c, strings.ReplaceAll(allReplaced, "east", "west"))
	// Once: where a label moves it, it stays.
	c.Merge(deployments, "shop", "web", toWest)
	placedAt(t, c, "west")
	c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":null}}}`)
	caughtUp(t, c)
	placedAt(t, c, "west")
	homeIs(t, c, "")
}

// TestFailbackByTheClock: the object returns at the time, without another event.
func TestFailbackByTheClock(t *testing.T) {
	c := newControl(t, clusters+app+"\n"+webPolicy(`, failback: {after: 2s}`))
	c.start(t, Config{})
	placedAt(t, c, "east")
	c.Merge(v1alpha1.ClusterResource, "", "east", fails)
	placedAt(t, c, "west")
	c.Merge(v1alpha1.ClusterResource, "", "east", readyAt(time.Now()))
	placedAt(t, c, "east")
}

// TestFailbackEnds: without failback in the policy nothing returns, and an edit by a person ends the home. An edit of
// failback alone does not.
func TestFailbackEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		policy string
		edit   func(*testing.T, *control)
		home   string
		want   string
	}{
		"no failback": {"", nil, "east", "west"},
		"failback is added": {"", func(t *testing.T, c *control) {
			c.Put(parse(t, webPolicy(inTenMinutes))[0])
		}, "east", "east"},
		"the policy is edited": {inTenMinutes, func(t *testing.T, c *control) {
			c.Put(parse(t, webPolicy(inTenMinutes+", clusters: {names: [east, west, south]}"))[0])
		}, "", "west"},
		"the label is set, and removed": {inTenMinutes, func(t *testing.T, c *control) {
			c.Merge(deployments, "shop", "web", toWest)
			homeIs(t, c, "")
			c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":null}}}`)
		}, "", "west"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newControl(t, clusters+app+"\n"+webPolicy(tt.policy))
			c.start(t, Config{})
			placedAt(t, c, "east")
			c.Merge(v1alpha1.ClusterResource, "", "east", fails)
			placedAt(t, c, "west")
			homeIs(t, c, "east")
			if tt.edit != nil {
				tt.edit(t, c)
			}
			homeIs(t, c, tt.home)
			c.Merge(v1alpha1.ClusterResource, "", "east", readyAt(time.Now().Add(-time.Hour)))
			if tt.want == "west" {
				caughtUp(t, c)
			}
			placedAt(t, c, tt.want)
		})
	}
}

// TestFailbackOfShares: several failovers in a row have one home, and the object returns there with the replicas that
// it has then.
func TestFailbackOfShares(t *testing.T) {
	c := newControl(t, threeClusters+app+"\n"+policyOf("two", `clusterCount: {max: 2}, affinity: [{weight: 9, clusters: {names: [east, west]}}], failback: {after: 10m}`))
	c.start(t, Config{})
	placedAt(t, c, "east 2, west 1")
	c.Merge(v1alpha1.ClusterResource, "", "east", fails)
	placedAt(t, c, "west 2, south 1")
	homeIs(t, c, "east 2, west 1")
	// Not together with east: then nothing would move.
	c.Merge(v1alpha1.ClusterResource, "", "west", strings.Replace(fails, "2026-01-05", "2026-01-06", 1))
	placedAt(t, c, "south 3")
	homeIs(t, c, "east 2, west 1")
	c.Merge(deployments, "shop", "web", `{"spec":{"replicas":6}}`)
	placedAt(t, c, "south 6")
	for _, name := range []string{"west", "east"} {
		c.Merge(v1alpha1.ClusterResource, "", name, readyAt(time.Now().Add(-time.Hour)))
	}
	placedAt(t, c, "east 3, west 3")
	homeIs(t, c, "")
	waitForRequests(t, c, "")
}
