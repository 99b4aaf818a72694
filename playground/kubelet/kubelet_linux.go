package kubelet

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"

	"github.com/atoll-dev/atoll/playground/node"
)

// runKubelet runs the kubelet until ctx ends.
func runKubelet(ctx context.Context, cfg *node.Config, kubeconfig string) error {
	s, err := options.NewKubeletServer()
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	s.KubeConfig = kubeconfig
	s.HostnameOverride = cfg.Name
	s.NodeIP = cfg.Address().String()
	s.RootDirectory = "/var/lib/kubelet"
	s.NodeLabels = map[string]string{
		corev1.LabelTopologyRegion: cfg.Region, corev1.LabelTopologyZone: cfg.Zone, corev1.LabelInstanceTypeStable: "playground",
	}
	c := &s.KubeletConfiguration
	c.ContainerRuntimeEndpoint = "unix://" + socket
	c.Address = cfg.Address().String()
	c.ReadOnlyPort, c.HealthzPort = 0, 0
	c.TLSCertFile, c.TLSPrivateKeyFile = cfg.ServerCert, cfg.ServerKey
	// As installers of clusters configure it: the API server authorizes all requests.
	c.Authentication.Anonymous.Enabled = false
	c.Authentication.Webhook.Enabled = true
	c.Authentication.X509.ClientCAFile = cfg.CA
	c.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	c.FailCgroupV1, c.FailSwapOn = false, false
	c.CgroupRoot = "/" + cfg.Network.Namespace
	c.EnforceNodeAllocatable = []string{"none"}
	c.CgroupDriver = "cgroupfs"
	c.OOMScoreAdj = 0
	// There is no DNS server in the cluster.
	c.ResolverConfig = ""
	c.SeccompDefault = false
	c.VolumePluginDir = filepath.Join(cfg.Dir, "volume-plugins")
	// A machine of a developer may have a full disk, which is no reason to evict pods.
	c.EvictionHard = map[string]string{"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"}
	c.ImageGCHighThresholdPercent = 100
	deps, err := app.UnsecuredDependencies(ctx, s, utilfeature.DefaultFeatureGate)
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if err := app.Run(ctx, s, deps, utilfeature.DefaultFeatureGate); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	return ctx.Err()
}
