package clusters

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// Observer does for a cluster in mode Pull what the controller does for others. It runs with the
// syncer.
type Observer struct {
	Clock clock.WithTicker
	Log   *slog.Logger
	// Self returns the Cluster; false if it is unknown. The claim in its status is the one of
	// the control plane that serves the syncer.
	Self func() (*v1alpha1.Cluster, bool)
	// Report reports the observed state of the cluster.
	Report func(context.Context, fleet.Observation) error
	// Serve runs the syncer until its context ends.
	Serve func(context.Context) error
	// Bound reports whether an object is bound to the cluster, or still in it.
	Bound func() bool
	// RemoveNamespaces removes the fleet's empty namespaces from the cluster. It is called when the Cluster leaves and
	// nothing is bound to it. May be nil.
	RemoveNamespaces func(context.Context) error
}

// Run probes the cluster and counts its nodes until ctx ends. It reports changes, and otherwise
// every v1alpha1.HeartbeatInterval. It starts the syncer when the cluster is first ready, and stops
// it when another cluster answers.
func (o Observer) Run(ctx context.Context, member *rest.Config) error {
	cfg := rest.CopyConfig(member)
	cfg.UserAgent = FieldManager
	watching, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("create a client for the cluster: %w", err)
	}
	probing, err := newProber(cfg, renewPull)
	if err != nil {
		return fmt.Errorf("create a client for the cluster: %w", err)
	}
	claims, err := newClaims(cfg, claimant{session: string(uuid.NewUUID())}, o.Clock)
	if err != nil {
		return fmt.Errorf("create a client for the cluster: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := newNodes(watching)
	var running sync.WaitGroup
	running.Go(func() { n.run(ctx) })
	defer running.Wait()

	ticker := o.Clock.NewTicker(probeInterval)
	defer ticker.Stop()
	var h health
	reported := o.Clock.Now().Add(-v1alpha1.HeartbeatInterval)
	failing := false
	var failure error // of the syncer; read after it has stopped
	var stop func()
	removal := &namespaceRemoval{observer: o}
	for turn := 0; ctx.Err() == nil; turn++ {
		r, known := o.claimed(ctx, claims, o.identified(probing.probe(ctx, h.last, !h.last.ready || turn%versionProbes == 0, o.Clock.Now())))
		changed := known && h.add(r)
		switch {
		case !known:
		case r.excludes():
			stopSyncer(&stop)
		case r.ready && stop == nil:
			stop = o.serve(ctx, func(err error) { failure = err; cancel() })
		}
		if known {
			removal.proceed(ctx, r, &running)
		}
		if ctx.Err() == nil && (changed || failing || removal.isUnreported() || o.Clock.Since(reported) >= v1alpha1.HeartbeatInterval) {
			seen := observationOf(n.annotate(h.last), n, o.Clock.Now())
			removal.annotate(&seen)
			err := o.Report(ctx, seen)
			if err != nil && !failing && ctx.Err() == nil {
				o.Log.Warn("reporting the cluster state failed; retrying", "error", err)
			}
			failing = err != nil
			if err == nil {
				reported = o.Clock.Now()
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C():
		}
	}
	stopSyncer(&stop)
	return failure
}

func (o Observer) identified(r result) result {
	if self, known := o.Self(); known && r.ready {
		if why := pullIdentityProblem(self, r.id); why != "" {
			r.ready, r.reason, r.message = false, v1alpha1.ReasonWrongCluster, why
		}
	}
	return r
}

// claimed claims the cluster for the control plane that serves the syncer: its address may by now lead to
// a copy.
func (o Observer) claimed(ctx context.Context, claims *claims, r result) (_ result, known bool) {
	self, exists := o.Self()
	if !exists || self.Status.Claim == nil {
		return r, true
	}
	claims.ControlPlane = fleet.ControlPlaneOf(self.Status.Claim)
	return claims.check(ctx, self, r)
}

// serve runs the syncer until stop is called. If it cannot start, fail ends Run with the error.
func (o Observer) serve(ctx context.Context, fail func(error)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := o.Serve(ctx); err != nil && ctx.Err() == nil {
			fail(err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

func stopSyncer(stop *func()) {
	if *stop != nil {
		(*stop)()
		*stop = nil
	}
}

func observationOf(r result, n *nodes, now time.Time) fleet.Observation {
	var status v1alpha1.ClusterStatus
	n.count(&status, func(string) bool { return true }, now)
	return fleet.Observation{Ready: r.ready, Reason: r.reason, Message: r.message, Version: r.version, ID: r.id, Claim: r.claim,
		Nodes: status.Nodes, Capacity: status.Capacity, Allocatable: status.Allocatable, NodeShapes: status.NodeShapes, PendingPods: status.PendingPods, NamespaceQuotas: status.NamespaceQuotas}
}
