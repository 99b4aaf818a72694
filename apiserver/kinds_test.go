package apiserver_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestBuiltInKinds: common resources are served with their subresources, the workload
// kinds only if enabled. Resources that a workspace cannot implement are not served.
func TestBuiltInKinds(t *testing.T) {
	t.Parallel()
	const always = `
v1 configmaps secrets serviceaccounts namespaces namespaces/status namespaces/finalize events resourcequotas resourcequotas/status
rbac.authorization.k8s.io/v1 roles rolebindings clusterroles clusterrolebindings
admissionregistration.k8s.io/v1 mutatingwebhookconfigurations validatingwebhookconfigurations validatingadmissionpolicies validatingadmissionpolicies/status validatingadmissionpolicybindings
apiextensions.k8s.io/v1 customresourcedefinitions customresourcedefinitions/status
coordination.k8s.io/v1 leases
certificates.k8s.io/v1 certificatesigningrequests`
	const workloads = `
v1 pods pods/status pods/log pods/exec pods/eviction services services/status endpoints limitranges podtemplates
v1 persistentvolumes persistentvolumes/status persistentvolumeclaims persistentvolumeclaims/status
v1 replicationcontrollers replicationcontrollers/status replicationcontrollers/scale
apps/v1 deployments deployments/status deployments/scale replicasets replicasets/status replicasets/scale statefulsets statefulsets/status statefulsets/scale daemonsets daemonsets/status controllerrevisions
batch/v1 jobs jobs/status cronjobs cronjobs/status
autoscaling/v1 horizontalpodautoscalers horizontalpodautoscalers/status
autoscaling/v2 horizontalpodautoscalers horizontalpodautoscalers/status
networking.k8s.io/v1 ingresses ingresses/status ingressclasses networkpolicies
policy/v1 poddisruptionbudgets poddisruptionbudgets/status
scheduling.k8s.io/v1 priorityclasses
node.k8s.io/v1 runtimeclasses
storage.k8s.io/v1 storageclasses csidrivers
discovery.k8s.io/v1 endpointslices`
	const never = `
v1 componentstatuses
networking.k8s.io/v1 servicecidrs ipaddresses
storage.k8s.io/v1 volumeattachments`

	t.Run("with workload APIs", func(t *testing.T) {
		served := servedBy(t, true)
		wantServed(t, served, always+workloads, true)
		wantServed(t, served, never, false)
	})
	t.Run("without", func(t *testing.T) {
		served := servedBy(t, false)
		wantServed(t, served, always, true)
		wantServed(t, served, never, false)
		wantServed(t, served, workloads, false)
	})
}

// servedBy starts a server and returns its resources, each with its group version in
// one string.
func servedBy(t *testing.T, workloads bool) []string {
	t.Helper()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	files.WorkloadAPIs = workloads
	server := startServer(t, keyspace, files, "sole")
	defer func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	}()
	_, lists, err := server.client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, list := range lists {
		for _, resource := range list.APIResources {
			out = append(out, list.GroupVersion+" "+resource.Name)
		}
	}
	return out
}

func wantServed(t *testing.T, served []string, table string, want bool) {
	t.Helper()
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		for i := 1; i < len(fields); i++ {
			if resource := fields[0] + " " + fields[i]; slices.Contains(served, resource) != want {
				t.Errorf("%s is served: %t, want %t", resource, !want, want)
			}
		}
	}
}
