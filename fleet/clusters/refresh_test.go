package clusters

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// TestNewLeaderWritesLittle: a new leader spreads the refresh of Ready clusters over an
// interval, and writes for clusters that are not Ready at once.
func TestNewLeaderWritesLittle(t *testing.T) {
	const clusters = 1000
	began := time.Unix(1_000_000, 0)
	c := &controller{Session: &fleet.Session{Started: began}}
	last := map[string]time.Time{}
	at := func(name string) *v1alpha1.Cluster {
		was := metav1.NewTime(last[name])
		cluster := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		cluster.Status.LastProbeTime = &was
		return cluster
	}
	for i := range clusters {
		last[fmt.Sprintf("member-%04d", i)] = began.Add(-time.Hour)
	}
	written := map[string]int{}
	for now := began; now.Sub(began) < 3*refreshInterval; now = now.Add(probeInterval) {
		round := 0
		for name, before := range last {
			if !c.needsRefresh(at(name), true, now) {
				continue
			}
			if round++; now.Sub(began) > refreshInterval && now.Sub(before) > refreshInterval+probeInterval {
				t.Fatalf("%s: nothing for %v", name, now.Sub(before))
			}
			last[name] = now
			written[name]++
		}
		if even := clusters * int(probeInterval) / int(refreshInterval); round > 2*even {
			t.Errorf("after %v: %d writes at once, want about %d", now.Sub(began), round, even)
		}
	}
	for name := range last {
		if n := written[name]; n < 2 || n > 3 {
			t.Errorf("%s: %d writes in three heartbeats", name, n)
		}
	}
	last["dead"] = began.Add(-time.Second)
	if !c.needsRefresh(at("dead"), false, began.Add(time.Second)) {
		t.Error("no refresh, but placement waits for this leader's own observation of a cluster that is not Ready")
	}
	if c.needsRefresh(at("dead"), true, began.Add(time.Second)) {
		t.Error("a new leader refreshes a Ready cluster at once")
	}
}
