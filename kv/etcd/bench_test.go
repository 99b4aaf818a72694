package etcd_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/atoll-dev/atoll/kv/etcd"
)

// BenchmarkAPIs has many clients make the API server's calls: to a real etcd, to Atoll over
// gRPC and to Atoll in process. All wait for the disk. Clients and servers share the
// process; bench/ uses separate processes.
func BenchmarkAPIs(b *testing.B) {
	for _, system := range []struct {
		name string
		open func(b *testing.B) (connect func() kubernetes.Interface)
	}{
		{"etcd", func(b *testing.B) func() kubernetes.Interface { return dialer(b, startEtcd(b, false).Endpoints()[0]) }},
		{"grpc", func(b *testing.B) func() kubernetes.Interface {
			_, c := serve(b, openAtoll(b), etcd.Options{})
			return dialer(b, c.Endpoints()[0])
		}},
		{"in process", func(b *testing.B) func() kubernetes.Interface {
			ks := openAtoll(b)
			return func() kubernetes.Interface {
				c, err := etcd.InProcess(ks, "")
				if err != nil {
					b.Fatal(err)
				}
				return c.Kubernetes
			}
		}},
	} {
		for _, clients := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/clients=%d", system.name, clients), func(b *testing.B) {
				connect := system.open(b)
				conns := make([]kubernetes.Interface, 8)
				for i := range conns {
					conns[i] = connect()
				}
				value := bytes.Repeat([]byte("x"), 1024)
				b.Run("create", func(b *testing.B) {
					share(b, clients, func(client, n int) error {
						key := fmt.Sprintf("/registry/configmaps/%d/%d/%d", b.N, client, n)
						_, err := conns[client%len(conns)].OptimisticPut(b.Context(), key, value, 0, kubernetes.PutOptions{})
						return err
					})
				})
				b.Run("get", func(b *testing.B) {
					share(b, clients, func(client, n int) error {
						_, err := conns[client%len(conns)].Get(b.Context(), "/registry/configmaps/1/0/1", kubernetes.GetOptions{})
						return err
					})
				})
			})
		}
	}
}

func dialer(b *testing.B, endpoint string) func() kubernetes.Interface {
	return func() kubernetes.Interface {
		c := &kubernetes.Client{Client: connect(b, endpoint)}
		return c
	}
}

// share distributes b.N calls over a number of concurrent clients.
func share(b *testing.B, clients int, call func(client, n int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for c := range clients {
		wg.Go(func() {
			for n := int(next.Add(1)); n <= b.N; n = int(next.Add(1)) {
				if err := call(c, n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}
