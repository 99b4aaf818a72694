package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	fleetv1alpha1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/status"
)

func TestDeploymentFromCreateToRolloutStatus(t *testing.T) {
	inEachAPI(t, testDeploymentFromCreateToRolloutStatus)
}

func testDeploymentFromCreateToRolloutStatus(t *testing.T, s atoll) {
	client, ns := s.client(t), s.namespace(t)
	s.mustKubectl(t, "", "create", "deployment", "web", "--image=nginx", "--replicas=9", "-n", ns)
	s.mustKubectl(t, "", "scale", "deployment/web", "--replicas=10", "-n", ns)
	s.mustKubectl(t, "", "set", "image", "deployment/web", "nginx=nginx:1.29", "-n", ns)

	// A strategic merge patch adds a container; a JSON merge patch would replace the
	// list.
	s.mustKubectl(t, "", "patch", "deployment/web", "-n", ns,
		"-p", `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"busybox"}]}}}}`)
	web, err := client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	containers := web.Spec.Template.Spec.Containers
	if *web.Spec.Replicas != 10 || len(containers) != 2 || containers[1].Image != "nginx:1.29" {
		t.Errorf("%d replicas of %v", *web.Spec.Replicas, containers)
	}
	if web.Spec.Template.Spec.ServiceAccountName != "" || len(web.Spec.Template.Spec.Volumes) > 0 {
		t.Errorf("the template was changed: %+v", web.Spec.Template.Spec)
	}
	if web.Generation != 4 {
		t.Errorf("generation is %d after four changes of the spec", web.Generation)
	}

	summarise(t, client, web)
	if out := s.mustKubectl(t, "", "rollout", "status", "deployment/web", "-n", ns, "--timeout=10s"); !strings.Contains(out, "successfully rolled out") {
		t.Error(out)
	}
	if out := s.mustKubectl(t, "", "get", "deploy", "web", "-n", ns); !strings.Contains(out, "10/10") {
		t.Error(out)
	}
}

// summarise writes the status that the fleet would.
func summarise(t *testing.T, client kubernetes.Interface, d *appsv1.Deployment) {
	t.Helper()
	n := *d.Spec.Replicas
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n,
	}
	if _, err := client.AppsV1().Deployments(d.Namespace).UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestPodsWithoutClusters: commands for a pod that runs in no cluster say so.
func TestPodsWithoutClusters(t *testing.T) { inEachAPI(t, testPodsWithoutClusters) }

