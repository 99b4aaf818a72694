// Package partition_test cuts real networks between the members of a stretched
// Atoll and its database. Each member, with its own server of Atoll, lives in a
// network namespace, and the database in another. Between them is a router, which
// drops what it is told to without a word, as the worst of real networks do.
//
//	go test ./test/partition -v -time 2m
//
// The router is this test binary, which runs itself again in namespaces of networks
// and mounts that have no names outside and end with it: nothing of the machine's own
// network is touched, and nothing stays behind, whatever becomes of a test.
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
)

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
	child.Main(map[string]child.Role{member.RoleName: member.Role, atoll.RoleName: atoll.Role, atoll.KeeperName: atoll.Keeper, databaseRole: runDatabase})
	klog.SetLogger(klog.Logger{}) // discards: a cut is no news here
	flag.Parse()
	runApart()
	status := m.Run()
	shared.close()
	os.Exit(status)
}
