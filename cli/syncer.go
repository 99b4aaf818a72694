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

	"github.com/atoll-dev/atoll/fleet/clusters"
	"github.com/atoll-dev/atoll/fleet/imports"
	"github.com/atoll-dev/atoll/fleet/syncer"
	"github.com/atoll-dev/atoll/fleet/view"
)

func newSyncerCommand() *cobra.Command {
	var (
		at        credentialPlace
		member    string
		context   string
		verbosity int
	)
	cmd := &cobra.Command{
		Use:   "syncer (--view-kubeconfig FILE | --view-secret NAMESPACE/NAME)",
		Short: "Serve a cluster in mode Pull, from anywhere",
		Long: `Serve a cluster in mode Pull, from anywhere: get from Atoll what is bound to the
cluster, apply it there, and report what becomes of it.

It needs two ways: one to its view of Atoll, as "atoll join --mode pull" gives it,
and one to the cluster, which is its own if it runs there. Run one for each cluster.
While it cannot reach one of the two, everything stays as it is.`,
		Example: `  # Beside anything, with two kubeconfigs
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
			return runSyncer(cmd.Context(), store, config, log)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&at.file, "view-kubeconfig", "", "Kubeconfig of the cluster's view. It is written anew when its certificate is renewed.")
	flags.StringVar(&at.secret, "view-secret", "", "NAMESPACE/NAME of the Secret in the cluster that holds that kubeconfig, instead of a file.")
	flags.StringVar(&member, "kubeconfig", "", "Kubeconfig that leads to the cluster. The default is the cluster that this runs in.")
	flags.StringVar(&context, "context", "", "Context in that kubeconfig. The default is its current context.")
	flags.IntVarP(&verbosity, "v", "v", 0, "Verbosity of the log on standard error.")
	return cmd
}

// memberConfig is the way to the cluster.
func memberConfig(kubeconfig, context string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, errors.New("this does not run in a cluster: name the kubeconfig that leads to the cluster with --kubeconfig")
		}
		return config, nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	return config, nil
}

// runSyncer serves a cluster until ctx ends.
func runSyncer(ctx context.Context, store credentialStore, member *rest.Config, log *slog.Logger) error {
	kubeconfig, err := store.read(ctx)
	if err != nil {
		return err
	}
	clk := clock.RealClock{}
	remote, err := view.NewRemote(view.RemoteConfig{Kubeconfig: kubeconfig, Save: store.keep, Log: log, Clock: clk})
	if err != nil {
		return err
	}
	log.Info("serving", "cluster", remote.Name())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return remote.Run(ctx) })
	group.Go(func() error {
		if err := remote.WaitForSync(ctx); err != nil {
			return nil // it was told to stop
		}
		return clusters.Observer{Clock: clk, Log: log, Self: remote.Cluster, Report: remote.Observe, Serve: func(ctx context.Context) error {
			return syncer.Run(ctx, remote, syncer.Options{Cluster: remote.Name(), Clock: clk, Log: log}, member)
		}}.Run(ctx, member)
	})
	group.Go(func() error { return imports.Report(ctx, remote.Name(), member, clk, log, remote) })
	return group.Wait()
}

// credentialPlace says where the kubeconfig of the view is kept.
type credentialPlace struct{ file, secret string }

// credentialStore is where it is kept.
type credentialStore interface {
	read(ctx context.Context) ([]byte, error)
	keep(ctx context.Context, kubeconfig []byte) error
}

func (p credentialPlace) open(member *rest.Config) (credentialStore, error) {
	switch {
	case (p.file == "") == (p.secret == ""):
		return nil, errors.New("say where the kubeconfig of the view is: either with --view-kubeconfig or with --view-secret")
	case p.file != "":
		return viewFile(p.file), nil
	}
	namespace, name, ok := strings.Cut(p.secret, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("--view-secret %q is not NAMESPACE/NAME", p.secret)
	}
	return newViewSecret(member, namespace, name)
}

// viewFile keeps it in a file.
type viewFile string

func (f viewFile) read(context.Context) ([]byte, error) {
	content, err := os.ReadFile(string(f))
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of the view: %w", err)
	}
	return content, nil
}

func (f viewFile) keep(_ context.Context, kubeconfig []byte) error {
	return replaceFile(string(f), kubeconfig)
}

// replaceFile writes a file as a whole, for its owner only: whoever reads it meanwhile,
// or after a crash, finds the old content or the new.
func replaceFile(path string, content []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // fails once it has been renamed
	_, err = temp.Write(content)
	if err == nil {
		err = temp.Sync()
	}
	if err := errors.Join(err, temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
