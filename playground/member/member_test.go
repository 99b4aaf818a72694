package member_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/store"
)

func TestMain(m *testing.M) {
	child.Main(map[string]child.Role{member.RoleName: member.Role})
	os.Exit(m.Run())
}

// TestClusterContinuesAfterRestart: a cluster runs a Deployment, and continues after a restart in the same
// directory, on the same port. Its controllers act as one user in the first run and have a service
// account each in the second; both work.
func TestClusterContinuesAfterRestart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), filepath.Join(dir, "members.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	endpoint, err := s.Serve(ctx, "east")
	if err != nil {
		t.Fatal(err)
	}
	config := member.Config{
		Name: "east", Dir: filepath.Join(dir, "east"), Store: endpoint,
		LogFile:  filepath.Join(dir, "east.log"),
		Progress: func(step string) { t.Log(step) },

		OneControllerIdentity: true,
	}
	started := time.Now()
	cluster, client := start(ctx, t, config)
	if v, err := client.Discovery().ServerVersion(); err != nil || !strings.HasPrefix(v.GitVersion, "v1.") {
		t.Errorf("version %v, error %v", v, err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 3 {
		t.Fatalf("%d nodes, error %v", len(nodes.Items), err)
	}
	for _, n := range nodes.Items {
		if n.Labels[corev1.LabelTopologyRegion] != "east" || n.Status.Allocatable.Cpu().Value() != 8 ||
			!strings.HasPrefix(n.Status.NodeInfo.KubeletVersion, "v1.") {
			t.Errorf("node %s: labels %v, allocatable %v, kubelet %q", n.Name, n.Labels, n.Status.Allocatable, n.Status.NodeInfo.KubeletVersion)
		}
	}
	t.Logf("started in %s", time.Since(started).Round(100*time.Millisecond))

	labels := map[string]string{"app": "web"}
	replicas := int32(5)
	web := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
			},
		},
	}
	if _, err := client.AppsV1().Deployments("default").Create(ctx, web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitAvailable(ctx, t, client, 5)
	// Controllers with identities of their own create these ServiceAccounts before they start.
	if _, err := client.CoreV1().ServiceAccounts("kube-system").Get(ctx, "deployment-controller", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("ServiceAccount of a controller, although all act as one user: %v", err)
	}
	if err := cluster.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}

	config.OneControllerIdentity = false
	again, client := start(ctx, t, config)
	defer again.Stop()
	if again.Kubeconfig != cluster.Kubeconfig {
		t.Errorf("kubeconfig was %s and is now %s", cluster.Kubeconfig, again.Kubeconfig)
	}
	scale, err := client.AppsV1().Deployments("default").GetScale(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 7
	if _, err := client.AppsV1().Deployments("default").UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitAvailable(ctx, t, client, 7)
	if _, err := client.CoreV1().ServiceAccounts("kube-system").Get(ctx, "deployment-controller", metav1.GetOptions{}); err != nil {
		t.Errorf("ServiceAccount of a controller with an identity of its own: %v", err)
	}
}

func start(ctx context.Context, t *testing.T, config member.Config) (*member.Cluster, kubernetes.Interface) {
	t.Helper()
	cluster, err := member.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Kill)
	rest, err := cluster.REST()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	return cluster, client
}

func waitAvailable(ctx context.Context, t *testing.T, client kubernetes.Interface, want int32) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		web, err := client.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = fmt.Sprintf("%d of %d available", web.Status.AvailableReplicas, want)
		return web.Status.AvailableReplicas == want && web.Status.ObservedGeneration == web.Generation, nil
	})
	if err != nil {
		t.Fatalf("%v: %s", err, last)
	}
}
