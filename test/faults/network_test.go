package faults_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// networkVariable names the network namespace that a child is to live in.
const networkVariable = "ATOLL_FAULTS_NETWORK"

// enterNetwork has a child that is to live in a network of its own begin again
// there. It returns in every other process.
func enterNetwork() {
	name := os.Getenv(networkVariable)
	if name == "" {
		return
	}
	os.Unsetenv(networkVariable)
	err := func() error {
		ip, err := exec.LookPath("ip")
		if err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return syscall.Exec(ip, append([]string{"ip", "netns", "exec", name, self}, os.Args[1:]...), os.Environ())
	}()
	fmt.Fprintf(os.Stderr, "enter network %s: %v\n", name, err)
	os.Exit(1)
}

// network is three network namespaces of this machine, one for each server, and
// a wire from each to the machine, where the database is.
type network struct{ wires [servers]wire }

// wire is a pair of virtual devices, one in the machine's own namespace (here)
// and one in a server's (there).
type wire struct {
	namespace                 string
	hereDevice, thereDevice   string
	hereAddress, thereAddress netip.Addr
}

// newNetwork makes the network, or skips the test where that is not possible.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("makes network namespaces, which needs Linux and root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("makes network namespaces, which needs iproute2's ip:", err)
	}
	w := &network{}
	// 198.18.0.0/15 is for tests of networks (RFC 2544). Other runs on this
	// machine have other process ids.
	base := 198<<24 | 18<<16 | uint32(os.Getpid()&0x1fff)<<4
	address := func(n uint32) netip.Addr {
		return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	for n := range w.wires {
		id := fmt.Sprintf("at%d%s", os.Getpid(), serverName(n))
		at := base + uint32(4*n)
		l := wire{namespace: id, hereDevice: id + "h", thereDevice: id + "t", hereAddress: address(at + 1), thereAddress: address(at + 2)}
		if err := ip("netns", "add", l.namespace); err != nil {
			t.Skip("network namespaces cannot be made here:", err)
		}
		t.Cleanup(func() { _ = ip("netns", "del", l.namespace) })
		if err := ip("link", "add", l.hereDevice, "type", "veth", "peer", "name", l.thereDevice, "netns", l.namespace); err != nil {
			t.Skip("virtual network devices cannot be made here:", err)
		}
		t.Cleanup(func() { _ = ip("link", "del", l.hereDevice) })
		for _, args := range [][]string{
			{"addr", "add", l.hereAddress.String() + "/30", "dev", l.hereDevice},
			{"link", "set", l.hereDevice, "up"},
			{"-n", l.namespace, "addr", "add", l.thereAddress.String() + "/30", "dev", l.thereDevice},
			{"-n", l.namespace, "link", "set", "lo", "up"},
			{"-n", l.namespace, "link", "set", l.thereDevice, "up"},
			{"-n", l.namespace, "route", "add", "default", "via", l.hereAddress.String()},
		} {
			if err := ip(args...); err != nil {
				t.Fatal(err)
			}
		}
		w.wires[n] = l
	}
	return w
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// nobody is the hardware address of a device that is not there.
const nobody = "02:00:00:00:00:01"

// cut has packets get lost in one direction, or both: they are sent to a device
// that is not there. Nobody is told.
func (l wire) cut(d pgproxy.Direction) error {
	return l.neighbours(d, "replace", "lladdr", nobody, "nud", "permanent")
}

// mend ends a cut: both sides find out where the other is.
func (l wire) mend(d pgproxy.Direction) error { return l.neighbours(d, "del") }

func (l wire) neighbours(d pgproxy.Direction, verb string, how ...string) error {
	if d&pgproxy.ToServer != 0 { // of the database, that is: from there to here
		args := []string{"-n", l.namespace, "neigh", verb, l.hereAddress.String(), "dev", l.thereDevice}
		if err := ip(append(args, how...)...); err != nil {
			return err
		}
	}
	if d&pgproxy.ToClient != 0 {
		args := []string{"neigh", verb, l.thereAddress.String(), "dev", l.hereDevice}
		return ip(append(args, how...)...)
	}
	return nil
}

// TestNetwork cuts real networks: each server has one of its own, over which it
// reaches the database, and packets get lost there, in one direction or both, as
// when a switch fails. What the kernel makes of that, resending and giving up,
// no proxy can imitate. Clients reach the servers all the time.
func TestNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL")
	}
	if os.Getenv(datastoreVariable) != "" {
		t.Skip("cuts connections to a database on this machine")
	}
	w := newNetwork(t)
	t.Parallel()
	st := newStageAt(t, net.JoinHostPort(w.wires[0].hereAddress.String(), "0"))
	st.network = w
	p := &plan{seed: seedOf(t), lasts: 6 * time.Second, enough: 100, recovery: recovery, processes: true}
	r := rand.New(rand.NewPCG(p.seed, 0))
	// One is cut off for longer than a call may take: somebody must notice.
	first := step{at: 500 * time.Millisecond, server: r.IntN(servers), kind: severs, direction: pgproxy.Both, lasts: 2500 * time.Millisecond}
	p.steps = append(p.steps, first)
	for n := range servers {
		at := p.pause(r)
		if n == first.server {
			at += first.at + first.lasts
		}
		for ; at < p.lasts; at += p.pause(r) {
			s := step{at: at, server: n, kind: severs, direction: pgproxy.Direction(1 + r.IntN(3)), lasts: millis(r, 100, 1200)}
			switch r.IntN(8) {
			case 0:
				s.kind, s.lasts = kills, millis(r, 10, 400)
			case 1: // longer than the database lets a silent session hold anything
				s.lasts = millis(r, 4000, 6000)
			}
			p.steps = append(p.steps, s)
			at += s.lasts
		}
	}
	p.sort()
	run, o := perform(t, st, p)
	run.judge(t, o)
	if o.Changes < 50 {
		t.Error("too little happened to mean anything:", o.Totals)
	}
	if o.Refused+o.Unknown == 0 {
		t.Error("no call failed: were the networks cut?")
	}
}
