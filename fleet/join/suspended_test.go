package join

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestSuspendedShareCannotLeave: the share of a suspended workload cannot be made up elsewhere, so a cluster that
// has one does not leave.
func TestSuspendedShareCannotLeave(t *testing.T) {
	control := fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)
	for _, manifest := range []string{`
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: deployment.apps-web, namespace: shop}
spec: {resource: {apiVersion: apps/v1, kind: Deployment, name: web, uid: web}, suspend: true, clusters: [{name: east, replicas: 2}, {name: west, replicas: 0}]}
`, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: deployment.apps-api, namespace: shop}
spec: {resource: {apiVersion: apps/v1, kind: Deployment, name: api, uid: api}, clusters: [{name: north, replicas: 2}]}
`, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterResourceBinding
metadata: {name: widget.example.com-one}
spec: {resource: {apiVersion: example.com/v1, kind: Widget, name: one, uid: one}, suspend: true, clusters: [{name: south}]}
`} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
			t.Fatal(err)
		}
		control.Put(u)
	}
	client, err := dynamic.NewForConfig(control.Config())
	if err != nil {
		t.Fatal(err)
	}
	for cluster, want := range map[string]string{"east": "suspends Deployment shop/web", "west": "", "north": "", "south": "suspends Widget one"} {
		err := checkSuspended(t.Context(), client, cluster)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", cluster, err)
		}
	}
}
