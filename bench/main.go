// Command bench measures Atoll and the systems that it replaces in one run on one
// machine. Both wait for the disk before they acknowledge a write.
//
//	go run ./bench                    the stores and the API servers
//	go run ./bench -what stores       etcd over gRPC, Atoll over gRPC, Atoll in process
//	go run ./bench -what servers      upstream's generic control plane over etcd, atoll server
//	go run ./bench -what postgres     etcd; Kine and Atoll on PostgreSQL
//	go run ./bench -what scale        a million objects (not part of all)
//	go run ./bench -what shared       shared APIs (not part of all)
//	go run ./bench -what placement    placement decisions for a large fleet (not part of all)
//	go run ./bench -what fleet-delay  Deployments to three clusters and back (not part of all)
//	go run ./bench -what fleet-members  a thousand simulated clusters (not part of all); with
//	                                    -keep DIR, filled once and started any number of times
//	go run ./bench -what types          a provider with 1,500 types, and the same types as CRDs (not part of all)
//	go run ./bench -what tofu-alike     differential test of OpenTofu and Atoll (not part of all)
//	go run ./bench -what infra          growing numbers of resources, with both (not part of all)
//	go run ./bench -what workspaces     ten thousand workspaces in one server (not part of all)
//	go run ./bench -scale 0.1         a tenth of the work, for a first look
//
// Every workload runs on all systems in turn, for several rounds; figures are medians over
// the rounds. Nothing else should run on the machine. docs/benchmarks.md explains the
// figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/grpc/grpclog"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/member"
)

