package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// The cost of workloads on member clusters, in two parts: the delay from Atoll to three
// real clusters and back, and the load of a thousand simulated clusters on one server.

// Values of -what that measure the fleet.
const (
	fleetDelay   = "fleet-delay"
	fleetMembers = "fleet-members"
)

func (r *report) measureFleet(ctx context.Context, o options, dir string) error {
	if o.what == fleetDelay {
		err := r.measureDeliveries(ctx, o, filepath.Join(dir, "fleet"))
		progress("")
		fmt.Printf("\nDeployments: %d at %d/s; milliseconds since each create was sent, medians of %d rounds\n\n",
			deliveryCount(o), deliveryRate(o), o.rounds)
		writeDeliveries(os.Stdout, r.Deliveries)
		return err
	}
	run, err := fleetPlan(o).measure(ctx, filepath.Join(dir, "fleet"), o)
	progress("")
	// The steps before a failed one are reported as well.
	r.Fleet = &run
	fmt.Printf("\nOne server, %d simulated members, %d Deployments, each in one of them\n\n", run.Members, run.Objects)
	writeFleet(os.Stdout, run)
	return err
}
