// Package test has the tests of the whole system: the real `atoll server`,
// three real clusters and the real kubectl, all started by this one test
// binary, which is also all of them.
//
// Most tests share one system, started by the first that needs it. Each leaves
// it as it found it: three members that are Ready, and nothing in namespace
// default. They wait for conditions, never for time to pass.
//
// A test is parallel, and so runs after the others, if it has a system of its own, or
// else harms no member, no server and nothing that it has not made, and does not mind
// what else there is in namespace default and in the members.
package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	kubernetescli "k8s.io/component-base/cli"
	"k8s.io/klog/v2"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/system"
)

// programVariable turns this binary into kubectl or atoll.
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
	roles := system.Roles()
	roles[programRole] = program
	child.Main(roles)
	// client-go tells of every connection that a killed server resets.
	klog.SetLogger(klog.Logger{}) // discards
	if err := exitHere(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	shared.close()
	closeSharedServer()
	dropDemoMirror()
	os.Exit(status)
}

// fixture is the system that the tests share.
type fixture struct {
	once sync.Once
	err  error
	dir  string

	*system.System
	members map[string]*member.Cluster
}

// shared is started by the first test that calls whole.
var shared = &fixture{members: map[string]*member.Cluster{}}

// mirrorDir is where the system's server may take providers from: the directory is empty until a test puts some there.
const mirrorDir = "mirror"

// whole returns a system with the members east, west and north, joined in this
// order.
func whole(t *testing.T) *fixture {
	t.Helper()
	shared.once.Do(func() { shared.err = shared.start() })
	if shared.err != nil {
		t.Fatalf("the system does not start: %v", shared.err)
	}
	return shared
}

func (f *fixture) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if f.dir, err = os.MkdirTemp("", "atoll-test-"); err != nil {
		return err
	}
	mirror := filepath.Join(f.dir, mirrorDir)
	if err := os.Mkdir(mirror, 0o755); err != nil {
		return err
	}
	if f.System, err = system.Open(ctx, system.Config{Dir: f.dir, Flags: []string{"--provider-mirror", mirror}}); err != nil {
		return err
	}
	started := make(chan error)
	names := []string{"east", "west", "north"}
	var mu sync.Mutex
	for _, name := range names {
		go func() {
			m, err := f.StartMember(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			f.members[name] = m
			started <- err
		}()
	}
	err = f.StartAtoll(ctx)
	for range names {
		if e := <-started; e != nil && err == nil {
			err = e
		}
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := f.Join(ctx, f.members[name]); err != nil {
			return err
		}
	}
	// Long before the tests that need it: a member's garbage collector looks for new
	// kinds twice a minute.
	_, err = f.tryKubectl(ctx, "atoll", notesManifest, "apply", "-f", "-")
	return err
}

// close stops what start started. With ATOLL_TEST_KEEP set, its logs and data
// stay.
func (f *fixture) close() {
	if f.System != nil {
		_ = f.Close()
	}
	if os.Getenv("ATOLL_TEST_KEEP") != "" {
		fmt.Fprintln(os.Stderr, "data and logs are kept in", f.dir)
	} else if f.dir != "" {
		os.RemoveAll(f.dir)
	}
}

// kubectl runs kubectl against Atoll ("atoll") or a member, and returns what
// it prints. It fails the test if kubectl fails.
func (f *fixture) kubectl(t *testing.T, cluster string, args ...string) string {
	t.Helper()
	out, err := f.tryKubectl(t.Context(), cluster, "", args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// apply applies a manifest to Atoll.
func (f *fixture) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := f.tryKubectl(t.Context(), "atoll", manifest, "apply", "-f", "-"); err != nil {
		t.Fatalf("%v", err)
	}
}

func (f *fixture) tryKubectl(ctx context.Context, cluster, stdin string, args ...string) (string, error) {
	out, err := f.run(ctx, "kubectl", f.kubeconfig(cluster), stdin, args...)
	if err != nil {
		return "", fmt.Errorf("%s: %w", cluster, err)
	}
	return out, nil
}

// atoll runs a command of the atoll binary against Atoll, and returns what it
// prints.
func (f *fixture) atoll(t *testing.T, args ...string) string {
	t.Helper()
	out, err := f.run(t.Context(), "atoll", f.Kubeconfig(), "", args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// run runs another program, by the same code: a brief command of kubectl in this
// process, and all else in one of its own.
func (f *fixture) run(ctx context.Context, program, kubeconfig, stdin string, args ...string) (string, error) {
	if program == "kubectl" && runsHere(args) {
		return f.kubectlHere(ctx, kubeconfig, stdin, args...)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), programVariable+"="+program, "KUBECONFIG="+kubeconfig,
		"HOME="+f.dir, // its discovery cache does not belong in the user's home
		"GOGC=400")    // it ends before it has much to collect
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (f *fixture) kubeconfig(cluster string) string {
	if cluster == "atoll" {
		return f.Kubeconfig()
	}
	return filepath.Join(f.dir, "members", cluster, "admin.kubeconfig")
}

// eventually polls until check is content, and fails the test with what it
// said last if that takes longer than limit.
func eventually(t *testing.T, limit time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	var last error
	for {
		asked := time.Now()
		err := check(ctx)
		if err == nil {
			if took := time.Since(began); took >= 10*time.Millisecond {
				t.Logf("%s: after %s", what, took.Round(10*time.Millisecond))
			}
			return
		}
		if last == nil || ctx.Err() == nil {
			last = err // not that the time ran out, but what was wrong before
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not after %s: %v", what, limit, last)
		case <-time.After(max(100*time.Millisecond, min(time.Since(asked), time.Second))): // those asked need the cores, too
		}
	}
}
