package server_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/fleet/multicluster"
	"github.com/atoll-dev/atoll/server"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var (
	services       = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	endpointSlices = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
)

// exporter is a cluster with one endpoint of the Service web in its namespace default.
func exporter(t *testing.T, id, address string) *fakeapi.Server {
	t.Helper()
	member := fakeapi.New(t, fakeapi.BuiltIns("v1 Namespace", "v1 Node", "v1 Pod", "v1 Event", "v1 ConfigMap", "v1 Secret", "v1 Service", "v1 ServiceAccount",
		"apps/v1 Deployment", "apps/v1 ReplicaSet", "coordination.k8s.io/v1 Lease", "discovery.k8s.io/v1 EndpointSlice",
		"apiextensions.k8s.io/v1 CustomResourceDefinition")...)
	member.Put(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "kube-system", "uid": id}})
	member.Put(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "reef"},
		"status": map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "4Gi", "pods": "110"}, "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}})
	member.Put(map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
		"metadata":    map[string]any{"name": "web-1", "namespace": "default", "labels": map[string]any{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		"addressType": "IPv4", "ports": []any{map[string]any{"port": int64(80), "protocol": "TCP"}},
		"endpoints": []any{map[string]any{"addresses": []any{address}, "conditions": map[string]any{"ready": true}}}})
	return member
}

// imported returns the addresses that a cluster has got for the exported Service web, in order; nil without the derived Service.
func imported(member *fakeapi.Server) (addresses []string) {
	derived := multicluster.DerivedName("default", "web")
	if member.Get(services, "default", derived) == nil {
		return nil
	}
	for _, slice := range member.List(endpointSlices) {
		if slice.GetLabels()[discoveryv1.LabelServiceName] != derived {
			continue
		}
		endpoints, _, _ := unstructured.NestedSlice(slice.Object, "endpoints")
		for _, e := range endpoints {
			of, _, _ := unstructured.NestedStringSlice(e.(map[string]any), "addresses")
			addresses = append(addresses, of...)
		}
	}
	slices.Sort(addresses)
	return addresses
}

// TestWorkspaceFleetServices: a Service that a workspace exports has the endpoints of all clusters of the workspace, in each of them. The root and another
// workspace export a Service of the same name, with clusters of the same names: none of them gets an endpoint of another one, and the
// end of one export ends no other.
func TestWorkspaceFleetServices(t *testing.T) {
	s := startFleets(t, server.Config{DataDir: t.TempDir(), WorkspaceMemberNetworks: loopbackMembers()})
	t.Cleanup(func() { _ = s.stop() })
	s.createWorkspace(t, "a")
	s.createWorkspace(t, "b")
	apis := map[string]atoll{"root": s, "a": s.in("a"), "b": s.in("b")}
	addresses := map[string][]string{"root": {"10.1.0.1", "10.1.0.2"}, "a": {"10.2.0.1", "10.2.0.2"}, "b": {"10.3.0.1", "10.3.0.2"}}
	members := map[string][]*fakeapi.Server{}
	for name, api := range apis {
		for i, cluster := range []string{"east", "west"} {
			member := exporter(t, name+"-"+cluster, addresses[name][i])
			if name == "a" && cluster == "west" {
				member.Serve(fakeapi.CRDsOf(t, multicluster.CRDs)...)
			}
			api.joinMember(t, cluster, member.Member())
			members[name] = append(members[name], member)
		}
		api.mustKubectl(t, "", "create", "deployment", "web", "--image=web", "--replicas=6")
		api.mustKubectl(t, "", "expose", "deployment", "web", "--port=80")
		api.mustKubectl(t, "{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {name: web, namespace: default}}", "create", "-f", "-")
	}
	await := func(name string, want []string) {
		t.Helper()
		within(t, time.Minute, "the clusters of "+name+" import "+fmt.Sprint(want), func(context.Context) error {
			for i, member := range members[name] {
				if got := imported(member); !slices.Equal(got, want) {
					out, _ := apis[name].kubectl(t, "", "get", "serviceexports,serviceimports,services,endpointslices,resourcebindings,clusters", "-n", "default", "-o", "wide")
					return fmt.Errorf("cluster %d has %v\n%s", i, got, out)
				}
			}
			return nil
		})
	}
	for name, api := range apis {
		await(name, addresses[name])
		api.mustKubectl(t, "", "wait", "serviceexport/web", "--for=condition=Ready", "--timeout=60s")
		if out := api.mustKubectl(t, "", "get", "serviceimport", "web", "-o", `jsonpath={.metadata.annotations.multicluster\.kubernetes\.io/derived-service}`); out != multicluster.DerivedName("default", "web") {
			t.Errorf("%s: the derived Service is %q", name, out)
		}
	}
	awaitImport := func(want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("the cluster that serves ServiceImports has it: %t", want), func(context.Context) error {
			if got := members["a"][1].Get(multicluster.ImportResource(), "default", "web"); (got != nil) != want {
				return fmt.Errorf("it has %v", got)
			}
			return nil
		})
	}
	awaitImport(true)
	members["a"][0].Merge(endpointSlices, "default", "web-1", `{"endpoints":[{"addresses":["10.2.0.9"],"conditions":{"ready":true}}]}`)
	await("a", []string{"10.2.0.2", "10.2.0.9"})

	apis["a"].mustKubectl(t, "", "delete", "serviceexport", "web")
	await("a", nil)
	awaitImport(false)
	await("b", addresses["b"])
	await("root", addresses["root"])
	for name, api := range apis {
		api.mustKubectl(t, "", "delete", "deployment,service", "web")
		api.mustKubectl(t, "", "delete", "clusters", "--all", "--timeout=60s")
		for i, member := range members[name] {
			if member.Get(services, "default", "web") != nil {
				t.Errorf("%s: cluster %d has left, and has the Service web", name, i)
			}
		}
	}
}
