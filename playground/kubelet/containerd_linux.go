package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/atoll-dev/atoll/playground/node"
)

// socket is where containerd serves, below the node's own /run.
const socket = "/run/containerd/containerd.sock"

var containerdConfig = template.Must(template.New("containerd").Parse(`version = 2
root = "{{.Root}}"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Pause}}"
  tolerate_missing_hugetlb_controller = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{{.Snapshotter}}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.Plugins}}"
    conf_dir = "{{.Networks}}"
`))

// runContainerd runs containerd until ctx ends.
func runContainerd(ctx context.Context, cfg *node.Config) error {
	root, networks := filepath.Join(cfg.Dir, "containerd"), filepath.Join(cfg.Dir, "cni")
	if err := os.MkdirAll(networks, 0o700); err != nil {
		return err
	}
	if err := writeNetwork(filepath.Join(networks, "10-pods.conflist"), cfg.Network.Pods); err != nil {
		return err
	}
	var config bytes.Buffer
	err := containerdConfig.Execute(&config, map[string]string{
		"Root": root, "Pause": node.PauseImage, "Plugins": node.Plugins, "Networks": networks, "Snapshotter": snapshotter(root),
	})
	if err != nil {
		return err
	}
	file := filepath.Join(cfg.Dir, "containerd.toml")
	if err := os.WriteFile(file, config.Bytes(), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "containerd", "--config", file, "--log-level", "warn")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); ctx.Err() == nil {
		return fmt.Errorf("containerd ended: %w", err)
	}
	return ctx.Err()
}

// snapshotter is overlayfs, or native where overlays cannot be mounted, as on another overlay.
func snapshotter(root string) string {
	dirs := map[string]string{}
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		dirs[name] = filepath.Join(root, "probe", name)
		if err := os.MkdirAll(dirs[name], 0o700); err != nil {
			return "native"
		}
	}
	defer os.RemoveAll(filepath.Join(root, "probe"))
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dirs["lower"], dirs["upper"], dirs["work"])
	if err := syscall.Mount("probe", dirs["merged"], "overlay", 0, options); err != nil {
		return "native"
	}
	_ = syscall.Unmount(dirs["merged"], 0)
	return "overlayfs"
}

// writeNetwork writes the configuration of the pods' network: a bridge, with addresses of a range. Other nodes have a route to it.
// Which addresses are in use is kept below /run, because no pod survives the node.
func writeNetwork(file, pods string) error {
	raw, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []map[string]any{{
			"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "promiscMode": false,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": "/run/cni",
				"ranges": [][]map[string]any{{{"subnet": pods}}},
				"routes": []map[string]any{{"dst": "0.0.0.0/0"}},
			},
		}, {
			"type": "portmap", "capabilities": map[string]any{"portMappings": true},
		}},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(file, raw, 0o600)
}

// importImages waits until containerd serves, and imports the archives.
func importImages(ctx context.Context, archives []string) error {
	err := poll(ctx, func(ctx context.Context) error { return ctr(ctx, "version") })
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := ctr(ctx, "--namespace", "k8s.io", "images", "import", archive); err != nil {
			return err
		}
	}
	return nil
}

func ctr(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ctr", append([]string{"--address", socket}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
