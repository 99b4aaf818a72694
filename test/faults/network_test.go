package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// networkVariable has the network namespace that a child runs in.
const networkVariable = "ATOLL_FAULTS_NETWORK"

// enterNetwork executes this binary again in the network namespace of the variable. Without the variable
// it returns.
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

// dialRole connects to an address, and is ready when it has.
const dialRole = "dialer"

func dial(ctx context.Context, link *child.Link) error {
	var address string
	if err := link.Config(&address); err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	conn.Close()
	if err := link.Ready("connected"); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// skipIfUnreachable skips the test if the server's end of a wire cannot connect to the host's, for instance because of
// a firewall.
func (l *wire) skipIfUnreachable(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(l.hostAddress.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	p, err := child.Start(child.Spec{Role: dialRole, Name: "dialer", Config: listener.Addr().String(),
		LogFile: filepath.Join(t.TempDir(), "dialer.log"), Env: []string{networkVariable + "=" + l.namespace}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var result string
	if err := p.WaitReady(ctx, &result); err != nil {
		t.Skip("a network namespace cannot reach the machine (a firewall?):", err)
	}
}

// network has three network namespaces, one for each server, each with a wire to the host, where the
// database is.
type network struct{ wires [servers]*wire }

// wire is a veth pair, with one device in the host's namespace and the other in a server's.
type wire struct {
	namespace                  string
	hostDevice, serverDevice   string
	hostAddress, serverAddress netip.Addr

	mu sync.Mutex
	// cuts counts the cuts in each direction that have not ended: on a busy machine, one may end after the
	// next has begun.
	cuts map[pgproxy.Direction]int
}

// newNetwork creates the network, or skips the test where that is not possible.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("creates network namespaces, which needs Linux and root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("creates network namespaces, which needs iproute2's ip:", err)
	}
	w := &network{}
	// 198.18.0.0/15 is reserved for benchmarks of networks (RFC 2544). The process id distinguishes
	// other runs on this machine.
	base := 198<<24 | 18<<16 | uint32(os.Getpid()&0x1fff)<<4
	address := func(n uint32) netip.Addr {
		return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	for n := range w.wires {
		id := fmt.Sprintf("at%d%s", os.Getpid(), serverName(n))
		at := base + uint32(4*n)
		l := &wire{cuts: map[pgproxy.Direction]int{}, namespace: id, hostDevice: id + "h", serverDevice: id + "t", hostAddress: address(at + 1), serverAddress: address(at + 2)}
		if err := ip("netns", "add", l.namespace); err != nil {
			t.Skip("cannot create network namespaces:", err)
		}
		t.Cleanup(func() { _ = ip("netns", "del", l.namespace) })
		if err := ip("link", "add", l.hostDevice, "type", "veth", "peer", "name", l.serverDevice, "netns", l.namespace); err != nil {
			t.Skip("cannot create veth devices:", err)
		}
		t.Cleanup(func() { _ = ip("link", "del", l.hostDevice) })
		for _, args := range [][]string{
			{"addr", "add", l.hostAddress.String() + "/30", "dev", l.hostDevice},
			{"link", "set", l.hostDevice, "up"},
			{"-n", l.namespace, "addr", "add", l.serverAddress.String() + "/30", "dev", l.serverDevice},
			{"-n", l.namespace, "link", "set", "lo", "up"},
			{"-n", l.namespace, "link", "set", l.serverDevice, "up"},
			{"-n", l.namespace, "route", "add", "default", "via", l.hostAddress.String()},
		} {
			if err := ip(args...); err != nil {
				t.Fatal(err)
			}
		}
		w.wires[n] = l
		l.skipIfUnreachable(t)
	}
	return w
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// absentDevice is the hardware address of a device that does not exist.
const absentDevice = "02:00:00:00:00:01"

// cut drops packets in one direction or both, by sending them to a device that does not exist. Neither
// side gets an error.
func (l *wire) cut(d pgproxy.Direction) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.each(d, func(one pgproxy.Direction) error {
		if l.cuts[one]++; l.cuts[one] > 1 {
			return nil
		}
		return l.neighbour(one, "replace", "lladdr", absentDevice, "nud", "permanent")
	})
}

// restore ends a cut. When the last one of a direction ends, both sides resolve the other's hardware
// address again.
func (l *wire) restore(d pgproxy.Direction) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.each(d, func(one pgproxy.Direction) error {
		if l.cuts[one]--; l.cuts[one] > 0 {
			return nil
		}
		return l.neighbour(one, "del")
	})
}

// each calls do with each single direction in d.
func (l *wire) each(d pgproxy.Direction, do func(one pgproxy.Direction) error) error {
	for _, one := range []pgproxy.Direction{pgproxy.ToServer, pgproxy.ToClient} {
		if d&one == 0 {
			continue
		}
		if err := do(one); err != nil {
			return err
		}
	}
	return nil
}

// neighbour changes where packets of one direction go. Those to the server of the database come from a
// server of Atoll.
func (l *wire) neighbour(d pgproxy.Direction, verb string, how ...string) error {
	args := []string{"neigh", verb, l.serverAddress.String(), "dev", l.hostDevice}
	if d == pgproxy.ToServer {
		args = []string{"-n", l.namespace, "neigh", verb, l.hostAddress.String(), "dev", l.serverDevice}
	}
	return ip(append(args, how...)...)
}

// TestNetwork cuts real networks. Each server reaches the database through a network of its own, which
// drops packets in one direction or both, like a failed switch. A proxy cannot imitate how the kernel
// resends and gives up. Clients reach the servers all the time.
func TestNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL")
	}
	if os.Getenv(datastoreVariable) != "" {
		t.Skip("cuts connections to a database on this machine")
	}
	w := newNetwork(t)
	t.Parallel()
	st := newStageAt(t, net.JoinHostPort(w.wires[0].hostAddress.String(), "0"))
	st.network = w
	p := &plan{seed: seedOf(t), lasts: 6 * time.Second, minRevision: 100, recovery: recovery, processes: true}
	r := rand.New(rand.NewPCG(p.seed, 0))
	// One server is cut off for longer than a call may take, so that some calls fail.
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
			case 1: // longer than the database lets a silent session hold locks
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
		t.Error("too few changes to be conclusive:", o.Totals)
	}
	if o.Refused+o.Unknown == 0 {
		t.Error("no call failed, so the networks were probably not cut")
	}
}
