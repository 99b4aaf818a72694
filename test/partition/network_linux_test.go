package partition_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/atoll-dev/atoll/test/isolated"
)

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
	if why := isolated.Why(); why != "" {
		t.Skip(why)
	}
	n, err := makeNetwork(sites)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func makeNetwork(sites []string) (*network, error) {
	if err := isolated.Prepare(); err != nil {
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
			if err := isolated.IP(args...); err != nil {
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
			if err := isolated.IP("rule", verb, "pref", preference, "from", way[0].address.String(), "to", way[1].address.String(), "blackhole"); err != nil {
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
