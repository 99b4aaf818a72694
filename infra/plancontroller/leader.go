package plancontroller

import (
	"context"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/controllers"
)

// LeaseNamespace and LeaseName identify the Lease by which the server that runs plans and applies is elected.
const (
	LeaseNamespace = metav1.NamespaceSystem
	LeaseName      = "atoll-infra"
)

// Run campaigns, leads, and campaigns again until ctx ends. Errors in between are logged and retried.
func (c *Controller) Run(ctx context.Context) error {
	election := controllers.Election{REST: c.cfg.REST, Namespace: LeaseNamespace, Name: LeaseName,
		Identity: c.cfg.Identity, SingleServer: c.cfg.SingleServer, Clock: c.cfg.Clock, Log: c.cfg.Log}
	election.Run(ctx, c.Lead)
	return nil
}

// Lead runs one session until ctx ends, without an election: the caller makes sure that there is no other session of this control plane.
func (c *Controller) Lead(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.runSession(ctx) })
	for _, run := range c.cfg.LeaderRunnables {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}
