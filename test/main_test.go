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
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/programs"
	"github.com/atoll-dev/atoll/test/providers"
)

func TestMain(m *testing.M) {
	roles := system.Roles()
	roles[programRole] = program
	programs.Main(roles)
	status := m.Run()
	shared.close()
	providers.Drop()
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

// atoll runs a command of the atoll binary against Atoll and returns its output.
func (f *fixture) atoll(t *testing.T, args ...string) string {
	t.Helper()
	out, err := f.run(t.Context(), "atoll", f.Kubeconfig(), "", args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// run runs kubectl or atoll.
func (f *fixture) run(ctx context.Context, program, kubeconfig, stdin string, args ...string) (string, error) {
	return programs.Run(ctx, f.dir, program, kubeconfig, stdin, args...)
}

func (f *fixture) kubeconfig(cluster string) string {
	if cluster == "atoll" {
		return f.Kubeconfig()
	}
	return filepath.Join(f.dir, "members", cluster, "admin.kubeconfig")
}

// eventually polls until check returns nil.
func eventually(t *testing.T, limit time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	programs.Eventually(t, limit, what, check)
}