func main() {
	child.Main(roles())
	// gRPC logs every connection that is closed while it is established.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
	o := options{}
	flag.StringVar(&o.what, "what", "all", "what to measure: stores, servers, postgres, or all of these; scale; placement; shared, or its parts shared-delay and shared-members; fleet-delay; fleet-members; types; tofu-alike; infra; workspaces")
	flag.StringVar(&o.clients, "clients", "1,64,256", "numbers of clients for the stores, separated by commas")
	flag.IntVar(&o.rounds, "rounds", 3, "number of repetitions")
	flag.Float64Var(&o.scale, "scale", 1, "share of the work to do")
	flag.IntVar(&o.conns, "connections", 8, "gRPC connections that the clients share")
	flag.IntVar(&o.listKeys, "list-keys", 20_000, "number of keys to list in pages of 500")
	flag.IntVar(&o.objects, "objects", 10_000, "number of ConfigMaps that 64 clients create in an API server")
	flag.IntVar(&o.rate, "rate", defaultRate, "writes per second of shared-delay, Deployments per second of fleet-delay (there the default is 50)")
	flag.StringVar(&o.members, "members", defaultMembers, "numbers of simulated members of shared-members, separated by commas; fleet-members uses the first (there the default is 1000)")
	flag.StringVar(&o.steps, "steps", "asleep,awake,custom,bound,flood,delete", "steps of workspaces after the creation, separated by commas; custom and bound need awake")
	flag.StringVar(&o.databases, "databases", "sqlite,postgres", "databases of workspaces, separated by commas")
	flag.StringVar(&o.profile, "profile", "", "directory for CPU and heap profiles of Atoll (fleet-delay, fleet-members, infra, workspaces)")
	flag.StringVar(&o.keep, "keep", "", "directory to keep the filled fleet of fleet-members in; if it holds one already, the server starts on a copy of it and nothing is filled")
	flag.StringVar(&o.tofu, "tofu", "", "path of a tofu binary of version 1.12.6 (default: build one)")
	flag.IntVar(&o.configurations, "configurations", 200, "number of configurations that tofu-alike generates")
	flag.StringVar(&o.resources, "resources", "1000,5000", "numbers of resources of infra, separated by commas; OpenTofu is not measured above 20000")
	flag.StringVar(&o.shapes, "shapes", "flat,chains,cross", "shapes of the references among the resources of infra, separated by commas")
	flag.BoolVar(&o.alone, "alone", false, "measure infra without OpenTofu")
	flag.IntVar(&o.firstPlans, "first-plans", 0, "measure only the first plan of infra, this many times in turn with the provider's own calls and without OpenTofu; 0 measures it once, and all other steps")
	flag.IntVar(&o.callers, "callers", defaultCallers, "number of parallel callers for the provider's own calls of infra; the default is that of OpenTofu")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the first configuration of tofu-alike; the next ones count up from it")
	flag.StringVar(&o.dir, "dir", "", "directory for data, on the disk to measure (default: a temporary one, removed afterwards)")
	flag.StringVar(&o.json, "json", "", "file to write all figures to")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// defaultRate and defaultMembers apply to shared APIs; the fleet has other defaults.
// defaultCallers is OpenTofu's parallelism. A plan of Atoll makes ten parallel calls that plan
// and another ten that validate.
const (
	defaultCallers = 10
	defaultRate    = 100
	defaultMembers = "10,30,100"
)

type options struct {
	what, clients, members, dir, json      string
	profile, keep, tofu, databases, steps  string
	configurations                         int
	resources, shapes                      string
	alone                                  bool
	firstPlans, callers                    int
	seed                                   uint64
	rounds, conns, listKeys, objects, rate int
	scale                                  float64
}

func roles() map[string]child.Role {
	return map[string]child.Role{
		etcdRole:         runEtcd,
		atollRole:        runAtollKV,
		inProcessRole:    runInProcess,
		kineRole:         runKine,
		scaleRole:        runScale,
		upstreamRole:     runUpstream,
		crowdRole:        runCrowd,
		atoll.RoleName:   atoll.Role,
		atoll.KeeperName: atoll.Keeper, atoll.LauncherName: atoll.Launcher,
		member.RoleName: member.Role,
	}
}

func run(ctx context.Context, o options) error {
	var clients []int
	for _, s := range strings.Split(o.clients, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return fmt.Errorf("-clients %q: %q is not a number of clients", o.clients, s)
		}
		clients = append(clients, n)
	}
	if o.what == "placement" {
		return benchPlacement(os.Stdout, o.scale)
	}
	stores := o.what == "stores" || o.what == "all"
	servers := o.what == "servers" || o.what == "all"
	onPostgres := o.what == "postgres" || o.what == "all"
	scale := o.what == "scale"
	shared := o.what == sharedBoth || o.what == sharedDelay || o.what == sharedMembers
	ofFleet := o.what == fleetDelay || o.what == fleetMembers
	ofTypes := o.what == "types"
	ofDifferential := o.what == "tofu-alike"
	ofInfra := o.what == "infra"
	ofWorkspaces := o.what == "workspaces"
	if !stores && !servers && !onPostgres && !scale && !shared && !ofFleet && !ofTypes && !ofDifferential && !ofInfra && !ofWorkspaces {
		return fmt.Errorf("-what %q: must be stores, servers, postgres, all, scale, placement, shared, shared-delay, shared-members, fleet-delay, fleet-members, types, tofu-alike, infra or workspaces", o.what)
	}
	dir := o.dir
	if dir == "" {
		temporary, err := os.MkdirTemp("", "atoll-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		dir = temporary
	} else {
		// A new directory, so that data of an earlier run is not measured too.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		fresh, err := os.MkdirTemp(dir, "run-")
		if err == nil {
			// PostgreSQL does not run as root and must be able to traverse it.
			err = os.Chmod(fresh, 0o711)
		}
		if err != nil {
			return err
		}
		dir = fresh
	}
	m, err := describeMachine(dir)
	if err != nil {
		return err
	}
	r := &report{Machine: m, Rounds: o.rounds}
	fmt.Println(m)
	if stores {
		if err := r.measureStores(ctx, o, clients, dir); err != nil {
			return err
		}
	}
	if servers {
		if err := r.measureServers(ctx, o, dir); err != nil {
			return err
		}
	}
	if onPostgres {
		if err := r.measurePostgres(ctx, o, clients, dir); err != nil {
			return err
		}
	}
	if scale {
		if err := r.measureScale(ctx, o, dir); err != nil {
			return err
		}
	}
	var failed error // the figures up to the failure are still written
	if shared {
		failed = r.measureShared(ctx, o, dir)
	}
	if ofFleet {
		failed = r.measureFleet(ctx, o, dir)
	}
	if ofTypes {
		failed = r.measureTypes(ctx, o, dir)
	}
	if ofDifferential {
		failed = r.measureDifferential(ctx, o, dir)
	}
	if ofInfra {
		failed = r.measureInfra(ctx, o, dir)
	}
	if ofWorkspaces {
		failed = r.measureWorkspaces(ctx, o, dir)
	}
	if o.json != "" {
		if err := r.writeJSON(o.json); err != nil {
			return errors.Join(failed, fmt.Errorf("write figures: %w", err))
		}
	}
	return failed
}

func (r *report) measureStores(ctx context.Context, o options, clients []int, dir string) (err error) {
	systems, err := startSystems(ctx, dir, o.conns)
	defer func() {
		for _, s := range systems {
			s.close()
		}
	}()
	if err != nil {
		return err
	}
	if r.Stores, err = measureRounds(ctx, o, systems, plan(clients, o.listKeys, o.scale)); err != nil {
		return err
	}
	fmt.Printf("\nStores: %d-byte values, medians of %d rounds; more than 1 in the last columns is better\n\n", valueSize, o.rounds)
	writeStores(os.Stdout, r.Stores, names(systems))
	return nil
}

// measureRounds runs all workloads on all systems, in each round.
func measureRounds(ctx context.Context, o options, systems []system, todo []workload) (all []measurement, err error) {
	for _, s := range systems {
		// The first connections, pages and files of a process are more expensive.
		warm := workload{Kind: "writes", Clients: 16, Count: 2000, Prefix: "/warm/up/"}
		if _, err := s.run(ctx, warm); err != nil {
			return nil, fmt.Errorf("%s: warm up: %w", s.name(), err)
		}
	}
	for round := range o.rounds {
		for i, w := range todo {
			w.Prefix = fmt.Sprintf("/registry/round-%d/work-%d/", round, i)
			for turn := range systems {
				// Rotate the order, so that no system always follows the same one.
				s := systems[(turn+round)%len(systems)]
				progress(fmt.Sprintf("round %d of %d: %s, %d clients, %s", round+1, o.rounds, w.Kind, w.Clients, s.name()))
				settleDisk()
				ms, err := s.run(ctx, w)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", s.name(), errors.Join(err, ctx.Err()))
				}
				for _, m := range ms {
					m.System, m.Round = s.name(), round
					all = append(all, m)
				}
			}
		}
	}
	progress("")
	return all, nil
}

