package scheduler

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// pods are the pods of one Deployment in clusters, as its binding chooses them. Tests read from them what really runs.
type pods struct {
	mu     sync.Mutex
	ready  map[string]int32 // available, by cluster
	size   map[string]int32
	least  int32           // fewest that were ever available, since the first time that all were
	broken map[string]bool // clusters whose pods never start
	// crashing are clusters where at most so many pods are available, and crashed is how long ago that began.
	crashing map[string]int32
	crashed  time.Duration
	full     bool
	reported bool // the binding has what ready and size say
	history  []string
}

// runPods makes clusters run what the binding of web chooses, a few pods at a time, and report it, until the test ends.
func runPods(t *testing.T, c *control, wanted int32, broken ...string) *pods {
	t.Helper()
	p := &pods{ready: map[string]int32{}, size: map[string]int32{}, least: wanted, broken: map[string]bool{}}
	for _, cluster := range broken {
		p.broken[cluster] = true
	}
	t.Cleanup(func() {
		if p.mu.Lock(); t.Failed() {
			t.Log(strings.Join(p.history, "\n"))
		}
		p.mu.Unlock()
	})
	playMembers(t, c, func(b *v1alpha1.ResourceBinding) { p.run(b, wanted) }, bindingOfWeb)
	return p
}

// run applies the shares of a binding, lets a pod start in each cluster, and sets the entries.
func (p *pods) run(b *v1alpha1.ResourceBinding, wanted int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	chosen := map[string]v1alpha1.ClusterShare{}
	for _, share := range b.Spec.Clusters {
		chosen[share.Name] = share
		p.size[share.Name] = wanted
		if share.Replicas != nil {
			p.size[share.Name] = *share.Replicas
		}
	}
	var states []v1alpha1.ClusterState
	total := int32(0)
	for _, cluster := range []string{"east", "west", "north"} {
		share, is := chosen[cluster]
		if !is {
			delete(p.size, cluster)
			delete(p.ready, cluster)
			continue
		}
		n := min(p.ready[cluster], p.size[cluster])
		if n < p.size[cluster] && !p.broken[cluster] {
			n++
		}
		if most, is := p.crashing[cluster]; is {
			n = min(n, most)
		}
		p.ready[cluster] = n
		total += n
		state := entryOf(share)
		setReplicas(&state, p.size[cluster], n)
		if before, reported := b.State(cluster); reported {
			state.TrackHealth(&before, time.Now().Add(-p.crashed))
		}
		states = append(states, state)
	}
	if p.full = p.full || total >= wanted; p.full {
		p.least = min(p.least, total)
	}
	if line := fmt.Sprint(p.ready, " of ", p.size, " ", b.Status.Transition); len(p.history) == 0 || p.history[len(p.history)-1] != line {
		p.history = append(p.history, line)
	}
	p.reported = equality.Semantic.DeepEqual(b.Status.Clusters, states)
	b.Status.Clusters = states
}

// repair lets the pods of all clusters start.
func (p *pods) repair() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.broken)
}

// all reports whether clusters run so many pods, all of them available, no other cluster runs any, and the binding has
// been told. Without the last, a test that breaks pods at that instant could have them reported as never healthy.
func (p *pods) all(want map[string]int32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reported && fmt.Sprint(p.ready) == fmt.Sprint(want)
}

func (p *pods) fewest() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.least
}
