package scheduler

import (
	"maps"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// departedKept is how long the scheduler remembers which clusters a follower left because its users were deleted.
// The objects that it needed in turn are decided within moments, unless there are very many.
const departedKept = 10 * time.Minute

// departed are the followers whose bindings are gone because their users were deleted. Without it, what such a
// follower needed would stay in the clusters if it is decided after the binding is gone.
type departed struct {
	mu sync.Mutex
	of map[object]departure
}

type departure struct {
	clusters map[string]bool
	at       time.Time
}

func newDeparted() *departed { return &departed{of: map[object]departure{}} }

// record remembers the removals of a follower that leaves all clusters.
func (d *departed) record(o object, removals []v1alpha1.RequestedRemoval, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clusters := map[string]bool{}
	maps.Copy(clusters, d.of[o].clusters) // its first steps may be done
	for _, r := range removals {
		clusters[r.Name] = true
	}
	for other, is := range d.of {
		if now.Sub(is.at) > departedKept {
			delete(d.of, other)
		}
	}
	d.of[o] = departure{clusters, now}
}

// forget is called when the follower is needed again.
func (d *departed) forget(o object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, o)
}

// left reports whether a follower left a cluster because its users were deleted.
func (d *departed) left(o object, cluster string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	is, recorded := d.of[o]
	return recorded && is.clusters[cluster] && now.Sub(is.at) <= departedKept
}
