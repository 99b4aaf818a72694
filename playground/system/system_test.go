package system_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/system"
)

func TestMain(m *testing.M) {
	child.Main(system.Roles())
	os.Exit(m.Run())
}

// TestStretched runs Atoll stretched over two members. It continues without one of them, whose
// server exits with it, until that member returns.
func TestStretched(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	// Not t.TempDir: the account that runs PostgreSQL must be able to enter the directory.
	dir, err := os.MkdirTemp("", "atoll-system-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s, err := system.Open(ctx, system.Config{Dir: dir, Stretched: []string{"east", "west"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if want := []string{"atoll-east", "atoll-west"}; !slices.Equal(s.Servers(), want) {
		t.Errorf("servers %v, want %v", s.Servers(), want)
	}
	started := make(chan error, 1)
	go func() { started <- s.StartAtoll(ctx) }()
	west, err := s.StartMember(ctx, "west")
	if err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	atolls := [2]kubernetes.Interface{client(t, s.KubeconfigOf(0)), client(t, s.KubeconfigOf(1))}
	serves := func(i int) error {
		_, err := atolls[i].CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		return err
	}

	if system.ServesMembers() {
		wantServersOf(ctx, t, atolls[0], "east", "west")
	}

	// The process of west ends as if killed from outside.
	west.Kill()
	select {
	case exit := <-s.Exits():
		if exit.Part != "west" || exit.Err == nil {
			t.Errorf("exit: %+v", exit)
		}
	case <-ctx.Done():
		t.Fatal("no exit of west reported")
	}
	if err := serves(1); err == nil {
		t.Error("the server of west still answers")
	}
	must(t, serves(0))
	if err := s.Pull("west"); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("pull a part that has exited: %v", err)
	}

	must(t, s.Return(ctx, "west"))
	must(t, serves(1))
	if err := s.Return(ctx, "west"); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("return a running part: %v", err)
	}

	// Pull the server alone, and then the member with its server.
	must(t, s.Pull("atoll-west"))
	if err := serves(1); err == nil {
		t.Error("the server that was pulled still answers")
	}
	_, err = client(t, west.Kubeconfig).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	must(t, s.Pull("west"))
	must(t, serves(0))
	if err := s.Pull("north"); err == nil || !strings.Contains(err.Error(), "west, atoll-east") {
		t.Errorf("pull an unknown part: %v", err)
	}
	select {
	case exit := <-s.Exits():
		t.Errorf("an expected exit is reported: %+v", exit)
	default:
	}
}

// wantServersOf waits until a server's Lease announces an endpoint for each cluster.
func wantServersOf(ctx context.Context, t *testing.T, atoll kubernetes.Interface, clusters ...string) {
	t.Helper()
	var got []string
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		leases, err := atoll.CoordinationV1().Leases(v1alpha1.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.MemberEndpointLabel})
		if err != nil {
			return false, err
		}
		got = nil
		for _, l := range leases.Items {
			got = append(got, l.Labels[v1alpha1.MemberEndpointLabel])
		}
		slices.Sort(got)
		return slices.Equal(got, clusters), nil
	})
	if err != nil {
		t.Fatalf("%v: servers of %v, want %v", err, got, clusters)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func client(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	config.QPS = -1
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	return c
}
