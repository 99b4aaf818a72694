// Command playground runs Atoll and real Kubernetes clusters on one machine,
// without containers, registers the clusters, applies a sample app and leaves
// everything running until Ctrl-C.
//
//	go run ./playground                    three clusters: east, west, north
//	go run ./playground --clusters 5       more of them
//	go run ./playground --once             exit as soon as the app runs on all clusters
//	go run ./playground --servers 3        three servers of Atoll on one PostgreSQL
//	go run ./playground --kubelets         real nodes, with containers (Linux, root)
//	go run ./playground --topology stretched
//	                                       a server of Atoll in each cluster, on one PostgreSQL
//
// and in another terminal, while it runs:
//
//	go run ./playground pull west          end a cluster as a power cut would
//	go run ./playground return west        and start it again
//
// Everything is under --dir: a kubeconfig for each server and each cluster, logs, and the file
// "ready", which exists once everything is up. A second run with the same --dir continues with the
// existing data.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/kubelet"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/playground/system"
)

// startTimeout bounds the whole start. It is generous because of slow machines.
const startTimeout = 5 * time.Minute

// The topologies.
const (
	beside    = "beside"
	stretched = "stretched"
)

// options are the command line's flags.
type options struct {
	clusters  int
	dir       string
	topology  string
	servers   int
	datastore string
	once      bool
	providers bool
	kubelets  bool
}

func main() {
	roles := system.Roles()
	roles[node.RoleName] = kubelet.Role
	child.Main(roles)
	var o options
	flag.IntVar(&o.clusters, "clusters", 3, "how many clusters to run")
	flag.StringVar(&o.dir, "dir", ".demo", "directory for data, kubeconfigs and logs")
	flag.StringVar(&o.topology, "topology", beside, "where the servers of Atoll run: beside the clusters, or stretched over them, with one in each")
	flag.IntVar(&o.servers, "servers", 1, "how many servers of Atoll to run beside the clusters; several share a PostgreSQL")
	flag.StringVar(&o.datastore, "datastore", "", "URL of the servers' datastore, such as postgres://user:password@host/database (default: SQLite for one server beside the clusters, otherwise a PostgreSQL that playground starts)")
	flag.BoolVar(&o.once, "once", false, "exit as soon as the sample app runs on all clusters and its status in Atoll agrees")
	flag.BoolVar(&o.providers, "providers", true, "build a demo infrastructure provider from infra/testproviders, as a mirror in --dir (takes seconds once it is compiled)")
	flag.BoolVar(&o.kubelets, "kubelets", false, "one real node for each cluster, with a kubelet and containerd, instead of simulated ones: Pods run as containers (Linux, root)")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: playground [flags]\n       playground [--dir DIR] pull|return PART…\nflags:")
		flag.PrintDefaults()
	}
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends this process at once. The children notice and end too.
	context.AfterFunc(ctx, stop)
	var err error
	switch verb := flag.Arg(0); {
	case verb == "":
		err = run(ctx, o)
	case verb == pull || verb == restore:
		err = order(ctx, o.dir, verb, flag.Args()[1:], os.Stdout)
	default:
		fmt.Fprintf(os.Stderr, "playground: %q is neither a flag nor pull or return; see --help\n", verb)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

// config returns what to start, or an error if the options contradict each other.
func (o *options) config() (system.Config, error) {
	cfg := system.Config{Dir: o.dir, Servers: o.servers, Datastore: o.datastore, Kubelets: o.kubelets}
	switch {
	case o.clusters < 1:
		return cfg, fmt.Errorf("--clusters %d: must be at least 1", o.clusters)
	case o.servers < 1:
		return cfg, fmt.Errorf("--servers %d: must be at least 1", o.servers)
	case o.topology == stretched && o.servers > 1:
		return cfg, fmt.Errorf("--servers %d: with --topology stretched, each cluster has one server: omit --servers", o.servers)
	case o.topology == stretched && !o.kubelets:
		for i := range o.clusters {
			cfg.Stretched = append(cfg.Stretched, clusterName(i))
		}
	case o.kubelets && o.topology == stretched:
		return cfg, errors.New("--kubelets: the clusters have networks of their own, so the servers of Atoll run beside them: omit --topology stretched")
	case o.topology != beside:
		return cfg, fmt.Errorf("--topology %q: must be %s or %s", o.topology, beside, stretched)
	}
	return cfg, nil
}

// startMessage describes the servers that start, for people.
func (o *options) startMessage() string {
	switch {
	case o.topology == stretched:
		return "starting, with one server in each cluster"
	case o.servers > 1:
		return fmt.Sprintf("starting %d servers", o.servers)
	}
	return "starting"
}

func run(ctx context.Context, o options) (err error) {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	dir := o.dir
	out := newOutput(os.Stdout)
	ready := filepath.Join(dir, "ready")
	out.step("atoll", fmt.Sprintf("%s, with %d clusters, in %s", o.startMessage(), o.clusters, dir))
	cfg.Progress = out.step
	if o.providers {
		out.step("mirror", "building the demo provider")
		if cfg.Flags, err = buildMirror(ctx, dir); err != nil {
			// The clusters work without a provider.
			out.step("mirror", fmt.Sprintf("no demo provider: %v", err))
			o.providers = false
		}
	}
	if o.kubelets {
		if err := node.Check(); err != nil {
			return fmt.Errorf("--kubelets: %w", err)
		}
		out.step("image", "building "+node.Image)
		image, err := node.BuildImages(ctx, dir)
		if err != nil {
			return fmt.Errorf("--kubelets: %w", err)
		}
		cfg.Images = []string{image}
	}
	s, err := system.Open(ctx, cfg)
	if errors.Is(err, kv.ErrInUse) {
		return fmt.Errorf("another playground runs in %s: stop it, or run this one with another --dir", dir)
	} else if err != nil {
		return err
	}
	defer func() {
		_ = os.Remove(ready)
		out.step("all", "stopping")
		err = errors.Join(err, s.Close())
	}()

	// Not earlier: until Open succeeds, the file may belong to another playground that runs.
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	existing, err := s.MemberNames()
	if err != nil {
		return err
	}
	if len(existing) > o.clusters {
		// They are registered, and their share of the apps would not run without them.
		return fmt.Errorf("%s has %d clusters of an earlier run: use --clusters %d, or another --dir, or delete %s to start from scratch",
			dir, len(existing), len(existing), dir)
	}
	members, err := start(ctx, s, o, out)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted while starting")
		}
		return err
	}
	orders, err := takeOrders(dir, s, out)
	if err != nil {
		return err
	}
	defer orders.Close()
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		return err
	}
	out.step("all", "ready")
	if o.once {
		return nil
	}
	out.whatNext(o, s.Servers(), members)
	attend(ctx, s, out)
	return nil
}

