package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// The delay from a write in one cluster to the event in another: three real
// clusters, a server of Atoll in each, one PostgreSQL.

func delayWrites(o options) int { return max(100, int(2000*o.scale)) }

// islands are the member clusters. The first one writes.
var islands = []string{"east", "west", "north"}

// delay holds the measurements of one watcher in one run.
type delay struct {
	// Path describes the way of writes and events.
	Path  string `json:"path"`
	Round int    `json:"round"`
	// Writer and Watcher are clusters, or servers.
	Writer  string `json:"writer"`
	Watcher string `json:"watcher"`
	// Delays of events since their writes were sent, in milliseconds.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
	// Delays of events since their writes were acknowledged; 0 if an event came before.
	AfterP50 float64 `json:"after_acknowledged_p50_ms"`
	AfterP99 float64 `json:"after_acknowledged_p99_ms"`
	// Latencies of writes.
	WriteP50 float64 `json:"write_p50_ms"`
	WriteP99 float64 `json:"write_p99_ms"`
	// CPUs used meanwhile by clusters, servers, databases and this program.
	CPUs float64 `json:"cpus"`
	// Resumed is the number of times that the server ended the watch early.
	Resumed int `json:"resumed"`
	disturbance
}

// way is one way of events, from the writer's API server to those of the watchers.
type way struct {
	path     string
	writer   *apiClient
	watchers []*apiClient
}

// The ways that are compared, as the report names them.
const (
	throughClusters = "shared, through the clusters"
	throughAtoll    = "shared, at Atoll's servers"
	withinCluster   = "local to one cluster, in its etcd"
)

func (r *report) measureDelays(ctx context.Context, o options, db *postgres.Server, dir string) error {
	url, err := makeDatabase(ctx, db, "islands")
	if err != nil {
		return err
	}
	progress("starting three clusters, and a server of Atoll in each")
	var mu sync.Mutex
	var running []func()
	defer func() {
		for _, end := range slices.Backward(running) {
			end()
		}
	}()
	ends := func(end func()) {
		mu.Lock()
		defer mu.Unlock()
		running = append(running, end)
	}
	members := make([]*member.Cluster, len(islands))
	group, starting := errgroup.WithContext(ctx)
	for i, name := range islands {
		group.Go(func() (err error) {
			members[i], err = startCluster(starting, filepath.Join(dir, name), name, ends)
			return err
		})
	}
	var servers *atolls
	group.Go(func() (err error) {
		if servers, err = startAtolls(starting, dir, url, islands...); err == nil {
			ends(servers.kill)
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	ways, err := prepareWays(ctx, servers, members)
	if err != nil {
		return err
	}
	numbers := &writeNumbers{}
	for round := range o.rounds {
		for turn := range ways {
			w := ways[(turn+round)%len(ways)]
			progress(fmt.Sprintf("round %d of %d: %s", round+1, o.rounds, w.path))
			settleDisk()
			rows, err := w.measure(ctx, numbers, fmt.Sprintf("round-%d-%d", round, turn), delayWrites(o), o.rate)
			if err != nil {
				return fmt.Errorf("%s: %w", w.path, err)
			}
			for _, row := range rows {
				row.Round = round
				r.Delays = append(r.Delays, row)
			}
		}
	}
	return nil
}

// startIsland starts a cluster on an etcd of its own.
func startCluster(ctx context.Context, dir, name string, ends func(func())) (*member.Cluster, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	etcd, err := startRemoteStore(ctx, name+"'s etcd", etcdRole, storeConfig{Dir: filepath.Join(dir, "etcd")}, 1)
	if err != nil {
		return nil, err
	}
	ends(etcd.close)
	m, err := member.Start(ctx, member.Config{Name: name, Dir: dir, LogFile: filepath.Join(dir, "log"), Store: etcd.address, Nodes: 1})
	if err != nil {
		return nil, err
	}
	ends(m.Kill) // its data is not needed
	return m, nil
}

// prepareWays joins the clusters, shares the notes and returns the ways to compare.
func prepareWays(ctx context.Context, servers *atolls, members []*member.Cluster) ([]way, error) {
	admin, err := servers.servers[0].REST()
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		progress("joining " + m.Name)
		kubeconfig, err := os.ReadFile(m.Kubeconfig)
		if err != nil {
			return nil, err
		}
		if err := join.Push(ctx, admin, join.Options{Name: m.Name, Kubeconfig: kubeconfig}); err != nil {
			return nil, fmt.Errorf("join %s: %w", m.Name, err)
		}
	}
	progress("sharing")
	if err := servers.share(ctx); err != nil {
		return nil, err
	}
	var clusters, direct []*apiClient
	for i, m := range members {
		config, err := m.REST()
		if err != nil {
			return nil, err
		}
		f, err := servedClient(ctx, m.Name, config, sharedGroup)
		if err != nil {
			return nil, err
		}
		clusters = append(clusters, f)
		if config, err = servers.servers[i].REST(); err != nil {
			return nil, err
		}
		if f, err = servedClient(ctx, "server in "+m.Name, config, sharedGroup); err != nil {
			return nil, err
		}
		direct = append(direct, f)
	}
	config, err := members[0].REST()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if err := defineNotes(ctx, client, localGroup); err != nil {
		return nil, err
	}
	local, err := servedClient(ctx, members[0].Name, config, localGroup)
	if err != nil {
		return nil, err
	}
	return []way{{withinCluster, local, []*apiClient{local}}, {throughClusters, clusters[0], clusters}, {throughAtoll, direct[0], direct}}, nil
}

func servedClient(ctx context.Context, title string, config *rest.Config, group string) (*apiClient, error) {
	f, err := newAPIClient(title, config, group)
	if err != nil {
		return nil, err
	}
	return f, f.waitServed(ctx)
}

// measure creates notes with half of the writes and updates each once with the other half.
// It returns the delays at each watcher.
func (w way) measure(ctx context.Context, numbers *writeNumbers, name string, count, rate int) (out []delay, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	half := count / 2
	warm := newNotes(name+"-warm", half/5)
	for i := range warm.versions {
		if err := warm.write(ctx, w.writer, i, unmeasured); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	j, all := numbers.journal(2*half), newNotes(name, half)
	watching, err := startWatchers(ctx, j, w.watchers)
	if err != nil {
		return nil, err
	}
	observed, err := observeMachine()
	if err != nil {
		return nil, err
	}
	if err := watching.during(j, float64(rate), func(ctx context.Context, i, number int) error {
		return all.write(ctx, w.writer, i%half, number)
	}); err != nil {
		return nil, err
	}
	came, err := watching.wait()
	if err != nil {
		return nil, err
	}
	cpus, disturbed, err := observed()
	if err != nil {
		return nil, err
	}
	writes := j.writes()
	for i, f := range w.watchers {
		sent, acked := j.delays(came[i])
		out = append(out, delay{
			Path: w.path, Writer: w.writer.title, Watcher: f.title,
			P50: sent.ms(50), P99: sent.ms(99), Max: sent.ms(100),
			AfterP50: acked.ms(50), AfterP99: acked.ms(99),
			WriteP50: writes.ms(50), WriteP99: writes.ms(99), CPUs: cpus, disturbance: disturbed, Resumed: came[i].resumed,
		})
	}
	return out, nil
}
