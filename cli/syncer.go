package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/clusters"
	"github.com/atoll-dev/atoll/fleet/fencing"
	"github.com/atoll-dev/atoll/fleet/imports"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/syncer"
	"github.com/atoll-dev/atoll/fleet/tunnel"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/fleet/webhooks"
)

func newSyncerCommand() *cobra.Command {
	var (
		at        credentialPlace
		member    string
		context   string
		metrics   string
		reach     reachLevel
		verbosity int
	)
	cmd := &cobra.Command{
		Use:   "syncer (--view-kubeconfig FILE | --view-secret NAMESPACE/NAME)",
		Short: "Run the syncer of a cluster in mode Pull",
		Long: `Run the syncer of a cluster in mode Pull, at any location. It reads the objects that are
bound to the cluster from Atoll, applies them in the cluster, and reports their status.

It needs access to its view of Atoll, with the credential from "atoll join --mode pull",
and to the cluster, which is the local one if the syncer runs in a cluster. Run one syncer
for each cluster. While it cannot reach either of the two, it changes nothing.`,
		Example: `  # At any location, with two kubeconfigs
  atoll join east --mode pull --view-kubeconfig east-view.kubeconfig
  atoll syncer --view-kubeconfig east-view.kubeconfig --kubeconfig east.kubeconfig

  # In the cluster
  atoll join east --mode pull --server https://atoll.example.com:6443 | kubectl --context east apply -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var running atomic.Bool
			running.Store(true)
			log, err := setLogging(cmd.ErrOrStderr(), verbosity, &running)
			if err != nil {
				return err
			}
			config, err := memberConfig(member, context)
			if err != nil {
				return err
			}
			store, err := at.open(config)
			if err != nil {
				return err
			}
			kubeconfig, err := openView(cmd.Context(), store, progress(cmd), log)
			if cmd.Context().Err() != nil {
				return nil // it was asked to stop
			}
			if err != nil {
				return err
			}
			return runSyncer(cmd.Context(), syncerRun{kubeconfig, store, config, metrics, reach.Level}, log)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&at.file, "view-kubeconfig", "", "Kubeconfig of the cluster's view. The syncer rewrites it when it renews the certificate.")
	flags.StringVar(&at.secret, "view-secret", "", "NAMESPACE/NAME of the Secret in the cluster that holds that kubeconfig, instead of a file.")
	flags.StringVar(&member, "kubeconfig", "", "Kubeconfig for the cluster. The default is the cluster that the syncer runs in.")
	flags.StringVar(&context, "context", "", "Context in that kubeconfig. The default is the current context.")
	reach.add(flags, "")
	flags.StringVar(&metrics, "metrics-listen", "", "Address for Prometheus metrics over HTTP.")
	flags.IntVarP(&verbosity, "v", "v", 0, "Verbosity of the log on standard error.")
	return cmd
}

// memberConfig returns the client configuration for the cluster.
func memberConfig(kubeconfig, context string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, errors.New("not running in a cluster: set --kubeconfig to the cluster's kubeconfig")
		}
		return config, nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load the client configuration for the cluster: %w", err)
	}
	return config, nil
}

// openView returns the view's kubeconfig. If it has only a bootstrap token, it first gets a certificate.
func openView(ctx context.Context, store credentialStore, progress func(string), log *slog.Logger) ([]byte, error) {
	kubeconfig, err := store.read(ctx)
	if err != nil || !view.IsBootstrap(kubeconfig) {
		return kubeconfig, err
	}
	return view.Bootstrap(ctx, view.BootstrapConfig{Kubeconfig: kubeconfig, Save: store.keep, Progress: progress, Log: log, Clock: clock.RealClock{}})
}

// syncerRun is what a syncer runs with.
type syncerRun struct {
	kubeconfig []byte // of the view
	store      credentialStore
	member     *rest.Config
	metrics    string // the address for metrics
	reach      tunnel.Level
}

// runSyncer runs the syncer until ctx ends. It serves metrics if it has an address for them.
func runSyncer(ctx context.Context, run syncerRun, log *slog.Logger) error {
	clk, member := clock.RealClock{}, run.member
	remote, err := view.NewRemote(view.RemoteConfig{Kubeconfig: run.kubeconfig, Save: run.store.keep, Log: log, Clock: clk,
		Answers: func(ask func(context.Context, interpret.Question) (interpret.Answer, error)) fleet.AnswerSource {
			return webhooks.NewCache(webhooks.Config{Ask: ask, Log: log, Clock: clk})
		}})
	if err != nil {
		return err
	}
	record, err := fencing.NewStore(member)
	if err != nil {
		return err
	}
	fence := fencing.New(record, clk, log)
	report := func(ctx context.Context, o fleet.Observation) error {
		began := clk.Now()
		o.Fences = true
		err := remote.Observe(ctx, o)
		if err == nil {
			fence.Renew(ctx, began)
		}
		return err
	}
	metrics := syncer.NewMetrics()
	group, ctx := errgroup.WithContext(ctx)
	if run.metrics != "" {
		listener, err := listenForMetrics(run.metrics, metrics)
		if err != nil {
			return err
		}
		group.Go(func() error { return listener.serve(ctx) })
	}
	log.Info("serving", "cluster", remote.Name())
	group.Go(func() error { return remote.Run(ctx) })
	group.Go(func() error { return fence.Run(ctx) })
	agent := tunnel.Agent{Cluster: remote.Name(), Member: member, Level: run.reach, Log: log, Clock: clk,
		Endpoint: func() tunnel.Endpoint { return tunnel.Endpoint(remote.Connection()) }}
	group.Go(func() error { return agent.Run(ctx) })
	group.Go(func() error {
		if err := remote.WaitForSync(ctx); err != nil {
			return nil // it was asked to stop
		}
		return clusters.Observer{Clock: clk, Log: log, Self: remote.Cluster, Report: report,
			Serve: func(ctx context.Context) error {
				return syncer.Run(ctx, remote, syncer.Options{Cluster: remote.Name(), Clock: clk, Log: log, Metrics: metrics,
					Fencing: &syncer.Fencing{Fence: fence, Confirm: remote.ConfirmShare}}, member)
			},
			Bound:            func() bool { return len(remote.Bindings()) > 0 },
			RemoveNamespaces: func(ctx context.Context) error { return syncer.RemoveNamespaces(ctx, log, remote.Name(), member) },
		}.Run(ctx, member)
	})
	group.Go(func() error { return imports.Report(ctx, remote.Name(), member, clk, log, remote) })
	return group.Wait()
}

// credentialPlace is where the view's kubeconfig is stored: a file or a Secret.
type credentialPlace struct{ file, secret string }

// credentialStore stores the view's kubeconfig.
type credentialStore interface {
	read(ctx context.Context) ([]byte, error)
	keep(ctx context.Context, kubeconfig []byte) error
}

func (p credentialPlace) open(member *rest.Config) (credentialStore, error) {
	switch {
	case (p.file == "") == (p.secret == ""):
		return nil, errors.New("no kubeconfig for the view: set exactly one of --view-kubeconfig and --view-secret")
	case p.file != "":
		return viewFile(p.file), nil
	}
	namespace, name, ok := strings.Cut(p.secret, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("--view-secret %q is not NAMESPACE/NAME", p.secret)
	}
	return newViewSecret(member, namespace, name)
}

// viewFile is a credentialStore in a file.
type viewFile string

func (f viewFile) read(context.Context) ([]byte, error) {
	content, err := os.ReadFile(string(f))
	if err != nil {
		return nil, fmt.Errorf("read the view's kubeconfig: %w", err)
	}
	return content, nil
}

func (f viewFile) keep(_ context.Context, kubeconfig []byte) error {
	return replaceFile(string(f), kubeconfig)
}

// replaceFile replaces a file atomically, readable only by its owner: a concurrent
// reader, or one after a crash, finds the old content or the new.
func replaceFile(path string, content []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // fails after the rename
	_, err = temp.Write(content)
	if err == nil {
		err = temp.Sync()
	}
	if err := errors.Join(err, temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
