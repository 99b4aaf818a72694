// Package member runs real Kubernetes clusters on one machine, without containers: upstream's
// kube-apiserver, kube-controller-manager and kube-scheduler, with kwok instead of kubelets. A Pod
// there is scheduled, gets an address and becomes ready, but no program runs.
//
// A cluster is one child process (see playground/child). Its state is in an etcd-compatible store
// that the caller names; its keys, certificates and port are in a directory. A cluster that is started
// again with the same directory and store continues from there.
package member

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/keys"
)

// RoleName is the name under which Role must be given to child.Main.
const RoleName = "member"

// Config describes one cluster.
type Config struct {
	// Name of the cluster, and of the region that its nodes are in.
	Name string
	// Dir contains keys, certificates and the kubeconfig. It is created if it does not exist.
	Dir string
	// LogFile is the file that the components' logs are appended to.
	LogFile string
	// Store is the URL of an etcd endpoint, on loopback.
	Store string
	// Address is the IP that its API server listens on. Empty means 127.0.0.1.
	Address string
	// Nodes is how many nodes kwok simulates. 0 means 3.
	Nodes int
	// RealNodes leaves kwok out: kubelets register the cluster's nodes (see playground/node). Start returns before there are any.
	RealNodes bool
	// OneControllerIdentity has all controllers of kube-controller-manager act as one user. By
	// default each has a service account, as in most real clusters.
	OneControllerIdentity bool
	// Wrapper is a command that runs it (see child.Spec.Wrapper).
	Wrapper []string `json:"-"`
	// Progress, if set, is called with each step of the start.
	Progress func(step string) `json:"-"`
}

// Cluster is a running cluster.
type Cluster struct {
	Name string
	// Kubeconfig is the path of the administrator's kubeconfig, with all data inlined.
	Kubeconfig string
	// Server is the URL of its API server.
	Server string
	Keys   *keys.Keys

	process *child.Process
}

// ready has the details that the child reports with ready.
type ready struct {
	Kubeconfig, Server string
	Keys               *keys.Keys
}

// Start starts a cluster and returns when its API serves and its nodes are
// ready. The cluster lives until Stop or Kill, or until this process ends; ctx
// bounds the start only.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.Nodes == 0 {
		cfg.Nodes = 3
	}
	if cfg.Address == "" {
		cfg.Address = "127.0.0.1"
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start cluster %s: %w", cfg.Name, err)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("start cluster %s: %w", cfg.Name, err)
	}
	cfg.Dir = dir
	process, err := child.Start(child.Spec{
		Role:    RoleName,
		Name:    "cluster " + cfg.Name,
		Config:  cfg,
		LogFile: cfg.LogFile,
		Env: []string{
			"GOGC=50", // a small machine runs several of these; memory is scarcer than time
			// How long the API server waits for a frozen server of Atoll: see docs/shared-api.md.
			"HTTP2_READ_IDLE_TIMEOUT_SECONDS=5", "HTTP2_PING_TIMEOUT_SECONDS=5",
		},
		Progress: cfg.Progress,
		Wrapper:  cfg.Wrapper,
	})
	if err != nil {
		return nil, err
	}
	var r ready
	if err := process.WaitReady(ctx, &r); err != nil {
		process.Kill()
		return nil, err
	}
	return &Cluster{Name: cfg.Name, Kubeconfig: r.Kubeconfig, Server: r.Server, Keys: r.Keys, process: process}, nil
}

// REST returns the administrator's client configuration.
func (c *Cluster) REST() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	config.QPS = -1 // the server's own flow control is enough
	return config, nil
}

// Done returns a channel that is closed when the cluster has exited. Err returns why.
func (c *Cluster) Done() <-chan struct{} { return c.process.Done() }

// Err returns nil while the cluster runs and after a Stop.
func (c *Cluster) Err() error { return c.process.Err() }

// PID returns the id of the cluster's process.
func (c *Cluster) PID() int { return c.process.PID() }

// Stop stops the cluster gracefully.
func (c *Cluster) Stop() error { return c.process.Stop() }

// Kill ends the cluster like a crash.
func (c *Cluster) Kill() { c.process.Kill() }
