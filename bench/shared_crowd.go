package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/playground/keys"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// Many simulated members of one Atoll. Each consists only of what a server sees of a
// member: a Cluster, a front-proxy certificate of its own authority, and the connection
// over which the member's API server would forward its users' requests.

const (
	// crowdObjects is the number of shared objects, which every watcher watches.
	crowdObjects = 1000
	// crowdRate is the number of writes per second; members write in turn.
	crowdRate = 50
	// crowdSeconds is the duration of the writes in seconds.
	crowdSeconds = 60
	// crowdQuiet is the time before the writes in which all watch and nothing changes.
	crowdQuiet = 10 * time.Second
)

// crowd is a number of servers, simulated members and watchers.
type crowd struct {
	Servers int `json:"servers"`
	Members int `json:"members"`
	// Each is the number of watchers in each member.
	Each int `json:"watchers_each"`
	// Writes is the total number of writes.
	Writes int `json:"writes"`

	quiet time.Duration
}

func (c crowd) String() string {
	return fmt.Sprintf("%d servers, %d members, %d watchers in each", c.Servers, c.Members, c.Each)
}

// crowdPlan returns one server with each of the numbers of members, then the largest
// number with three servers, and with ten watchers each.
func crowdPlan(members []int, scale float64) (out []crowd) {
	of := func(servers, members, each int) crowd {
		return crowd{Servers: servers, Members: members, Each: each, Writes: max(100, int(crowdRate*crowdSeconds*scale)), quiet: crowdQuiet}
	}
	most := 0
	for _, n := range members {
		out = append(out, of(1, n, 1))
		most = max(most, n)
	}
	return append(out, of(3, most, 1), of(1, most, 10))
}

// crowdRun holds the measurements of a crowd.
type crowdRun struct {
	crowd
	// SyncSeconds until all watchers had listed and started to watch.
	SyncSeconds float64 `json:"sync_s"`
	// Delays of events since their writes were sent, at all watchers, in milliseconds.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
	// Latencies of writes.
	WriteP50 float64 `json:"write_p50_ms"`
	WriteP99 float64 `json:"write_p99_ms"`
	Events   int     `json:"events"`
	// Resumed is the number of watches that servers ended early.
	Resumed int `json:"resumed"`
	// Refused is the number of requests that were answered with 429 Too Many Requests.
	Refused int `json:"refused"`
	disturbance
	// CPUs that the servers used while nothing changed and during the writes, and that
	// PostgreSQL and this program used during the writes.
	QuietCPU    float64 `json:"quiet_cpus"`
	ServersCPU  float64 `json:"servers_cpus"`
	PostgresCPU float64 `json:"postgres_cpus"`
	DriverCPU   float64 `json:"driver_cpus"`
	// CPU time of the servers above that of the quiet time, per write with all its events, and
	// per event.
	WriteMillis float64 `json:"cpu_ms_per_write"`
	EventMicros float64 `json:"cpu_us_per_event"`
	// Resident memory of the servers before the watches, and after the writes.
	BeforeMiB float64 `json:"before_mib"`
	MemoryMiB float64 `json:"memory_mib"`
}

func (c crowd) measure(ctx context.Context, db *postgres.Server, dir string) (run crowdRun, err error) {
	run.crowd = c
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	url, err := makeDatabase(ctx, db, fmt.Sprintf("crowd_%d_%d_%d", c.Servers, c.Members, c.Each))
	if err != nil {
		return run, err
	}
	servers, err := startAtolls(ctx, dir, url, make([]string, c.Servers)...)
	if err != nil {
		return run, err
	}
	defer servers.kill()
	clients, err := servers.simulate(ctx, filepath.Join(dir, "members"), c.Members)
	if err != nil {
		return run, err
	}
	notes := newNotes("note", crowdObjects)
	if _, _, err := parallel(ctx, 16, crowdObjects, func(ctx context.Context, client, i int) error {
		return notes.write(ctx, clients[client%len(clients)], i, unmeasured)
	}); err != nil {
		return run, fmt.Errorf("create the notes: %w", err)
	}
	if run.BeforeMiB, err = servers.memory(); err != nil {
		return run, err
	}

	j := (&writeNumbers{}).journal(c.Writes)
	var watching []*apiClient
	for range c.Each {
		watching = append(watching, clients...)
	}
	began := time.Now()
	w, err := startWatchers(ctx, j, watching)
	if err != nil {
		return run, err
	}
	run.SyncSeconds = time.Since(began).Seconds()
	quiet, err := servers.used(db)
	if err != nil {
		return run, err
	}
	select {
	case <-time.After(c.quiet):
	case <-ctx.Done():
		return run, ctx.Err()
	}
	before, err := servers.used(db)
	if err != nil {
		return run, err
	}
	observed, err := observeMachine()
	if err != nil {
		return run, err
	}
	if err := w.during(j, crowdRate, func(ctx context.Context, i, number int) error {
		return notes.write(ctx, clients[i%len(clients)], i%crowdObjects, number)
	}); err != nil {
		return run, err
	}
	came, err := w.wait()
	if err != nil {
		return run, err
	}
	if _, run.disturbance, err = observed(); err != nil {
		return run, err
	}
	after, err := servers.used(db)
	if err != nil {
		return run, err
	}
	if run.MemoryMiB, err = servers.memory(); err != nil {
		return run, err
	}
	for _, f := range clients {
		run.Refused += int(f.refused.Load())
	}
	run.summarize(j, came, quiet, before, after)
	return run, nil
}

