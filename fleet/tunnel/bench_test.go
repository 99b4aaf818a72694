package tunnel

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

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

// BenchmarkIdleTunnels measures the memory of a thousand idle tunnels. Both ends are in this process.
func BenchmarkIdleTunnels(b *testing.B) {
	const tunnels = 1000
	member := newMember(b)
	for b.Loop() {
		s := newServers(b, 1)
		before := inUse()
		for i := range tunnels {
			s.agent(fmt.Sprint("cluster-", i), Read, member)
		}
		s.opened(0, tunnels)
		b.ReportMetric((inUse()-before)/tunnels/1024, "KiB/tunnel")
	}
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

func inUse() float64 {
	runtime.GC()
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
