package clusters

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// pulledNamespaces returns nil if the syncer of a leaving cluster in mode Pull has removed the fleet's empty namespaces,
// or does not do that, and otherwise why they are still there. Its next heartbeat causes another reconcile.
func (c *controller) pulledNamespaces(cluster *v1alpha1.Cluster) error {
	last, heard := c.heartbeats.of(cluster.Name)
	switch {
	case heard && (!last.observation.RemovesNamespaces || last.observation.NamespacesRemoved == cluster.UID):
		return nil
	case heard && last.observation.NamespacesMessage != "":
		return errors.New(last.observation.NamespacesMessage)
	}
	return errors.New("the cluster's syncer has not removed them yet")
}

// namespaceRemoval removes the fleet's empty namespaces from a cluster in mode Pull that leaves. The removal asks the
// cluster for each type in each namespace, so it runs beside the heartbeats.
type namespaceRemoval struct {
	observer Observer

	mu      sync.Mutex
	running bool
	next    time.Time // not before
	// removed is the UID of the Cluster that they were removed for, and message why they could not be.
	removed types.UID
	message string
	changed bool // since the last report
}

// proceed begins the removal, or tries it again, if the cluster leaves and nothing is bound to it any more.
func (n *namespaceRemoval) proceed(ctx context.Context, r result, running *sync.WaitGroup) {
	o := n.observer
	self, known := o.Self()
	if !known || !r.ready || o.RemoveNamespaces == nil {
		return
	}
	leaving, orphan := self.Leaving()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !leaving || orphan || n.running || n.removed == self.UID || o.Clock.Now().Before(n.next) || o.Bound() {
		return
	}
	n.running = true
	running.Go(func() {
		err := o.RemoveNamespaces(ctx)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.running, n.next, n.changed = false, o.Clock.Now().Add(v1alpha1.HeartbeatInterval), true
		if err != nil {
			n.message = err.Error()
			return
		}
		n.removed, n.message = self.UID, ""
	})
}

// isUnreported reports whether a removal has ended since the last report.
func (n *namespaceRemoval) isUnreported() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// annotate adds the removal to a report.
func (n *namespaceRemoval) annotate(seen *fleet.Observation) {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen.RemovesNamespaces = n.observer.RemoveNamespaces != nil
	seen.NamespacesRemoved, seen.NamespacesMessage = n.removed, n.message
	n.changed = false // if the report fails, it is repeated
}
