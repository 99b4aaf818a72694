// Command playground runs Atoll and real Kubernetes clusters on one machine,
// without containers, registers the clusters, applies a sample app and leaves
// everything running until Ctrl-C.
//
//	go run ./playground                    three clusters: east, west, north
//	go run ./playground --clusters 5       more of them
//	go run ./playground --once             exit as soon as the app runs on all
//	go run ./playground --servers 3        three servers of Atoll on one PostgreSQL
//
// Everything is under --dir: atoll.kubeconfig, a kubeconfig for each cluster,
// logs, and the file "ready" once all is up. Run again with the same --dir, it
// goes on with the data that is there.
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

func main() {
	child.Main(system.Roles())
	clusters := flag.Int("clusters", 3, "how many clusters to run")
	dir := flag.String("dir", ".demo", "directory for data, kubeconfigs and logs")
	servers := flag.Int("servers", 1, "how many servers of Atoll to run; several share a PostgreSQL")
	datastore := flag.String("datastore", "", "URL of the servers' datastore, such as postgres://user:password@host/database (default: SQLite for one server, and for several a PostgreSQL that is started for them)")
	once := flag.Bool("once", false, "exit as soon as the sample app runs on all clusters and its status in Atoll says so")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "playground: %q is not a flag; see --help\n", flag.Arg(0))
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends at once; the children notice.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, system.Config{Dir: *dir, Servers: *servers, Datastore: *datastore}, *clusters, *once); err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, cfg system.Config, clusters int, once bool) (err error) {
	dir := cfg.Dir
	if clusters < 1 {
		return fmt.Errorf("--clusters %d: at least one is needed", clusters)
	}
	if cfg.Servers < 1 {
		return fmt.Errorf("--servers %d: at least one is needed", cfg.Servers)
	}
	out := newOutput(os.Stdout)
	ready := filepath.Join(dir, "ready")
	what := "starts"
	if cfg.Servers > 1 {
		what = fmt.Sprintf("starts, %d servers", cfg.Servers)
	}
	out.step("atoll", fmt.Sprintf("%s, with %d clusters, in %s", what, clusters, dir))
	cfg.Progress = out.step
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
	if len(known) > clusters {
		// They are registered, and without them their share of the apps would not run.
		return fmt.Errorf("%s has %d clusters of an earlier run: give --clusters %d, or another --dir, or delete %s to begin anew",
			dir, len(known), len(known), dir)
	}
	members, err := start(ctx, s, cfg, clusters, out)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted while starting")
		}
		return err
	}
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		return err
	}
	out.step("all", "ready")
	if once {
		return nil
	}
	out.whatNext(dir, cfg.Servers, members)
	select {
	case <-ctx.Done():
		fmt.Println()
		return nil
	case err := <-s.Done():
		return err
	}
}

// start starts everything and returns when the sample app runs on all
// clusters.
func start(ctx context.Context, s *system.System, cfg system.Config, count int, out *output) ([]*member.Cluster, error) {
	dir := cfg.Dir
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not everything was up after %s", startTimeout))
	defer cancel()
	members := make([]*member.Cluster, count)
	group, startCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := s.StartAtoll(startCtx); err != nil {
			return err
		}
		for i := range cfg.Servers {
			name := system.ServerName(i)
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
	out.step("app", fmt.Sprintf("runs on all %d clusters", count))
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