func testPodsWithoutClusters(t *testing.T, s atoll) {
	ns := s.namespace(t)
	s.mustKubectl(t, "", "run", "stored", "--image=nginx", "-n", ns)
	for _, args := range [][]string{{"logs", "none"}, {"exec", "none", "--", "true"}, {"attach", "none"}, {"port-forward", "none", "80"}} {
		out, err := s.kubectl(t, "", append([]string{args[0], "-n", ns}, args[1:]...)...)
		if err == nil || !strings.Contains(out, `pods "none" not found`) {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
	// Clusters of other tests pull, which the answer warns of.
	if out := s.mustKubectl(t, "", "get", "pods", "-n", ns, "-o", "name"); strings.Count(out, "pod/") != 1 || !strings.Contains(out, "pod/stored\n") {
		t.Errorf("pods: %s", out)
	}
}

func TestServerSideApplyTracksFieldOwners(t *testing.T) {
	inEachAPI(t, testServerSideApplyTracksFieldOwners)
}

func testServerSideApplyTracksFieldOwners(t *testing.T, s atoll) {
	ns := s.namespace(t)
	deployment := `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: ` + ns + `}, spec: {
  replicas: %d, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: nginx}]}}}}`
	s.mustKubectl(t, fmt.Sprintf(deployment, 1), "apply", "--server-side", "-f", "-")
	out, err := s.kubectl(t, fmt.Sprintf(deployment, 2), "apply", "--server-side", "--field-manager=other", "-f", "-")
	if err == nil || !strings.Contains(out, ".spec.replicas") {
		t.Errorf("two managers of one field: %v\n%s", err, out)
	}
	s.mustKubectl(t, fmt.Sprintf(deployment, 2), "apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-")
}

// TestApplyKeepsTheAutoscaledCount: the fleet writes the count that autoscalers decided. A manifest
// without replicas leaves it alone, also if an earlier version had them.
func TestApplyKeepsTheAutoscaledCount(t *testing.T) { inEachAPI(t, testApplyKeepsTheAutoscaledCount) }

func testApplyKeepsTheAutoscaledCount(t *testing.T, s atoll) {
	client, ns := s.client(t).AppsV1(), s.namespace(t)
	deployment := func(name, replicas, image string) string {
		return fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s, namespace: %s}, spec: {%s
  selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: %s}]}}}}`, name, ns, replicas, image)
	}
	for name, apply := range map[string][]string{"client": {"apply", "-f", "-"}, "server": {"apply", "--server-side", "-f", "-"}} {
		first := ""
		if name == "server" {
			first = "replicas: 1,"
		}
		s.mustKubectl(t, deployment(name, first, "nginx:1"), apply...)
		web, err := client.Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"replicas":7}}`, web.UID, web.ResourceVersion)
		for range 2 { // the second one is based on an old version
			_, err = client.Deployments(ns).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: status.ScaleManager})
			patch = strings.Replace(patch, `"replicas":7`, `"replicas":8`, 1)
		}
		if !apierrors.IsConflict(err) {
			t.Errorf("%s: a count for an old version: %v, want a conflict", name, err)
		}
		s.mustKubectl(t, deployment(name, "", "nginx:2"), apply...)
		if web, err = client.Deployments(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil || *web.Spec.Replicas != 7 {
			t.Errorf("%s: %v, %d replicas after the next apply, want 7", name, err, *web.Spec.Replicas)
		}
	}
}

func TestServicesKeepTheirAddresses(t *testing.T) { inEachAPI(t, testServicesKeepTheirAddresses) }

