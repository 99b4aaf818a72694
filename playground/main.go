// Command playground runs Atoll and real Kubernetes clusters on one machine,
// without containers, registers the clusters, applies a sample app and leaves
// everything running until Ctrl-C.
//
//	go run ./playground                    three clusters: east, west, north
//	go run ./playground --clusters 5       more of them
//	go run ./playground --once             exit as soon as the app runs on all
//	go run ./playground --servers 3        three servers of Atoll on one PostgreSQL
//	go run ./playground --topology stretched
//	                                       a server of Atoll in each cluster, on one PostgreSQL
//
// and in another terminal, while it runs:
//
//	go run ./playground pull west          end a cluster as a power cut would
//	go run ./playground return west        and start it again
//
// Everything is under --dir: a kubeconfig for each server and each cluster, logs,
// and the file "ready" once all is up. Run again with the same --dir, it goes on
// with the data that is there.
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
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/system"
)

// startTimeout bounds the start of everything, on a slow machine as well.
const startTimeout = 5 * time.Minute

// The topologies.
const (
	beside    = "beside"
	stretched = "stretched"
)

// options are what the command line says.
type options struct {
	clusters  int
	dir       string
	topology  string
	servers   int
	datastore string
	once      bool
	providers bool
}

func main() {
	child.Main(system.Roles())
	var o options
	flag.IntVar(&o.clusters, "clusters", 3, "how many clusters to run")
	flag.StringVar(&o.dir, "dir", ".demo", "directory for data, kubeconfigs and logs")
	flag.StringVar(&o.topology, "topology", beside, "where the servers of Atoll are: beside the clusters, or stretched over them, one in each")
	flag.IntVar(&o.servers, "servers", 1, "how many servers of Atoll to run beside the clusters; several share a PostgreSQL")
	flag.StringVar(&o.datastore, "datastore", "", "URL of the servers' datastore, such as postgres://user:password@host/database (default: SQLite for one server beside the clusters, and for several a PostgreSQL that is started for them)")
	flag.BoolVar(&o.once, "once", false, "exit as soon as the sample app runs on all clusters and its status in Atoll says so")
	flag.BoolVar(&o.providers, "providers", true, "build a provider of infrastructure to try, as a mirror in --dir (from infra/testproviders, in seconds once it was compiled)")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: playground [flags]\n       playground [--dir DIR] pull|return PART…\nflags:")
		flag.PrintDefaults()
	}
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends at once; the children notice.
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

// config is what to start, if the options make sense.
func (o *options) config() (system.Config, error) {
	cfg := system.Config{Dir: o.dir, Servers: o.servers, Datastore: o.datastore}
	switch {
	case o.clusters < 1:
		return cfg, fmt.Errorf("--clusters %d: at least one is needed", o.clusters)
	case o.servers < 1:
		return cfg, fmt.Errorf("--servers %d: at least one is needed", o.servers)
	case o.topology == stretched && o.servers > 1:
		return cfg, fmt.Errorf("--servers %d: stretched over clusters, each cluster has one; leave it out", o.servers)
	case o.topology == stretched:
		for i := range o.clusters {
			cfg.Stretched = append(cfg.Stretched, clusterName(i))
		}
	case o.topology != beside:
		return cfg, fmt.Errorf("--topology %q: give %s or %s", o.topology, beside, stretched)
	}
	return cfg, nil
}

// what tells of the servers, for people.
func (o *options) what() string {
	switch {
	case o.topology == stretched:
		return "starts, a server in each"
	case o.servers > 1:
		return fmt.Sprintf("starts, %d servers", o.servers)
	}
	return "starts"
}

func run(ctx context.Context, o options) (err error) {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	dir := o.dir
	out := newOutput(os.Stdout)
	ready := filepath.Join(dir, "ready")
	out.step("atoll", fmt.Sprintf("%s, with %d clusters, in %s", o.what(), o.clusters, dir))
	cfg.Progress = out.step
	if o.providers {
		out.step("mirror", "the demo's provider is built")
		if cfg.Flags, err = buildMirror(ctx, dir); err != nil {
			// What the clusters are for works without.
			out.step("mirror", fmt.Sprintf("there is none: %v", err))
			o.providers = false
		}
	}
	s, err := system.Open(ctx, cfg)
	if errors.Is(err, kv.ErrInUse) {
		return fmt.Errorf("another playground runs in %s: stop it, or give this one a --dir of its own", dir)
	} else if err != nil {
		return err
	}
	defer func() {
		_ = os.Remove(ready)
		out.step("all", "stops")
		err = errors.Join(err, s.Close())
	}()

	// Only now: until here, the file may have been that of a playground which runs.
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	known, err := s.Known()
	if err != nil {
		return err
	}
	if len(known) > o.clusters {
		// They are registered, and without them their share of the apps would not run.
		return fmt.Errorf("%s has %d clusters of an earlier run: give --clusters %d, or another --dir, or delete %s to begin anew",
			dir, len(known), len(known), dir)
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
	return attend(ctx, s, out)
}

// attend tells of parts that end, until ctx does or no server of Atoll is left.
func attend(ctx context.Context, s *system.System, out *output) error {
	for {
		select {
		case <-ctx.Done():
			fmt.Println()
			return nil
		case end := <-s.Ended():
			out.step(end.Part, fmt.Sprintf("has ended: %v", end.Err))
			if len(s.Servers()) == 1 && end.Part == s.Servers()[0] {
				return end.Err // there is no playground without Atoll
			}
		}
	}
}

// start starts everything and returns when the sample app runs on all
// clusters.
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
	// One after the other, so that they are first, second and third: what
	// remains when replicas are divided goes to the first.
	for _, m := range members {
		if err := s.Join(ctx, m); err != nil {
			return nil, err
		}
	}
	config, err := s.REST()
	if err != nil {
		return nil, err
	}
	out.step("app", "is applied")
	if err := applyApp(ctx, config); err != nil {
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
		out.step("note", "is a kind that all clusters share")
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

// copyFile copies a kubeconfig, which is small and secret, so that the copy is
// there whole or not at all.
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
