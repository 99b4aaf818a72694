package clusters

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// Observe does for a cluster in mode Pull what the controller does for others, from
// where its syncer runs: it probes and counts, and reports when something changed and
// at least every v1alpha1.HeartbeatEvery, until ctx ends.
func Observe(ctx context.Context, member *rest.Config, clk clock.WithTicker, log *slog.Logger,
	report func(context.Context, fleet.Observation) error) error {
	cfg := rest.CopyConfig(member)
	cfg.UserAgent = FieldManager
	watching, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a client of the cluster: %w", err)
	}
	cfg.Timeout = probeTimeout
	probing, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a client of the cluster: %w", err)
	}
	n := newNodes(watching)
	var running sync.WaitGroup
	running.Go(func() { n.informer.RunWithContext(ctx) })
	defer running.Wait()

	ticker := clk.NewTicker(probeEvery)
	defer ticker.Stop()
	var h health
	reported := clk.Now().Add(-v1alpha1.HeartbeatEvery)
	failing := false
	for turn := 0; ctx.Err() == nil; turn++ {
		r := probe(ctx, probing, h.last, !h.last.ready || turn%askWho == 0)
		r.at = clk.Now()
		changed := h.add(r)
		if ctx.Err() == nil && (changed || failing || clk.Since(reported) >= v1alpha1.HeartbeatEvery) {
			err := report(ctx, seen(h.last, n))
			if err != nil && !failing && ctx.Err() == nil {
				log.Warn("cannot report how the cluster fares; trying again", "error", err)
			}
			failing = err != nil
			if err == nil {
				reported = clk.Now()
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C():
		}
	}
	return nil
}

func seen(r result, n *nodes) fleet.Observation {
	var status v1alpha1.ClusterStatus
	n.count(&status)
	return fleet.Observation{Ready: r.ready, Reason: r.reason, Message: r.message, Version: r.version, ID: r.id,
		Nodes: status.Nodes, Capacity: status.Capacity, Allocatable: status.Allocatable}
}
