package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/server"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestWorkspaceFleetLimit: as many workspaces as the limit have running fleets. The Clusters of others have a condition that says why, and what to
// do, also those that are created while the workspace waits; nothing is written to them. The first one that waits continues when another
// workspace has no Clusters any more. After a restart, the same fleets run.
func TestWorkspaceFleetLimit(t *testing.T) {
	cfg := server.Config{DataDir: t.TempDir(), WorkspaceMemberNetworks: loopbackMembers()}
	const limit = 2
	s := startFleets(t, cfg, func(s *server.Server) { s.LimitFleets(limit) })
	t.Cleanup(func() { _ = s.stop() })
	names := []string{"d", "c", "b", "a"} // not the order in which they get places after a restart if that were the order of their names
	members := map[string]*fakeapi.Server{}
	for _, name := range names {
		s.createWorkspace(t, name)
		members[name] = measured(t)
		s.in(name).joinMember(t, "east", members[name].Member())
		s.in(name).mustKubectl(t, "", "create", "deployment", "web", "--image=web")
		if name == "d" || name == "c" {
			s.in(name).awaitPlaced(t, members[name], "default", "web")
		}
	}
	waits := func(name, cluster string) {
		t.Helper()
		if message := s.in(name).awaitReason(t, cluster, "FleetLimit"); !strings.Contains(message, "the fleets of 2 workspaces, which is the limit") ||
			!strings.Contains(message, "or join the cluster in the root (-w root)") {
			t.Error(message)
		}
		if writes := members[name].Writes(); len(writes) > 0 {
			t.Errorf("%s waits, and its cluster was written to: %v", name, writes)
		}
	}
	waits("b", "east")
	waits("a", "east")
	s.in("a").joinMember(t, "west", members["a"].Member())
	waits("a", "west")
	s.in("a").mustKubectl(t, "", "delete", "cluster", "west", "--timeout=60s")

	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s = startFleets(t, cfg, func(s *server.Server) { s.LimitFleets(limit) })
	for _, name := range []string{"d", "c"} {
		s.in(name).mustKubectl(t, "", "set", "image", "deployment/web", "web=web:2")
		within(t, time.Minute, name+" keeps its place after a restart", func(context.Context) error {
			if got := imageOf(members[name], "web"); got != "web:2" {
				return fmt.Errorf("image %s", got)
			}
			return nil
		})
	}
	waits("b", "east")
	s.in("d").mustKubectl(t, "", "delete", "cluster", "east", "--timeout=60s")
	within(t, time.Minute, "the first one that waits begins", func(context.Context) error {
		if members["b"].Get(deployments, "default", "web") == nil {
			out, _ := s.in("b").kubectl(t, "", "get", "clusters", "-o", "yaml")
			return errors.New(out)
		}
		return nil
	})
	waits("a", "east")
	for _, name := range []string{"c", "b", "a"} {
		s.in(name).mustKubectl(t, "", "delete", "cluster", "east", "--timeout=90s")
		s.awaitNoFleet(t, name)
	}
}
