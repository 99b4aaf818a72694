package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestPlacedWorkspaceOfServers: a workspace is placed with two servers on one PostgreSQL. A change by the server that is not elected, in the workspace or
// of a copy, reaches the other side, also after the elected server is stopped. Meanwhile nothing is removed from the cluster.
func TestPlacedWorkspaceOfServers(t *testing.T) {
	s := newServers(t, 2)
	leads := s.leader(0, 1)
	other := 1 - leads
	member, removed := measured(t), &deletions{}
	member.OnRequest(removed.record)
	s.all[other].joinMember(t, "east", member.Member())
	team := s.all[other].createPlaced(t, "team")
	team.mustKubectl(t, "", "create", "deployment", "web", "--image=web:1")
	team.awaitPlaced(t, member, "team--default", "web")
	ready := func(n int) {
		t.Helper()
		member.Merge(deployments, "team--default", "web", fmt.Sprintf(`{"status":{"observedGeneration":%d,"replicas":1,"readyReplicas":%d,"updatedReplicas":1,"availableReplicas":%d}}`,
			member.Get(deployments, "team--default", "web").GetGeneration(), n, n))
		if n > 0 {
			team.awaitOutput(t, fmt.Sprint(n), "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
		}
	}
	ready(1)
	if err := s.stops[leads](); err != nil {
		t.Error(err)
	}
	s.leader(other)
	team.mustKubectl(t, "", "set", "image", "deployment/web", "web=web:2")
	within(t, 2*time.Minute, "the change is in the cluster", func(context.Context) error {
		u := member.Get(deployments, "team--default", "web")
		if u == nil {
			return errors.New("the Deployment is not in the cluster")
		}
		if image := imageIn(u); image != "web:2" {
			return errors.New(image)
		}
		return nil
	})
	ready(0)
	ready(1)
	removed.check(t, "after another server was elected")
}