func (run *crowdRun) summarize(j *journal, came []*arrivals, quiet, before, after usage) {
	sent, _ := j.delays(came...)
	writes := j.writes()
	run.P50, run.P99, run.Max = sent.ms(50), sent.ms(99), sent.ms(100)
	run.WriteP50, run.WriteP99 = writes.ms(50), writes.ms(99)
	run.Events = len(sent.all)
	for _, a := range came {
		run.Resumed += a.resumed
	}
	seconds := after.at.Sub(before.at).Seconds()
	run.QuietCPU = (before.servers - quiet.servers).Seconds() / before.at.Sub(quiet.at).Seconds()
	run.ServersCPU = (after.servers - before.servers).Seconds() / seconds
	run.PostgresCPU = (after.postgres - before.postgres).Seconds() / seconds
	run.DriverCPU = (after.driver - before.driver).Seconds() / seconds
	busy := max(0, run.ServersCPU-run.QuietCPU) * seconds
	run.WriteMillis = busy * 1e3 / float64(run.Writes)
	run.EventMicros = busy * 1e6 / float64(run.Events)
}

// usage is a reading of the clock and of CPU times.
type usage struct {
	at                        time.Time
	servers, postgres, driver time.Duration
}

func (a *atolls) used(db *postgres.Server) (u usage, err error) {
	u.at = time.Now()
	for _, s := range a.servers {
		t, err := processTime(s.PID())
		if err != nil {
			return u, err
		}
		u.servers += t
	}
	if u.postgres, err = treeTime(db.PID()); err != nil {
		return u, err
	}
	u.driver, err = processTime(os.Getpid())
	return u, err
}

func (a *atolls) memory() (mib float64, err error) {
	for _, s := range a.servers {
		one, err := residentMiB(s.PID())
		if err != nil {
			return 0, err
		}
		mib += one
	}
	return mib, nil
}

// simulate registers members, connects them to the servers in turn, and waits until they
// are served.
func (a *atolls) simulate(ctx context.Context, dir string, count int) ([]*apiClient, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := a.share(ctx); err != nil {
		return nil, err
	}
	addresses, err := a.memberAddresses(ctx)
	if err != nil {
		return nil, err
	}
	config, err := a.servers[0].REST()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	var clients []*apiClient
	for i := range count {
		f, err := simulateOne(ctx, client, config, fmt.Sprintf("member-%03d", i), dir, addresses[i%len(addresses)])
		if err != nil {
			return nil, err
		}
		clients = append(clients, f)
	}
	for _, f := range clients {
		if err := f.waitServed(ctx); err != nil {
			return nil, err
		}
	}
	return clients, nil
}

// simulateOne registers a Cluster that cannot be reached, with the status that Atoll would
// have read from it, and connects as its API server would.
func simulateOne(ctx context.Context, client dynamic.Interface, config *rest.Config, name, dir, address string) (*apiClient, error) {
	files, err := keys.LoadOrMake(filepath.Join(dir, name), name)
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(files.FrontProxyCACert)
	if err != nil {
		return nil, err
	}
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.atoll.dev/v1alpha1", "kind": "Cluster", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": v1alpha1.SystemNamespace, "name": "none"}}}}
	if _, err := client.Resource(v1alpha1.ClusterResource).Create(ctx, cluster, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	status, err := json.Marshal(map[string]any{"status": map[string]any{"frontProxy": v1alpha1.FrontProxy{
		CABundle: authority, AllowedNames: []string{keys.FrontProxyName},
		UsernameHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"}}}})
	if err != nil {
		return nil, err
	}
	if _, err := client.Resource(v1alpha1.ClusterResource).Patch(ctx, name, types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(files.FrontProxyCert, files.FrontProxyKey)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(config.CAData) {
		return nil, errors.New("the administrator's kubeconfig has no certificate authority")
	}
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "atoll." + v1alpha1.SystemNamespace + ".svc"}}
	return &apiClient{title: name, http: &http.Client{Transport: transport}, collectionURL: "https://" + address + notesPath(sharedGroup), user: "operator"}, nil
}