// start starts everything and returns when the sample app runs on all clusters.
func start(ctx context.Context, s *system.System, o options, out *output) ([]*member.Cluster, error) {
	dir := o.dir
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not everything was up after %s", startTimeout))
	defer cancel()
	members := make([]*member.Cluster, o.clusters)
	group, startCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := s.StartAtoll(startCtx); err != nil {
			return err
		}
		for i, name := range s.Servers() {
			out.step(name, "ready")
			if err := copyFile(s.KubeconfigOf(i), filepath.Join(dir, name+".kubeconfig")); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range members {
		group.Go(func() error {
			cluster, err := s.StartMember(startCtx, clusterName(i))
			if err != nil {
				return err
			}
			members[i] = cluster
			out.step(cluster.Name, "ready")
			return copyFile(cluster.Kubeconfig, filepath.Join(dir, cluster.Name+".kubeconfig"))
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	// One after the other, so that their order is fixed: the remainder of a division of replicas goes
	// to the first cluster.
	for _, m := range members {
		if err := s.Join(ctx, m); err != nil {
			return nil, err
		}
	}
	config, err := s.REST()
	if err != nil {
		return nil, err
	}
	out.step("app", "applied")
	if err := applyApp(ctx, config, o.kubelets); err != nil {
		return nil, err
	}
	if err := waitForApp(ctx, config, members); err != nil {
		return nil, err
	}
	out.step("app", fmt.Sprintf("runs on all %d clusters", o.clusters))
	if err := waitForFleet(ctx, s); err != nil {
		return nil, err
	}
	err = share(ctx, config, members)
	switch {
	case errors.Is(err, errNotShared):
		out.step("note", err.Error())
	case err != nil:
		return nil, err
	default:
		out.step("note", "kind shared by all clusters")
	}
	return members, nil
}

// clusterName is east, west, north, then c4, c5, …
func clusterName(i int) string {
	if names := []string{"east", "west", "north"}; i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("c%d", i+1)
}

// copyFile copies a kubeconfig atomically: the copy is complete or missing. Only its owner can read it.
func copyFile(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

func haveKubectl() bool {
	_, err := exec.LookPath("kubectl")
	return err == nil
}
