package etcd_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/kv/etcd"
)

// BenchmarkOverGRPC has the API server's calls made by many clients, of a real
// etcd and of Atoll, both over gRPC and both waiting for the disk. Clients and
// server share the process. (bench/ measures with processes of their own.)
func BenchmarkOverGRPC(b *testing.B) {
	for _, system := range []struct {
		name    string
		connect func(b *testing.B) *clientv3.Client
	}{
		{"etcd", func(b *testing.B) *clientv3.Client { return startEtcd(b, false) }},
		{"atoll", func(b *testing.B) *clientv3.Client { _, c := serve(b, openAtoll(b), etcd.Options{}); return c }},
	} {
		for _, clients := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/clients=%d", system.name, clients), func(b *testing.B) {
				endpoint := system.connect(b).Endpoints()[0]
				conns := make([]*clientv3.Client, 8)
				for i := range conns {
					conns[i] = connect(b, endpoint)
				}
				value := string(bytes.Repeat([]byte("x"), 1024))
				b.Run("create", func(b *testing.B) {
					share(b, clients, func(client, n int) error {
						key := fmt.Sprintf("/registry/configmaps/%d/%d/%d", b.N, client, n)
						_, err := conns[client%len(conns)].Txn(b.Context()).
							If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
						return err
					})
				})
				b.Run("get", func(b *testing.B) {
					share(b, clients, func(client, n int) error {
						_, err := conns[client%len(conns)].Get(b.Context(), "/registry/configmaps/1/0/1")
						return err
					})
				})
			})
		}
	}
}

// share has b.N calls made by a number of clients at once.
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
