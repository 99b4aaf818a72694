package main

import (
	"context"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/atoll-dev/atoll/playground/child"
)

// Names of the child processes' roles, and of what they are in tables.
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

func freeURL() []url.URL { return []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}} }
