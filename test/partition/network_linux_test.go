package partition_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// isolationVariable is set in the process that is the router. Its value is isolated, or the reason why namespaces
// cannot be created.
const (
	isolationVariable = "ATOLL_TEST_APART"
	isolated          = "isolated"
)

// runIsolated runs the tests in a child process with its own network namespace, and exits with its exit code.
// It returns in that child process, and in a process that may not create namespaces.
func runIsolated() {
	if os.Getenv(isolationVariable) == isolated {
		return
	}
	if os.Geteuid() != 0 {
		os.Setenv(isolationVariable, "that needs root")
		return
	}
	// The child ends when the thread that started it ends.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolationVariable+"="+isolated)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	switch err := cmd.Start(); {
	case errors.Is(err, syscall.EPERM):
		// Typically root in a container.
		os.Setenv(isolationVariable, "that needs CAP_SYS_ADMIN")
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace:", err)
		os.Exit(1)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace:", err)
	}
	os.Exit(max(cmd.ProcessState.ExitCode(), 0))
}

// network is a router, which is this process, with a site at the end of each of its lines.
type network struct{ sites map[string]*site }

// site is a network namespace with one address. This process always reaches it. Other sites reach it unless
// they are cut off from each other.
type site struct {
	name    string
	address netip.Addr
	index   int // in the router's rules
}

// wrapper returns the wrapper command that starts a process in the site.
func (s *site) wrapper() []string { return []string{"ip", "netns", "exec", s.name} }

// newNetwork creates a network, or skips the test if that is not permitted.
func newNetwork(t *testing.T, sites ...string) *network {
	t.Helper()
	if why := os.Getenv(isolationVariable); why != isolated {
		t.Skip("creates network namespaces:", why)
	}
	n, err := makeNetwork(sites)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// registry is the directory in which iproute2 keeps the names of namespaces.
const registry = "/run/netns"

func makeNetwork(sites []string) (*network, error) {
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, fmt.Errorf("create a network: install iproute2: %w", err)
	}
	// Only this process and its children see this mount.
	if err := os.MkdirAll(registry, 0o755); err != nil {
		return nil, err
	}
	if err := syscall.Mount("atoll-partition", registry, "tmpfs", 0, ""); err != nil {
		return nil, fmt.Errorf("create a network: mount a private directory for names: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return nil, fmt.Errorf("create a network: enable IP forwarding: %w", err)
	}
	if err := ip("link", "set", "lo", "up"); err != nil {
		return nil, err
	}
	n := &network{sites: map[string]*site{}}
	for i, name := range sites {
		// 198.18.0.0/15 is reserved for benchmarks of networks (RFC 2544).
		prefix := "198.18." + strconv.Itoa(i+1)
		s := &site{name: name, address: netip.MustParseAddr(prefix + ".1"), index: i}
		n.sites[name] = s
		router := prefix + ".254"
		for _, args := range [][]string{
			{"netns", "add", name},
			{"link", "add", "name", name, "type", "veth", "peer", "name", "line", "netns", name},
			{"addr", "add", router + "/24", "dev", name},
			{"link", "set", name, "up"},
			{"-n", name, "addr", "add", s.address.String() + "/24", "dev", "line"},
			{"-n", name, "link", "set", "lo", "up"},
			{"-n", name, "link", "set", "line", "up"},
			{"-n", name, "route", "add", "default", "via", router},
		} {
			if err := ip(args...); err != nil {
				return nil, fmt.Errorf("create a network: %w", err)
			}
		}
	}
	return n, nil
}

// cut drops all packets between a site and others, in both directions, until heal or the end of the test.
// No one gets an error: no connection is reset, and no host is unreachable.
func (n *network) cut(t *testing.T, name string, others ...string) (heal func()) {
	t.Helper()
	if err := n.rules("add", name, others); err != nil {
		t.Fatal(err)
	}
	heal = sync.OnceFunc(func() {
		if err := n.rules("del", name, others); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(heal)
	return heal
}

func (n *network) rules(verb, name string, others []string) error {
	here := n.sites[name]
	for _, other := range others {
		there := n.sites[other]
		for _, way := range [][2]*site{{here, there}, {there, here}} {
			// A rule's preference identifies it. The kernel's own rules begin at 32766.
			preference := strconv.Itoa(1000 + 10*way[0].index + way[1].index)
			if err := ip("rule", verb, "pref", preference, "from", way[0].address.String(), "to", way[1].address.String(), "blackhole"); err != nil {
				return err
			}
		}
	}
	return nil
}

// others returns the names of all other sites.
func (n *network) others(name string) []string {
	var out []string
	for other := range n.sites {
		if other != name {
			out = append(out, other)
		}
	}
	slices.Sort(out)
	return out
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
