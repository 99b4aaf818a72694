// Package kubelet is the role of a process that is a node: it starts containerd and runs upstream's kubelet. Package node starts it,
// in namespaces of its own. Only programs that run nodes import it, because it contains the kubelet.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/node"
)

// Role runs a node.
func Role(ctx context.Context, link *child.Link) error {
	var cfg node.Config
	if err := link.Config(&cfg); err != nil {
		return err
	}
	defer klog.Flush()
	fmt.Fprintf(os.Stderr, "--- node %s starting, %s\n", cfg.Name, time.Now().Format(time.RFC3339))
	if err := makeRoom(&cfg); err != nil {
		return fmt.Errorf("node %s: %w", cfg.Name, err)
	}
	kubeconfig := filepath.Join(cfg.Dir, "kubelet.kubeconfig")
	if err := writeKubeconfig(kubeconfig, &cfg); err != nil {
		return fmt.Errorf("node %s: %w", cfg.Name, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	link.Progress("starting containerd")
	group.Go(func() error { return runContainerd(ctx, &cfg) })
	group.Go(func() error {
		if err := importImages(ctx, cfg.Images); err != nil {
			return err
		}
		link.Progress("containerd serves; starting the kubelet")
		group.Go(func() error { return runKubelet(ctx, &cfg, kubeconfig) })
		if err := waitForNode(ctx, cfg.Name, kubeconfig); err != nil {
			return err
		}
		return link.Ready(struct{}{})
	})
	return group.Wait()
}

// makeRoom mounts the directories that the programs of a node use by fixed names. Only the processes of this node see these mounts.
func makeRoom(cfg *node.Config) error {
	// Mounts of volumes that a container makes reach the kubelet, and the other way around, only between shared mounts.
	if err := syscall.Mount("", "/", "", syscall.MS_SHARED|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("share the mounts of the node: %w", err)
	}
	// Sockets and the state of processes: a node that was restarted has none.
	if err := syscall.Mount("node", "/run", "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers"} {
		own := filepath.Join(cfg.Dir, dir)
		if err := errors.Join(os.MkdirAll(own, 0o700), os.MkdirAll(dir, 0o700)); err != nil {
			return err
		}
		if err := syscall.Mount(own, dir, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	if err := makeGroups(cfg.Network.Namespace); err != nil {
		return fmt.Errorf("make the control groups of the node: %w", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// makeGroups makes the control group that has those of all containers, in each hierarchy. The parent process removes it.
func makeGroups(name string) error {
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs") // version 1
	if err != nil || len(hierarchies) == 0 {
		return errors.Join(err, os.MkdirAll(filepath.Join("/sys/fs/cgroup", name), 0o755))
	}
	for _, file := range hierarchies {
		if err := os.MkdirAll(filepath.Join(filepath.Dir(file), name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func writeKubeconfig(file string, cfg *node.Config) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: cfg.Server, CertificateAuthority: cfg.CA}
	config.AuthInfos["node"] = &clientcmdapi.AuthInfo{ClientCertificate: cfg.ClientCert, ClientKey: cfg.ClientKey}
	config.Contexts["cluster"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "node"}
	config.CurrentContext = "cluster"
	return clientcmd.WriteToFile(*config, file)
}

// waitForNode waits until the node is ready.
func waitForNode(ctx context.Context, name, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return poll(ctx, func(ctx context.Context) error {
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return fmt.Errorf("node %s: %s", name, c.Message)
			}
		}
		return nil
	})
}

// poll calls try until it returns nil. If ctx ends first, poll returns the last error of try.
func poll(ctx context.Context, try func(context.Context) error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
