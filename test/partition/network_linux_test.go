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

// apartVariable is set in the process that is the router: to apart, or to the reason
// why it may not be one.
const (
	apartVariable = "ATOLL_TEST_APART"
	apart         = "apart"
)

// runApart runs the tests in a process of its own, apart from the machine's network,
// and ends this one with it. It returns in that process, and where namespaces may not
// be made.
func runApart() {
	if os.Getenv(apartVariable) == apart {
		return
	}
	if os.Geteuid() != 0 {
		os.Setenv(apartVariable, "only root may")
		return
	}
	// The child is to end with the thread that started it.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), apartVariable+"="+apart)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	switch err := cmd.Start(); {
	case errors.Is(err, syscall.EPERM):
		// Root in a container, as a rule.
		os.Setenv(apartVariable, "this root may not, it lacks CAP_SYS_ADMIN")
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "run the tests apart from the machine's network:", err)
		os.Exit(1)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		fmt.Fprintln(os.Stderr, "run the tests apart:", err)
	}
	os.Exit(max(cmd.ProcessState.ExitCode(), 0))
}

// network is a router, this process, with a site at the end of each of its lines.
type network struct{ sites map[string]*site }

// site is a network of its own, with one address. What runs there is reached by this
// process always, and by the other sites unless they are cut off from each other.
type site struct {
	name    string
	address netip.Addr
	rank    int // in the router's rules
}

// within is the command by which a process is started there.
func (s *site) within() []string { return []string{"ip", "netns", "exec", s.name} }

// newNetwork makes one, or skips the test without the right to.
func newNetwork(t *testing.T, sites ...string) *network {
	t.Helper()
	if why := os.Getenv(apartVariable); why != apart {
		t.Skip("cuts networks of its own, so it makes network namespaces:", why)
	}
	n, err := makeNetwork(sites)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// registry is where iproute2 keeps the names of namespaces.
const registry = "/run/netns"

func makeNetwork(sites []string) (*network, error) {
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, fmt.Errorf("make a network: install iproute2: %w", err)
	}
	// Names in a directory that only this process and its children see.
	if err := os.MkdirAll(registry, 0o755); err != nil {
		return nil, err
	}
	if err := syscall.Mount("atoll-partition", registry, "tmpfs", 0, ""); err != nil {
		return nil, fmt.Errorf("make a network: hide the names of its parts: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return nil, fmt.Errorf("make a network: have this end of it pass packets on: %w", err)
	}
	if err := ip("link", "set", "lo", "up"); err != nil {
		return nil, err
	}
	n := &network{sites: map[string]*site{}}
	for i, name := range sites {
		// 198.18.0.0/15 is for tests of networks (RFC 2544).
		prefix := "198.18." + strconv.Itoa(i+1)
		s := &site{name: name, address: netip.MustParseAddr(prefix + ".1"), rank: i}
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
				return nil, fmt.Errorf("make a network: %w", err)
			}
		}
	}
	return n, nil
}

// cut has the router lose all packets between a site and others, both ways, until heal
// or the end of the test. Nobody is told: no connection is reset, no host is unreachable.
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
			// A rule's preference is its name. Those of the kernel begin at 32766.
			preference := strconv.Itoa(1000 + 10*way[0].rank + way[1].rank)
			if err := ip("rule", verb, "pref", preference, "from", way[0].address.String(), "to", way[1].address.String(), "blackhole"); err != nil {
				return err
			}
		}
	}
	return nil
}

// others are all sites but one.
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
