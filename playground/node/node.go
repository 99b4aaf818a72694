// Package node runs a real node of a playground cluster: a kubelet, containerd and runc, in namespaces of its own for network,
// mounts and processes. It needs Linux, root, and some packages of Debian, which Check names.
//
// All that a node starts ends with it, however it ends: the kernel kills the processes of a process namespace with its first one,
// and the mounts go with their namespace. A node that is started again is like a machine that was restarted.
package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/playground/child"
)

// RoleName is the name under which the Role of playground/kubelet must be given to child.Main.
const RoleName = "node"

// Config describes a node.
type Config struct {
	Name string
	// Region and Zone are its labels.
	Region, Zone string
	// Dir contains what the node keeps. It is created if it does not exist.
	Dir     string
	LogFile string
	Network *Network
	// Server is the URL of the API server, and CA its authority's certificate.
	Server, CA string
	// ClientCert and the others are the files of keys.Node.
	ClientCert, ClientKey, ServerCert, ServerKey string
	// Images are the files of image archives that the node has from the start. There is no registry.
	Images []string
	// Progress, if set, is called with each step of the start.
	Progress func(step string) `json:"-"`
}

// Address is the node's address.
func (c *Config) Address() net.IP { return c.Network.Inside }

// Node is a running node.
type Node struct {
	process *child.Process
	groups  string // the root of the control groups of its containers
}

// needed are the programs that a node runs, with Debian's packages of them.
var needed = map[string]string{
	"containerd": "containerd", "containerd-shim-runc-v2": "containerd", "ctr": "containerd", "runc": "runc", "iptables": "iptables",
	"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "tini": "tini", "mount": "mount",
}

// Plugins is where Debian's containernetworking-plugins puts its programs.
const Plugins = "/usr/lib/cni"

// Check returns why nodes cannot run here, with the remedy.
func Check() error {
	if runtime.GOOS != "linux" {
		return errors.New("real kubelets need Linux")
	}
	if os.Geteuid() != 0 {
		return errors.New("real kubelets need root: they create namespaces and mounts")
	}
	var missing []string
	for program, pkg := range needed {
		if _, err := exec.LookPath(program); err != nil && !slices.Contains(missing, pkg) {
			missing = append(missing, pkg)
		}
	}
	if _, err := os.Stat(filepath.Join(Plugins, "bridge")); err != nil {
		missing = append(missing, "containernetworking-plugins")
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("real kubelets need programs that are not installed: apt-get install %s", strings.Join(missing, " "))
	}
	return canGroup()
}

// canGroup returns an error if control groups cannot be made, as in most containers.
func canGroup() error {
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs") // version 1
	for _, procs := range append(hierarchies, "/sys/fs/cgroup/cgroup.procs") {
		if _, err := os.Stat(procs); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(filepath.Dir(procs), "atoll-check-")
		if err != nil {
			return fmt.Errorf("real kubelets need control groups of their own: %w", err)
		}
		_ = os.Remove(dir)
	}
	return nil
}

// Start starts a node, and returns when its kubelet has registered it. The node lives until Stop or Kill, or until this process
// ends; ctx bounds the start only.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if err := Check(); err != nil {
		return nil, fmt.Errorf("start node %s: %w", cfg.Name, err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start node %s: %w", cfg.Name, err)
	}
	removeGroups(cfg.Network.Namespace) // an earlier run may have left them
	process, err := child.Start(child.Spec{
		Role: RoleName, Name: "node " + cfg.Name, Config: cfg, LogFile: cfg.LogFile,
		Env: []string{"GOGC=50"},
		// tini is the first process of the namespace: it collects the processes whose parents ended.
		Wrapper:  append(cfg.Network.Wrapper(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "tini", "--"),
		Progress: cfg.Progress,
	})
	if err != nil {
		return nil, err
	}
	var none struct{}
	if err := process.WaitReady(ctx, &none); err != nil {
		process.Kill()
		return nil, err
	}
	return &Node{process, cfg.Network.Namespace}, nil
}

// Done returns a channel that is closed when the node has exited. Err returns why.
func (n *Node) Done() <-chan struct{} { return n.process.Done() }

// Err returns nil while the node runs and after a Stop.
func (n *Node) Err() error { return n.process.Err() }

// Stop stops the kubelet, and with it all containers.
func (n *Node) Stop() error {
	err := n.process.Stop()
	removeGroups(n.groups)
	return err
}

// Kill ends the node like a power cut.
func (n *Node) Kill() {
	n.process.Kill()
	removeGroups(n.groups)
}

// removeGroups removes control groups without processes: they are all that a node leaves behind. One that still has a process
// stays, and the next start tries again.
func removeGroups(root string) {
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/" + root) // version 1
	for _, dir := range append(hierarchies, "/sys/fs/cgroup/"+root) {
		var groups []string
		_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		for _, group := range slices.Backward(groups) {
			_ = os.Remove(group)
		}
	}
}
