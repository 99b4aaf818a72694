package etcd_test

import (
	"context"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// startReferee runs a real etcd for one test, as the reference, and connects to it. Its
// disk need not sync, because that does not change its semantics.
func startReferee(t testing.TB) *clientv3.Client { return startEtcd(t, true) }

func startEtcd(t testing.TB, unsafeNoFsync bool) *clientv3.Client {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.LogLevel = "panic"
	cfg.LogOutputs = []string{"/dev/null"}
	cfg.UnsafeNoFsync = unsafeNoFsync
	cfg.TickMs, cfg.ElectionMs = 10, 100
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = anyPort, anyPort
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatal("etcd was not ready within 30 s")
	}
	return connect(t, "http://"+server.Clients[0].Addr().String())
}

func connect(t testing.TB, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), Context: context.Background()})
	if err != nil {
		t.Fatalf("connect to %s: %v", endpoint, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// openReferee returns a new etcd as a keyspace.
func openReferee(t testing.TB) kv.Keyspace { return etcd.Remote(startReferee(t)) }

// openAtoll returns a new keyspace of Atoll in SQLite.
func openAtoll(t testing.TB) kv.Keyspace { return openAtollWith(t, mvcc.Options{}) }

func openAtollWith(t testing.TB, opts mvcc.Options) kv.Keyspace {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table, err := db.Open(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	ks, err := mvcc.Open(t.Context(), table, db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ks.Close() })
	return ks
}

// serve runs a gRPC server on a free loopback port and connects to it.
func serve(t testing.TB, ks kv.Keyspace, opts etcd.Options) (*etcd.Server, *clientv3.Client) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := etcd.NewServer(ks, opts)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.Stop(ctx)
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, connect(t, "http://"+l.Addr().String())
}

// openServed returns Atoll through an etcd client.
func openServed(t testing.TB) kv.Keyspace {
	_, client := serve(t, openAtoll(t), etcd.Options{})
	return etcd.Remote(client)
}

// openInProcess returns Atoll through the in-process client.
func openInProcess(t testing.TB) kv.Keyspace {
	client, err := etcd.InProcess(openAtoll(t), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return etcd.Remote(client.Client)
}
