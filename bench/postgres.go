package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/atoll-dev/atoll/playground/postgres"
)

// measurePostgres compares stores with etcd's API on PostgreSQL: Kine and Atoll, each with
// a database of its own on one server. etcd itself is measured too, as the reference for
// the disk.
func (r *report) measurePostgres(ctx context.Context, o options, clients []int, dir string) (err error) {
	where := postgres.Config{Settings: map[string]string{"max_connections": "1500"}} // for Kine: see runKine
	if o.dir != "" {
		where.Dir = filepath.Join(dir, "postgres")
	}
	progress("starting PostgreSQL")
	db, err := postgres.Start(ctx, where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	progress("building Kine " + kineVersion)
	kine, err := buildKine(ctx, dir)
	if err != nil {
		return err
	}
	systems, err := startPostgresSystems(ctx, o, db, kine, dir)
	defer func() {
		for _, s := range systems {
			s.close()
		}
	}()
	if err != nil {
		return err
	}
	if r.Postgres, err = measureRounds(ctx, o, systems, postgresPlan(clients, o.listKeys, o.scale)); err != nil {
		return err
	}
	fmt.Printf("\nStores on PostgreSQL: %d-byte values, medians of %d rounds; more than 1 in the last columns is better\n\n", valueSize, o.rounds)
	writeStores(os.Stdout, r.Postgres, names(systems))

	for _, s := range systems {
		p, ok := s.(onPostgres)
		if !ok {
			continue
		}
		progress("costs of " + s.name())
		c, err := measureCost(ctx, db, p, max(1000, int(20_000*o.scale)))
		if err != nil {
			return fmt.Errorf("%s: measure its costs: %w", s.name(), err)
		}
		r.Costs = append(r.Costs, c)
	}
	progress("")
	fmt.Printf("\nThe cost of one create, with %d clients\n\n", costClients)
	writeCosts(os.Stdout, r.Costs)
	return nil
}

// onPostgres is a system whose costs in the database can be measured.
type onPostgres interface {
	system
	// pids returns its processes while it runs a workload.
	pids() []int
	database() string
}

func startPostgresSystems(ctx context.Context, o options, db *postgres.Server, kine, dir string) (out []system, err error) {
	etcd, err := startRemoteStore(ctx, etcdTitle, etcdRole, storeConfig{Dir: filepath.Join(dir, "etcd-beside-postgres")}, o.conns)
	if err != nil {
		return out, err
	}
	out = append(out, etcd)

	start := func(title, role, database string, servers int, config func(url string) storeConfig) error {
		url, err := makeDatabase(ctx, db, database)
		if err != nil {
			return err
		}
		s := &sharedStore{title: title, in: database, watching: 1 % servers}
		out = append(out, s)
		for i := range servers {
			c := config(url)
			c.Dir = filepath.Join(dir, fmt.Sprintf("%s-%d", database, i))
			one, err := startRemoteStore(ctx, title, role, c, o.conns)
			if err != nil {
				return err
			}
			s.servers = append(s.servers, one)
		}
		return nil
	}
	atoll := func(url string) storeConfig { return storeConfig{Datastore: url} }
	err = start(kineTitle, kineRole, "kine", 2, func(url string) storeConfig { return storeConfig{Datastore: url, Binary: kine} })
	if err == nil {
		err = start(atollTitle, atollRole, "atoll", 2, atoll)
	}
	if err == nil {
		err = start("3 atolls", atollRole, "three", 3, atoll)
	}
	if err != nil {
		return out, err
	}
	// The last one spreads its load over all its servers. The two before it have one server for
	// the load and one for the watch.
	out[len(out)-1].(*sharedStore).spread = true

	url, err := makeDatabase(ctx, db, "inprocess")
	if err != nil {
		return out, err
	}
	return append(out, &inProcess{dir: filepath.Join(dir, "in-process-on-postgres"), datastore: url}), nil
}

// makeDatabase creates a database and returns its URL.
func makeDatabase(ctx context.Context, db *postgres.Server, name string) (string, error) {
	if _, err := db.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	u, err := url.Parse(db.URL())
	if err != nil {
		return "", errors.New("the URL of PostgreSQL is invalid")
	}
	u.Path = "/" + name
	return u.String(), nil
}

// postgresPlan is like plan, with fewer operations because Kine is slow.
func postgresPlan(clients []int, listKeys int, scale float64) []workload {
	sized := func(n int) int { return max(100, int(float64(n)*scale)) }
	var out []workload
	for _, n := range clients {
		count := 10_000
		if n == 1 {
			count = 1_000
		}
		out = append(out, workload{Kind: "writes", Clients: n, Count: sized(count)})
		out = append(out, workload{Kind: "watch", Clients: n, Count: sized(count / 2)})
	}
	return append(out, workload{Kind: "list", Clients: 1, Count: sized(listKeys), Times: 7})
}

// servedOn is one store served by several processes over one database.
type sharedStore struct {
	title, in string
	servers   []*remoteStore
	// watching is the index of the server that is watched, which is not the one that is
	// written to.
	watching int
	// spread spreads the load over all servers.
	spread bool
}

func (s *sharedStore) name() string     { return s.title }
func (s *sharedStore) database() string { return s.in }

func (s *sharedStore) pids() (all []int) {
	for _, one := range s.servers {
		all = append(all, one.process.PID())
	}
	return all
}

func (s *sharedStore) close() {
	for _, one := range s.servers {
		one.close()
	}
}

func (s *sharedStore) run(ctx context.Context, w workload) ([]measurement, error) {
	targets := s.servers[:1]
	if s.spread {
		targets = s.servers
	}
	var conns []*kubernetes.Client
	for _, one := range targets {
		more, closeAll, err := dial(one.address, min(max(one.conns/len(targets), 1), w.Clients))
		if err != nil {
			return nil, err
		}
		defer closeAll()
		conns = append(conns, more...)
	}
	// Clients take connections in turn, and so also the servers.
	if s.spread {
		conns = interleave(conns, len(targets))
	}
	watcher, closeWatcher, err := dial(s.servers[s.watching].address, 1)
	if err != nil {
		return nil, err
	}
	defer closeWatcher()
	w.watcher = watcher[0]
	return w.run(ctx, conns)
}

// interleave reorders consecutive groups of equal size so that neighbours are from
// different groups.
func interleave[T any](all []T, groups int) []T {
	out := make([]T, 0, len(all))
	size := len(all) / groups
	for i := range size {
		for g := range groups {
			out = append(out, all[g*size+i])
		}
	}
	return out
}

func names(systems []system) (out []string) {
	for _, s := range systems {
		out = append(out, s.name())
	}
	return out
}
