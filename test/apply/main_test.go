// Package apply_test has the tests of infrastructure as a whole: a real `atoll server` with a real
// provider, whose resources are files, and the commands that plan, approve and apply.
//
// Most tests share one server, each in a namespace of its own. Those that kill the server, or need
// it with other flags, start one.
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
	// Each of these tests has a server and providers of its own, or uses the shared ones at full
	// speed: two at a time are as much as two processors bear, whatever -parallel says.
	if err := flag.Set("test.parallel", "2"); err != nil {
		panic(err)
	}
	status := m.Run()
	closeSharedServer()
	providers.Drop()
	os.Exit(status)
}
