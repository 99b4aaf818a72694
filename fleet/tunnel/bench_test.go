package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/test/fakeapi"
)

// BenchmarkGet compares a small request to a cluster directly, through its tunnel, and through that by way of another server.
func BenchmarkGet(b *testing.B) {
	s := newServers(b, 2)
	member := newMember(b)
	s.agent("north", Read, member)
	s.connected(0, "north")
	s.known(1, "north")
	direct, err := rest.HTTPClientFor(&rest.Config{Host: member.URL, TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(member)}})
	if err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct {
		name, host string
		client     *http.Client
	}{{"direct", member.URL, direct}, {"tunnel", "http://north", s.client(0, "north")}, {"other-server", "http://north", s.client(1, "north")}} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				if code, body, err := get(way.client, way.host+"/api/v1/pods"); err != nil || code != http.StatusOK {
					b.Fatal(code, body, err)
				}
			}
		})
	}
}

// idleTunnels is how many tunnels BenchmarkIdleTunnels opens.
const idleTunnels = 1000

// BenchmarkIdleTunnels measures the memory of a thousand idle tunnels: of both ends in this process, and of the server's end
// alone, when the syncers run in another process.
func BenchmarkIdleTunnels(b *testing.B) {
	b.Run("both", func(b *testing.B) {
		member := newMember(b)
		measureIdle(b, func(s *servers) {
			for i := range idleTunnels {
				s.agent(fmt.Sprint("cluster-", i), Read, member)
			}
		})
	})
	b.Run("server", func(b *testing.B) {
		measureIdle(b, func(s *servers) { s.agentsElsewhere(b) })
	})
}

func measureIdle(b *testing.B, open func(*servers)) {
	for b.Loop() {
		s := newServers(b, 1)
		before := inUse()
		open(s)
		s.opened(0, idleTunnels)
		fakeapi.Eventually(b, "all Leases are written", func() error {
			leases, err := s.hubs[0].peers.list(b.Context())
			if err == nil && len(leases) < idleTunnels {
				err = fmt.Errorf("%d of %d", len(leases), idleTunnels)
			}
			return err
		})
		b.ReportMetric((inUse()-before)/idleTunnels/1024, "KiB/tunnel")
	}
}

// The environment of a process whose syncers open tunnels for BenchmarkIdleTunnels.
const (
	agentsServer    = "ATOLL_TEST_TUNNEL_SERVER"
	agentsAuthority = "ATOLL_TEST_TUNNEL_AUTHORITY"
)

// agentsElsewhere runs the syncers of idle tunnels in another process until the benchmark ends.
func (s *servers) agentsElsewhere(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestAgentsOfBenchmark$")
	cmd.Env = append(os.Environ(), agentsServer+"="+s.https[0].URL, agentsAuthority+"="+string(pemOf(s.https[0])))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
}

// TestAgentsOfBenchmark is the other process of BenchmarkIdleTunnels. It ends with its standard input.
func TestAgentsOfBenchmark(t *testing.T) {
	server := os.Getenv(agentsServer)
	if server == "" {
		t.Skip("runs only as a process of BenchmarkIdleTunnels")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(os.Getenv(agentsAuthority)))
	for i := range idleTunnels {
		cluster := fmt.Sprint("cluster-", i)
		agent := Agent{Cluster: cluster, Level: Read, Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}, Member: &rest.Config{Host: "https://localhost"},
			Endpoint: func() Endpoint {
				return Endpoint{URL: server + "/services/clusters/" + cluster, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, Ended: context.Background()}
			}}
		go func() { _ = agent.Run(t.Context()) }()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// opened waits until a server has a number of tunnels.
func (s *servers) opened(server, want int) {
	s.t.Helper()
	fakeapi.Eventually(s.t, "the tunnels are open", func() error {
		if have := s.hubs[server].Open(); have < want {
			return fmt.Errorf("%d of %d", have, want)
		}
		return nil
	})
}

// inUse returns the memory of objects and stacks. Each collection halves the stacks that are mostly unused.
func inUse() float64 {
	for range 4 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// BenchmarkServerStops measures how long fifty syncers need to open their tunnels to another server when theirs stops.
func BenchmarkServerStops(b *testing.B) {
	const syncers = 50
	member := newMember(b)
	for b.Loop() {
		s := newServers(b, 2)
		var all sync.WaitGroup
		for i := range syncers {
			all.Go(func() { s.agent(fmt.Sprint("cluster-", i), Read, member) })
		}
		all.Wait()
		s.opened(0, syncers)
		began := time.Now()
		s.current.Store(1)
		_ = s.hubs[0].Close()
		s.https[0].CloseClientConnections()
		s.opened(1, syncers)
		b.ReportMetric(time.Since(began).Seconds(), "s/all")
	}
}
