package workspaces

import (
	"runtime/pprof"
	"strings"
	"testing"
)

// TestClose: a server that is closed leaves nothing running that holds its chain, which takes a hundred megabytes.
func TestClose(t *testing.T) {
	// Each storage of a resource has a goroutine in this function until it is destroyed.
	running := func() int {
		var all strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
			t.Fatal(err)
		}
		return strings.Count(all.String(), "startObservingCount in goroutine")
	}
	before := running()
	s := newStage(t, "a")
	s.want(200, s.as(admin, "GET", "/clusters/a/api/v1/namespaces/default", ""))
	if running() <= before {
		t.Fatal("this test looks for goroutines that do not exist any more")
	}
	if err := s.server.Close(); err != nil {
		t.Fatal(err)
	}
	s.eventually("its storages are destroyed", func() bool { return running() <= before })
}
