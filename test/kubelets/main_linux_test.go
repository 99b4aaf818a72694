// Package kubelets_test runs Atoll's fleet on real nodes: three servers of Atoll, and three clusters with a kubelet and containerd each.
// Two clusters push; the third one pulls, and lets no connection in. Containers run, answer requests and have shells.
//
//	go test ./test/kubelets -v -run TestMoves -moves 20
//
// The test binary runs itself again in network and mount namespaces of its own, which end with the process. It needs root, and the
// packages that playground/node names; without them, the tests are skipped.
package kubelets_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/kubelet"
	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/isolated"
	"github.com/atoll-dev/atoll/test/programs"
)

var (
	moves    = flag.Int("moves", 3, "how often the app moves")
	duration = flag.Duration("time", 20*time.Second, "how long apps change under an informer")
)

func TestMain(m *testing.M) {
	roles := system.Roles()
	roles[node.RoleName] = kubelet.Role
	programs.Main(roles)
	flag.Parse()
	isolated.Run()
	status := m.Run()
	shared.close(status != 0)
	os.Exit(status)
}

// whole returns the fleet, which the first test starts, or skips the test.
func whole(t *testing.T) *stage {
	t.Helper()
	if err := node.Check(); err != nil {
		t.Skip(err)
	}
	if why := isolated.Why(); why != "" {
		t.Skip(why)
	}
	shared.once.Do(func() { shared.err = shared.start(func(part, step string) { fmt.Println(part+":", step) }) })
	if shared.err != nil {
		t.Fatalf("the fleet does not start: %v", shared.err)
	}
	return shared
}
