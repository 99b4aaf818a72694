package member

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/keys"
)

// Role runs a cluster inside a child process.
func Role(ctx context.Context, link *child.Link) error {
	var cfg Config
	if err := link.Config(&cfg); err != nil {
		return err
	}
	// Three components share the process, and each configures logging.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	// Upstream's clients warn about deprecated APIs that its own controllers use.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	fmt.Fprintf(os.Stderr, "--- cluster %s starting, %s\n", cfg.Name, time.Now().Format(time.RFC3339))
	defer klog.Flush()

	listener, err := listen(cfg.Address, filepath.Join(cfg.Dir, "port"))
	if err != nil {
		return fmt.Errorf("cluster %s: %w", cfg.Name, err)
	}
	files, err := keys.LoadOrMake(filepath.Join(cfg.Dir, "pki"), cfg.Name, net.ParseIP(cfg.Address))
	if err != nil {
		return fmt.Errorf("cluster %s: %w", cfg.Name, err)
	}
	server := "https://" + listener.Addr().String()
	kubeconfig := filepath.Join(cfg.Dir, "admin.kubeconfig")
	if err := files.WriteKubeconfig(kubeconfig, cfg.Name, server); err != nil {
		return fmt.Errorf("cluster %s: %w", cfg.Name, err)
	}
	// Aggregated servers recognize the cluster's controllers by this user.
	controllers := filepath.Join(cfg.Dir, "controllers.kubeconfig")
	if cfg.OneControllerIdentity {
		controllers = kubeconfig
	} else if err := files.WriteKubeconfigAs(controllers, cfg.Name, server, "system:kube-controller-manager"); err != nil {
		return fmt.Errorf("cluster %s: %w", cfg.Name, err)
	}

	group, ctx := errgroup.WithContext(ctx)
	link.Progress("starting kube-apiserver")
	group.Go(func() error { return runAPIServer(ctx, cfg, files, listener) })
	group.Go(func() error {
		client, err := waitForAPI(ctx, kubeconfig)
		if err != nil {
			return err
		}
		link.Progress("kube-apiserver serves; starting controllers, scheduler and nodes")
		group.Go(func() error { return runControllers(ctx, cfg, files, controllers) })
		group.Go(func() error { return runScheduler(ctx, kubeconfig) })
		if !cfg.RealNodes {
			group.Go(func() error { return runKubelets(ctx, kubeconfig) })
			if err := makeNodes(ctx, client, cfg.Name, cfg.Nodes); err != nil {
				return err
			}
			if err := waitForNodes(ctx, client, cfg.Nodes); err != nil {
				return err
			}
		}
		return link.Ready(ready{Kubeconfig: kubeconfig, Server: server, Keys: files})
	})
	return group.Wait()
}

// waitForAPI waits until the API server is ready.
func waitForAPI(ctx context.Context, kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	err = poll(ctx, "wait for kube-apiserver to get ready", func(ctx context.Context) error {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	return client, err
}

// poll calls try until it returns nil. If ctx ends first, poll returns the last error of try.
func poll(ctx context.Context, doing string, try func(context.Context) error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", doing, err)
		case <-tick.C:
		}
	}
}
