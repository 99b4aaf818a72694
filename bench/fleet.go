package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// What carrying workloads out to clusters costs, in two halves: how long one takes
// to three real clusters and back, and how one server bears a thousand simulated
// ones.

// What can be measured of it.
const (
	fleetDelay   = "fleet-delay"
	fleetMembers = "fleet-members"
)

func (r *report) measureFleet(ctx context.Context, o options, dir string) error {
	if o.what == fleetDelay {
		err := r.measureJourneys(ctx, o, filepath.Join(dir, "fleet"))
		progress("")
		fmt.Printf("\nDeployments: %d at %d/s; milliseconds since each was sent, medians of %d rounds\n\n",
			journeyCount(o), journeyRate(o), o.rounds)
		writeJourneys(os.Stdout, r.Journeys)
		return err
	}
	run, err := fleetPlan(o).measure(ctx, filepath.Join(dir, "fleet"), o)
	progress("")
	// What was measured before a step failed is worth as much as it was.
	r.Fleet = &run
	fmt.Printf("\nOne server, %d simulated members, %d Deployments, each in one of them\n\n", run.Members, run.Objects)
	writeFleet(os.Stdout, run)
	return err
}
