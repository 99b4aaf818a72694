// Package apply_test tests infrastructure as a whole: a real `atoll server`, a real provider whose resources are
// files, and the commands that plan, approve and apply.
//
// Most tests share one server, each in a namespace of its own. Tests that kill the server, or need other flags,
// start one.
package apply_test

import (
	"flag"
	"os"
	"testing"

	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/programs"
	"github.com/atoll-dev/atoll/test/providers"
)

func TestMain(m *testing.M) {
	programs.Main(system.Roles())
	flag.Parse()
	// Each of these tests runs a server and providers, or keeps the shared ones busy. Two processors can run two of
	// them at a time, whatever -parallel requests.
	if err := flag.Set("test.parallel", "2"); err != nil {
		panic(err)
	}
	status := m.Run()
	closeSharedServer()
	providers.Drop()
	os.Exit(status)
}
