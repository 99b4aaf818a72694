package node

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// registry is the directory in which iproute2 keeps the names of network namespaces.
const registry = "/run/netns"

// Network is a network namespace with a line to this process's own. Both ends of the line have an address, and the pods
// in the namespace have a range.
type Network struct {
	Namespace string
	// Outside is this process's end of the line, and Inside the other one.
	Outside, Inside net.IP
	Pods            string // a CIDR
}

// networks serializes the choice of addresses.
var networks sync.Mutex

// NewNetwork creates the network of a cluster, or creates it again. Its name and addresses are the same each time for one
// directory, unless this machine has the addresses for something else, and others for other directories. They are from
// 198.18.0.0/15, which is reserved for benchmarks of networks (RFC 2544).
func NewNetwork(dir, name string) (*Network, error) {
	networks.Lock()
	defer networks.Unlock()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	hash := fnv.New32a()
	hash.Write([]byte(dir))
	n := &Network{Namespace: fmt.Sprintf("atoll-%s-%08x", name, hash.Sum32())}
	_ = n.Remove() // an earlier run may have left it
	subnet, err := chooseSubnet(filepath.Join(dir, "subnet"))
	if err != nil {
		return nil, err
	}
	n.Outside, n.Inside = net.IPv4(198, 18, subnet, 1), net.IPv4(198, 18, subnet, 2)
	n.Pods = fmt.Sprintf("198.19.%d.0/24", subnet)
	device := fmt.Sprintf("at%08x", hash.Sum32()) // Linux limits names to 15 bytes
	for _, args := range [][]string{
		{"netns", "add", n.Namespace},
		{"link", "add", "name", device, "type", "veth", "peer", "name", "line", "netns", n.Namespace},
		{"addr", "add", n.Outside.String() + "/24", "dev", device},
		{"link", "set", device, "up"},
		{"-n", n.Namespace, "addr", "add", n.Inside.String() + "/24", "dev", "line"},
		{"-n", n.Namespace, "link", "set", "lo", "up"},
		{"-n", n.Namespace, "link", "set", "line", "up"},
		{"-n", n.Namespace, "route", "add", "default", "via", n.Outside.String()},
		{"route", "add", n.Pods, "via", n.Inside.String()},
	} {
		if err := ip(args...); err != nil {
			return nil, errors.Join(fmt.Errorf("create a network namespace for %s: %w", name, err), n.Remove())
		}
	}
	return n, nil
}

// Wrapper is the command that runs another one in the network.
func (n *Network) Wrapper() []string {
	return []string{"nsenter", "--net=" + filepath.Join(registry, n.Namespace)}
}

// Remove deletes the namespace, and with it the line and its routes. It ends when the last process in it has.
func (n *Network) Remove() error { return ip("netns", "del", n.Namespace) }

// chooseSubnet returns the third byte of addresses that this machine does not have: that of an earlier run, which is in the
// file, or a free one.
func chooseSubnet(file string) (byte, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return 0, err
	}
	used := map[byte]bool{}
	for _, a := range addresses {
		prefix, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if four := prefix.IP.To4(); four != nil && four[0] == 198 && four[1] == 18 {
			used[four[2]] = true
		}
	}
	if raw, err := os.ReadFile(file); err == nil && len(raw) == 1 && !used[raw[0]] {
		return raw[0], nil
	}
	for i := byte(1); i < 255; i++ {
		if !used[i] {
			return i, os.WriteFile(file, []byte{i}, 0o600)
		}
	}
	return 0, errors.New("all addresses of 198.18.0.0/16 are in use: delete the network namespaces of playgrounds that no longer run (ip netns)")
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
