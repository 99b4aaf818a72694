// Package partition_test cuts real networks between the members of a stretched Atoll and its database. Each
// member, with its own server of Atoll, has a network namespace, and so has the database. The router between
// them silently drops packets, like the worst failures of real networks.
//
//	go test ./test/partition -v -time 2m
//
// The router is this test binary. It runs itself again in anonymous network and mount namespaces, which end
// with the process. So the machine's own network is never touched and nothing remains, even if a test
// crashes.
package partition_test

import (
	"flag"
	"os"
	"testing"
	"time"

	kubernetescli "k8s.io/component-base/cli"
	"k8s.io/klog/v2"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/test/isolated"
)

// thorough kills and freezes each server in turn.
var thorough = flag.Bool("thorough", false, "kill and freeze each server in turn")

var cutTime = flag.Duration("time", 15*time.Second, "how long a member is cut off from the database")

// kubectlVariable turns this binary into kubectl.
const kubectlVariable = "ATOLL_TEST_KUBECTL"

func TestMain(m *testing.M) {
	if os.Getenv(kubectlVariable) != "" {
		if err := kubernetescli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
		os.Exit(0)
	}
	child.Main(map[string]child.Role{member.RoleName: member.Role, atoll.RoleName: atoll.Role, atoll.KeeperName: atoll.Keeper, atoll.LauncherName: atoll.Launcher, databaseRole: runDatabase})
	klog.SetLogger(klog.Logger{}) // discards: errors are expected during a cut
	flag.Parse()
	isolated.Run()
	status := m.Run()
	shared.close()
	os.Exit(status)
}
