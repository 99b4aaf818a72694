package member

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	kwokclientset "sigs.k8s.io/kwok/pkg/client/clientset/versioned"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	kwokclient "sigs.k8s.io/kwok/pkg/utils/client"

	"github.com/atoll-dev/atoll/apiserver"
)

// runKubelets simulates the kubelets of all nodes: it renews their Leases and moves the Pods bound to
// them through their phases.
func runKubelets(ctx context.Context, kubeconfig string) error {
	ctx = kwoklog.NewContext(ctx, kwoklog.NewLogger(os.Stderr, kwoklog.LevelWarn))
	stages, err := defaultStages()
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	clients, err := kwokclient.NewClientset("", kubeconfig)
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	config, err := clients.ToRESTConfig()
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	config.QPS = -1
	dynamicClient, err := clients.ToDynamicClient()
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	mapper, err := clients.ToRESTMapper()
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	restClient, err := rest.RESTClientFor(config)
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	typedKwok, err := kwokclientset.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	controller, err := controllers.NewController(controllers.Config{
		Clock:                      clock.RealClock{},
		DynamicClient:              dynamicClient,
		RESTClient:                 restClient,
		RESTMapper:                 mapper,
		ImpersonatingDynamicClient: clients.ToImpersonatingDynamicClient(),
		ImpersonatingTypedClient:   clients.ToImpersonatingTypedClient(),
		TypedClient:                typed,
		TypedKwokClient:            typedKwok,
		ManageAllNodes:             true,
		LocalStages:                stages,
		CIDR:                       "10.0.0.0/16",
		NodeIP:                     "10.1.0.1",
		ID:                         "playground",
		NodeLeaseDurationSeconds:   40, // a real kubelet's default
		NodeLeaseParallelism:       2,
		PodPlayStageParallelism:    4,
		NodePlayStageParallelism:   2,
		PodsOnNodeSyncParallelism:  1,
	})
	if err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	if err := controller.Start(ctx); err != nil {
		return fmt.Errorf("kwok: %w", err)
	}
	<-ctx.Done()
	return ctx.Err()
}

// defaultStages returns kwok's default stages for Nodes and Pods. The kwok command loads them from
// files; a controller without stages does nothing.
//
// Annotations of a Pod delay it as in kwok's general stages, for tests of programs that start slowly or
// take long: pod-ready.stage.kwok.x-k8s.io/delay is how long it takes to become ready, and
// pod-complete.stage.kwok.x-k8s.io/delay how long a Pod of a Job runs. If jitter-delay is there as well,
// the duration is a random one between the two.
func defaultStages() (map[internalversion.StageResourceRef][]*internalversion.Stage, error) {
	stages := map[internalversion.StageResourceRef][]*internalversion.Stage{}
	for _, yaml := range []string{
		nodefast.DefaultNodeInit,
		nodeheartbeat.DefaultNodeHeartbeatWithLease,
		podfast.DefaultPodReady,
		podfast.DefaultPodComplete,
		podfast.DefaultPodDelete,
	} {
		stage, err := kwokconfig.UnmarshalWithType[*internalversion.Stage](yaml)
		if err != nil {
			return nil, fmt.Errorf("read a default stage: %w", err)
		}
		if name := stage.Name; name == "pod-ready" || name == "pod-complete" {
			stage.Spec.Delay = &internalversion.StageDelay{
				DurationFrom:       fromAnnotation(name + ".stage.kwok.x-k8s.io/delay"),
				JitterDurationFrom: fromAnnotation(name + ".stage.kwok.x-k8s.io/jitter-delay"),
			}
		}
		ref := stage.Spec.ResourceRef
		stages[ref] = append(stages[ref], stage)
	}
	return stages, nil
}

// fromAnnotation has kwok read a duration from an annotation of the object, if it has that.
func fromAnnotation(name string) *internalversion.ExpressionFrom {
	return &internalversion.ExpressionFrom{JQ: &internalversion.ExpressionJQ{Expression: `.metadata.annotations["` + name + `"]`}}
}

// makeNodes creates the cluster's nodes, spread over three zones of one region.
func makeNodes(ctx context.Context, client kubernetes.Interface, region string, count int) error {
	resources := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("8"),
		corev1.ResourceMemory:           resource.MustParse("32Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	for i := range count {
		name := fmt.Sprintf("%s-%d", region, i+1)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name,
				Labels: map[string]string{
					corev1.LabelHostname:           name,
					corev1.LabelOSStable:           "linux",
					corev1.LabelArchStable:         "amd64",
					corev1.LabelTopologyRegion:     region,
					corev1.LabelTopologyZone:       fmt.Sprintf("%s-%c", region, 'a'+rune(i%3)),
					corev1.LabelInstanceTypeStable: "playground",
				},
			},
			Status: corev1.NodeStatus{
				Capacity:    resources,
				Allocatable: resources,
				NodeInfo:    corev1.NodeSystemInfo{KubeletVersion: apiserver.KubernetesVersion()},
			},
		}
		// The namespace for Leases and others appear shortly after the API server is ready, so this may
		// need a retry.
		err := poll(ctx, "create node "+name, func(ctx context.Context) error {
			_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// waitForNodes waits until all nodes are ready and schedulable: the node lifecycle controller taints
// new nodes and removes the taint later.
func waitForNodes(ctx context.Context, client kubernetes.Interface, count int) error {
	return poll(ctx, "wait for nodes to get ready", func(ctx context.Context) error {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		usable := 0
		for i := range nodes.Items {
			if isReady(&nodes.Items[i]) && len(nodes.Items[i].Spec.Taints) == 0 {
				usable++
			}
		}
		if usable < count {
			return fmt.Errorf("%d of %d are ready", usable, count)
		}
		return nil
	})
}

func isReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
