package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/atoll-dev/atoll/kv"
	atolletcd "github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/server"
)

// The child processes' roles, and the systems' titles in tables.
const (
	etcdRole      = "etcd"
	atollRole     = "atoll-kv"
	inProcessRole = "atoll-in-process"

	etcdTitle      = "etcd"
	atollTitle     = "atoll"
	inProcessTitle = "atoll-in-process"
)

// runEtcd serves a single etcd with its defaults, which wait for the disk
// before a write is acknowledged. Only its quota is raised.
func runEtcd(ctx context.Context, link *child.Link) error {
	var cfg storeConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Dir = cfg.Dir
	c.LogLevel = "error"
	c.QuotaBackendBytes = 8 << 30
	client, peer := freeURL(), freeURL()
	c.ListenClientUrls, c.AdvertiseClientUrls = client, client
	c.ListenPeerUrls, c.AdvertisePeerUrls = peer, peer
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer etcd.Close()
	select {
	case <-etcd.Server.ReadyNotify():
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := link.Ready(endpoint{Address: "http://" + etcd.Clients[0].Addr().String()}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-etcd.Err():
		return fmt.Errorf("etcd: %w", err)
	}
}

// runAtollKV serves a keyspace in SQLite as `atoll kv serve` does.
func runAtollKV(ctx context.Context, link *child.Link) error {
	var cfg storeConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	keyspace, closeAll, err := openKeyspace(ctx, cfg)
	if err != nil {
		return err
	}
	defer closeAll()
	return atolletcd.ListenAndServe(ctx, atolletcd.ServeConfig{
		Keyspace: keyspace,
		Name:     keyspaceName,
		Listen:   []string{"127.0.0.1:0"},
		Ready: func(addrs []net.Addr) {
			_ = link.Ready(endpoint{Address: "http://" + addrs[0].String()})
		},
	})
}

// runInProcess runs one workload on a keyspace in this process, through the client that
// the API server uses, and reports the measurements.
func runInProcess(ctx context.Context, link *child.Link) error {
	var cfg inProcessConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	keyspace, closeAll, err := openKeyspace(ctx, cfg.storeConfig)
	if err != nil {
		return err
	}
	defer closeAll()
	client, err := atolletcd.InProcess(keyspace, keyspaceName)
	if err != nil {
		return err
	}
	defer client.Close()
	clients := []*kubernetes.Client{client}
	// The served stores have been running for a while; this process has not.
	warm := workload{Kind: "writes", Clients: 16, Count: 2000, Prefix: "/warm" + cfg.Workload.Prefix}
	if _, err := warm.run(ctx, clients); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	measured, err := cfg.Workload.run(ctx, clients)
	if err != nil {
		return err
	}
	if err := link.Ready(measured); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

const keyspaceName = "bench"

func openKeyspace(ctx context.Context, cfg storeConfig) (kv.Keyspace, func(), error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	url := cfg.Datastore
	if url == "" {
		url = server.SQLiteURL(filepath.Join(dir, "atoll.db"))
	}
	db, err := server.OpenDatastore(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	keyspace, err := db.Keyspace(ctx, keyspaceName, mvcc.Options{})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return keyspace, func() {
		keyspace.Close()
		db.Close()
	}, nil
}

func freeURL() []url.URL { return []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}} }
