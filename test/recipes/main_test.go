// Package recipes_test runs the commands of docs/recipes.md and of the README from the pages themselves,
// with real servers, a PostgreSQL and a load balancer. Only paths, ports and host names are replaced, and
// systemctl by a small manager of the page's units.
package recipes_test

import (
	"os"
	"testing"

	kubernetescli "k8s.io/component-base/cli"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
)

// programVariable turns this binary into atoll or kubectl.
const programVariable = "ATOLL_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(programVariable) {
	case "kubectl":
		if err := kubernetescli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
		os.Exit(0)
	case "atoll":
		os.Exit(cli.Main(append([]string{"atoll"}, os.Args[1:]...), os.Stdout, os.Stderr))
	}
	child.Main(map[string]child.Role{atoll.RoleName: atoll.Role, atoll.KeeperName: atoll.Keeper, atoll.LauncherName: atoll.Launcher})
	os.Exit(m.Run())
}
