package member

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	schedulerapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/atoll-dev/atoll/playground/keys"
)

// controllersToRun returns the controllers that applications need. It leaves out those for clouds,
// real volumes, devices and the kubelets' certificates, which do not exist here. There are no
// metrics either: autoscalers stay within their minimum and maximum, and report that.
func controllersToRun() []string {
	return []string{
		names.ServiceAccountTokenController,
		names.ServiceAccountController,
		names.RootCACertificatePublisherController,
		names.ClusterRoleAggregationController,
		names.NamespaceController,
		names.GarbageCollectorController,
		names.PodGarbageCollectorController,
		names.ResourceQuotaController,
		names.DeploymentController,
		names.ReplicaSetController,
		names.ReplicationControllerController,
		names.StatefulSetController,
		names.DaemonSetController,
		names.JobController,
		names.CronJobController,
		names.TTLAfterFinishedController,
		names.HorizontalPodAutoscalerController,
		names.DisruptionController,
		names.EndpointsController,
		names.EndpointSliceController,
		names.ServiceCIDRController,
		names.NodeLifecycleController,
		names.TaintEvictionController,
		names.PersistentVolumeBinderController,
		names.PersistentVolumeClaimProtectionController,
		names.PersistentVolumeProtectionController,
		names.EphemeralVolumeController,
		names.ValidatingAdmissionPolicyStatusController,
	}
}

func runControllers(ctx context.Context, cfg Config, files *keys.Keys, kubeconfig string) error {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return fmt.Errorf("kube-controller-manager: %w", err)
	}
	all, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	sets := o.Flags(all, disabled, aliases)
	o.ParsedFlags = &sets
	err = parse(sets, []string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--use-service-account-credentials=" + strconv.FormatBool(!cfg.OneControllerIdentity),
		"--controllers=" + strings.Join(controllersToRun(), ","),
		"--root-ca-file=" + files.CACert,
		"--service-account-private-key-file=" + files.ServiceAccountKey,
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		"--profiling=false",
	})
	if err != nil {
		return fmt.Errorf("kube-controller-manager: %w", err)
	}
	config, err := o.Config(ctx, all, disabled, aliases)
	if err != nil {
		return fmt.Errorf("kube-controller-manager: %w", err)
	}
	if err := app.Run(ctx, config.Complete()); err != nil {
		return fmt.Errorf("kube-controller-manager: %w", err)
	}
	return ctx.Err()
}

func runScheduler(ctx context.Context, kubeconfig string) error {
	o := scheduleroptions.NewOptions()
	err := parse(*o.Flags, []string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		"--profiling=false",
	})
	if err != nil {
		return fmt.Errorf("kube-scheduler: %w", err)
	}
	config, scheduler, err := schedulerapp.Setup(ctx, o)
	if err != nil {
		return fmt.Errorf("kube-scheduler: %w", err)
	}
	if err := schedulerapp.Run(ctx, config, scheduler); err != nil && ctx.Err() == nil {
		return fmt.Errorf("kube-scheduler: %w", err)
	}
	return ctx.Err()
}
