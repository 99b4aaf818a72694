package join

import (
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestRightsOfAnotherCluster: a cluster that joins under the name of another one that left is refused while that one's users
// have rights. The same cluster is not, nor one whose name is new.
func TestRightsOfAnotherCluster(t *testing.T) {
	server := fakeapi.New(t, fakeapi.BuiltIns("v1 ConfigMap", "rbac.authorization.k8s.io/v1 ClusterRoleBinding", "rbac.authorization.k8s.io/v1 RoleBinding")...)
	type fields = map[string]any
	put := func(kind, namespace, name string, subject fields) {
		metadata := fields{"name": name, "uid": name}
		if namespace != "" {
			metadata["namespace"] = namespace
		}
		server.Put(fields{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "subjects": []any{subject},
			"roleRef": fields{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}})
	}
	put("ClusterRoleBinding", "", "people", fields{"kind": "User", "name": "east:ann"})
	put("RoleBinding", "shop", "program", fields{"kind": "Group", "name": "east:system:serviceaccounts"})
	put("RoleBinding", "shop", "account", fields{"kind": "ServiceAccount", "name": "east:x", "namespace": "shop"})
	put("RoleBinding", "shop", "other", fields{"kind": "User", "name": "eastern:ann"})
	kube, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	if err := checkRights(t.Context(), kube, "east", "new"); err != nil {
		t.Errorf("no cluster left: %v", err)
	}
	server.Put(fields{"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"namespace": v1alpha1.SystemNamespace, "name": v1alpha1.LeftClusters, "uid": "l"},
		"data": fields{"east": "old", "west": "old"}})
	for _, tt := range []struct {
		name, cluster, id string
		refused           bool
	}{
		{"another cluster", "east", "new", true},
		{"an unknown one", "east", "", true},
		{"the same", "east", "old", false},
		{"without rights", "west", "new", false},
		{"a new name", "north", "new", false},
	} {
		err := checkRights(t.Context(), kube, tt.cluster, tt.id)
		rights, is := IsRights(err)
		if is != tt.refused || !is && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if is && (len(rights.Bindings) != 2 || !strings.Contains(err.Error(), "ClusterRoleBinding people (User east:ann), RoleBinding shop/program (Group east:system:serviceaccounts)") || !strings.Contains(err.Error(), "--yes")) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