func (r *report) measureServers(ctx context.Context, o options, dir string) error {
	systems := apiServers()
	for round := range o.rounds {
		for turn := range systems {
			s := systems[(turn+round)%len(systems)]
			progress(fmt.Sprintf("round %d of %d: %s", round+1, o.rounds, s.title))
			at := filepath.Join(dir, fmt.Sprintf("server-%d-%d", round, turn))
			settleDisk()
			m, err := s.measure(ctx, at, 64, max(200, int(float64(o.objects)*o.scale)))
			if err != nil {
				return err
			}
			m.Round = round
			r.Servers = append(r.Servers, m)
			if err := os.RemoveAll(at); err != nil {
				return err
			}
		}
	}
	progress("")
	fmt.Printf("\nAPI servers: 64 clients create %d ConfigMaps of 1 KiB, medians of %d rounds\n\n", o.objects, o.rounds)
	r.writeServers(os.Stdout)
	return nil
}

// startSystems starts the stores, the reference first.
func startSystems(ctx context.Context, dir string, conns int) ([]system, error) {
	var out []system
	etcd, err := startRemoteStore(ctx, etcdTitle, etcdRole, storeConfig{Dir: filepath.Join(dir, "etcd")}, conns)
	if err != nil {
		return out, err
	}
	out = append(out, etcd)
	ours, err := startRemoteStore(ctx, atollTitle, atollRole, storeConfig{Dir: filepath.Join(dir, "atoll")}, conns)
	if err != nil {
		return out, err
	}
	return append(out, ours, &inProcess{dir: filepath.Join(dir, "atoll-in-process")}), nil
}

// apiServers returns the whole API servers, the reference first. Upstream's generic
// control plane has no workload kinds, so Atoll is measured without and with them.
func apiServers() []apiServer {
	return []apiServer{upstreamServer(), atollServer("atoll, no workloads", "--workload-apis=false"), atollServer("atoll")}
}

// progress shows the current activity on one line of a terminal.
func progress(what string) {
	if info, err := os.Stderr.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "\r\033[K%s", what)
}