func testServicesKeepTheirAddresses(t *testing.T, s atoll) {
	client, ns := s.client(t).CoreV1(), s.namespace(t)
	create := func(name string, spec corev1.ServiceSpec) *corev1.Service {
		t.Helper()
		if spec.Type != corev1.ServiceTypeExternalName {
			spec.Ports = []corev1.ServicePort{{Port: 80}}
		}
		svc, err := client.Services(ns).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("create Service %s: %v", name, err)
		}
		return svc
	}
	selector := map[string]string{"app": "web"}
	plain := create("plain", corev1.ServiceSpec{Selector: selector})
	if !fleetv1alpha1.IsServiceAddress(plain.Spec.ClusterIP) || len(plain.Spec.ClusterIPs) != 1 || len(plain.Spec.IPFamilies) > 0 {
		t.Errorf("a plain Service got other addresses than the control plane's: %+v", plain.Spec)
	}
	for _, kind := range []corev1.ServiceType{corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer} {
		svc := create(strings.ToLower(string(kind)), corev1.ServiceSpec{Type: kind, Selector: selector, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal})
		if svc.Spec.Ports[0].NodePort != 0 || svc.Spec.HealthCheckNodePort != 0 {
			t.Errorf("a %s Service got ports: %+v", kind, svc.Spec)
		}
	}
	if svc := create("headless", corev1.ServiceSpec{ClusterIP: "None", Selector: selector}); svc.Spec.ClusterIPs[0] != "None" {
		t.Errorf("headless: %+v", svc.Spec)
	}
	given := create("given", corev1.ServiceSpec{ClusterIP: "10.1.2.3", Selector: selector})
	if given.Spec.ClusterIPs[0] != "10.1.2.3" {
		t.Errorf("given: %+v", given.Spec)
	}
	create("external", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"})

	// An update without the address keeps it.
	given.Spec.ClusterIP, given.Spec.ClusterIPs, given.ResourceVersion = "", nil, ""
	if svc, err := client.Services(ns).Update(t.Context(), given, metav1.UpdateOptions{}); err != nil || svc.Spec.ClusterIP != "10.1.2.3" {
		t.Errorf("update without an address: %v, %+v", err, svc)
	}
	// Neither changing the type back and forth nor deletion needs an allocator.
	if _, err := client.Services(ns).Patch(t.Context(), "nodeport", types.MergePatchType, []byte(`{"spec":{"type":"ClusterIP","externalTrafficPolicy":null}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"plain", "nodeport", "loadbalancer", "headless", "given", "external"} {
		if err := client.Services(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	}
}

func TestEndpointsGoWithTheirService(t *testing.T) { inEachAPI(t, testEndpointsGoWithTheirService) }

func testEndpointsGoWithTheirService(t *testing.T, s atoll) {
	ns := s.namespace(t)
	core := s.client(t).CoreV1()
	for _, name := range []string{"one", "two", "three"} {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		if name == "two" {
			service.Finalizers = []string{"example.com/wait"}
		}
		if _, err := core.Services(ns).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := core.Endpoints(ns).Create(t.Context(), &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	left := func() []string {
		t.Helper()
		list, err := core.Endpoints(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range list.Items {
			names = append(names, e.Name)
		}
		return names
	}
	if err := core.Services(ns).Delete(t.Context(), "one", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if got := left(); !slices.Equal(got, []string{"one", "three", "two"}) {
		t.Fatalf("Endpoints after a dry run: %v", got)
	}
	if err := core.Services(ns).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := core.RESTClient().Delete().Namespace(ns).Resource("services").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	if got := left(); !slices.Equal(got, []string{"two"}) {
		t.Fatalf("Endpoints after the deletion of the Services: %v, want those of the one with a finalizer", got)
	}
	if _, err := core.Services(ns).Patch(t.Context(), "two", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := left(); len(got) > 0 {
		t.Fatalf("Endpoints after the last finalizer of their Service: %v", got)
	}
}

func TestPodsAreStoredAsGiven(t *testing.T) { inEachAPI(t, testPodsAreStoredAsGiven) }

func testPodsAreStoredAsGiven(t *testing.T, s atoll) {
	client, ns := s.client(t).CoreV1(), s.namespace(t)
	privileged := true
	pod, err := client.Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec: corev1.PodSpec{
			PriorityClassName: "of-the-member",
			Containers:        []corev1.Container{{Name: "c", Image: "nginx", SecurityContext: &corev1.SecurityContext{Privileged: &privileged}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.Volumes) > 0 || len(pod.Spec.Tolerations) > 0 || pod.Spec.Priority != nil {
		t.Errorf("the Pod was changed: %+v", pod.Spec)
	}
	explained := "pod \"one\" runs in no cluster yet: `kubectl get resourcebinding pod-one -n " + ns + "`"
	if s.path != "" {
		explained = "use kubectl with a kubeconfig of the cluster"
	}
	for _, args := range [][]string{
		{"logs", "one"}, {"exec", "one", "--", "true"}, {"attach", "one"},
		{"get", "--raw", "/api/v1/namespaces/" + ns + "/pods/one/portforward?ports=80"},
		{"get", "--raw", "/api/v1/namespaces/" + ns + "/pods/one/proxy/"},
	} {
		out, err := s.kubectl(t, "", append([]string{"-n", ns}, args...)...)
		if err == nil || !strings.Contains(out, explained) {
			t.Errorf("kubectl %v: %v\n%s", args, err, out)
		}
	}
	if out, err := s.kubectl(t, "", "-n", ns, "get", "--raw", "/api/v1/namespaces/"+ns+"/pods/two/log"); err == nil || !strings.Contains(out, "NotFound") {
		t.Errorf("log of no Pod: %v\n%s", err, out)
	}
	s.mustKubectl(t, "", "-n", ns, "delete", "pod", "one")
}

func TestDiscoveryMatchesCluster(t *testing.T) {
	s := theServer(t)
	out := s.mustKubectl(t, "", "api-resources", "--no-headers", "-o", "name")
	for _, want := range []string{
		"pods", "services", "endpoints", "nodes", "persistentvolumeclaims", "deployments.apps", "cronjobs.batch",
		"horizontalpodautoscalers.autoscaling", "ingresses.networking.k8s.io", "poddisruptionbudgets.policy",
		"storageclasses.storage.k8s.io", "priorityclasses.scheduling.k8s.io", "endpointslices.discovery.k8s.io",
		"customresourcedefinitions.apiextensions.k8s.io", "leases.coordination.k8s.io", "clusterroles.rbac.authorization.k8s.io",
	} {
		if !strings.Contains("\n"+out, "\n"+want+"\n") {
			t.Errorf("%s is not served", want)
		}
	}
	for _, without := range []string{"componentstatuses", "servicecidrs.networking.k8s.io", "ipaddresses.networking.k8s.io"} {
		if strings.Contains("\n"+out, "\n"+without+"\n") {
			t.Errorf("%s is served", without)
		}
	}
	if out := s.mustKubectl(t, "", "explain", "deployment.spec.replicas"); !strings.Contains(out, "Number of desired pods") {
		t.Error(out)
	}
}

func TestOwnedObjectsGoWithTheirOwner(t *testing.T) { inEachAPI(t, testOwnedObjectsGoWithTheirOwner) }

func testOwnedObjectsGoWithTheirOwner(t *testing.T, s atoll) {
	client, ns := s.client(t), s.namespace(t)
	s.mustKubectl(t, "", "create", "deployment", "web", "--image=nginx", "-n", ns)
	web, err := client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := createConfigMap(t, client, ns, "owned")
	block := true
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: web.UID, BlockOwnerDeletion: &block}}
	if _, err := client.CoreV1().ConfigMaps(ns).Update(t.Context(), owned, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.mustKubectl(t, "", "delete", "deployment", "web", "-n", ns, "--cascade=foreground", "--timeout=20s")
	eventually(t, "the owned ConfigMap is deleted", func(ctx context.Context) error {
		return gone(client.CoreV1().ConfigMaps(ns).Get(ctx, "owned", metav1.GetOptions{}))
	})
}

func TestQuotaAndLimits(t *testing.T) { inEachAPI(t, testQuotaAndLimits) }

func testQuotaAndLimits(t *testing.T, s atoll) {
	ns := s.namespace(t)
	s.mustKubectl(t, "", "create", "quota", "small", "--hard=count/deployments.apps=1,pods=1", "-n", ns)
	eventually(t, "the quota is computed", func(ctx context.Context) error {
		q, err := s.client(t).CoreV1().ResourceQuotas(ns).Get(ctx, "small", metav1.GetOptions{})
		if err == nil && len(q.Status.Used) < 2 {
			err = fmt.Errorf("counted so far: %v", q.Status.Used)
		}
		return err
	})
	s.mustKubectl(t, "", "create", "deployment", "one", "--image=nginx", "-n", ns)
	if out, err := s.kubectl(t, "", "create", "deployment", "two", "--image=nginx", "-n", ns); err == nil || !strings.Contains(out, "exceeded quota") {
		t.Errorf("a second Deployment: %v\n%s", err, out)
	}
}

// TestWatchWithoutBookmarks: a watch of pods or nodes whose client accepts no bookmarks gets none, also if it begins with the present objects.
func TestWatchWithoutBookmarks(t *testing.T) {
	s := theServer(t)
	for _, path := range []string{"/api/v1/nodes", "/api/v1/pods"} {
		got, err := s.client(t).RESTClient().Get().AbsPath(path).Param("watch", "1").Param("resourceVersion", "0").Param("timeoutSeconds", "1").DoRaw(t.Context())
		if err != nil || strings.Contains(string(got), "BOOKMARK") {
			t.Errorf("%s: %v %s", path, err, got)
		}
	}
}
