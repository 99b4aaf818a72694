package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/atoll-dev/atoll/playground/postgres"
)

// The cost of shared APIs, in two parts: the delay of an event from one real cluster to
// another, and the load of many clusters on one server. The many clusters are simulated
// by their connections only.

// Values of -what that measure shared APIs.
const (
	sharedBoth    = "shared"
	sharedDelay   = "shared-delay"
	sharedMembers = "shared-members"
)

func (r *report) measureShared(ctx context.Context, o options, dir string) (err error) {
	var crowds []int
	for _, s := range strings.Split(o.members, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return fmt.Errorf("-members %q: %q is not a number of members", o.members, s)
		}
		crowds = append(crowds, n)
	}
	where := postgres.Config{}
	if o.dir != "" {
		where.Dir = filepath.Join(dir, "postgres-shared")
	}
	progress("starting PostgreSQL")
	db, err := postgres.Start(ctx, where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()

	if o.what != sharedMembers {
		err := r.measureDelays(ctx, o, db, filepath.Join(dir, "islands"))
		progress("")
		fmt.Printf("\nShared APIs: %d writes at %d/s in one cluster, watched in all clusters; milliseconds, medians of %d rounds\n\n",
			delayWrites(o), o.rate, o.rounds)
		writeDelays(os.Stdout, r.Delays)
		if err != nil {
			return err
		}
	}
	if o.what != sharedDelay {
		err := r.measureCrowds(ctx, crowdPlan(crowds, o.scale), db, dir)
		progress("")
		fmt.Printf("\nSimulated members: %d shared objects, %d writes/s\n\n", crowdObjects, crowdRate)
		writeCrowds(os.Stdout, r.Crowds)
		return err
	}
	return nil
}

func (r *report) measureCrowds(ctx context.Context, plan []crowd, db *postgres.Server, dir string) error {
	for i, c := range plan {
		progress(c.String())
		row, err := c.measure(ctx, db, filepath.Join(dir, fmt.Sprintf("crowd-%d", i)))
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		r.Crowds = append(r.Crowds, row)
	}
	return nil
}
