package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// operatorOf returns a Deployment whose account may write widgets.
func operatorOf(name, labels string) string {
	return strings.NewReplacer("OPERATOR", name, "LABELS", labels).Replace(`
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: OPERATOR, namespace: shop, uid: sa-OPERATOR}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: OPERATOR, uid: cr-OPERATOR}
rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: OPERATOR, uid: crb-OPERATOR}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: OPERATOR}
subjects: [{kind: ServiceAccount, name: OPERATOR, namespace: shop}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: OPERATOR, namespace: shop, uid: d-OPERATOR, labels: {LABELS}}
spec: {replicas: 1, template: {metadata: {labels: {app: OPERATOR}}, spec: {serviceAccountName: OPERATOR, containers: [{name: c, image: i}]}}}
`)
}

// TestOperatorsOfOneTypeAreTogether: an operator goes to the cluster where another works on its types.
func TestOperatorsOfOneTypeAreTogether(t *testing.T) {
	bound := `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterResourceBinding
metadata: {name: customresourcedefinition.apiextensions.k8s.io-widgets.example.com, uid: b, finalizers: [fleet.atoll.dev/empty-members]}
spec: {resource: {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, name: widgets.example.com, uid: crd}, clusters: [{name: west}]}
`
	for name, tt := range map[string]struct{ second, want string }{
		"one that works on the type": {operatorOf("second", ""), "west"},
		"one of other types":         {strings.Replace(operatorOf("second", ""), "example.com", "other.com", 1), "east"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, clusters+custom+bound+operatorOf("first", "fleet.atoll.dev/cluster: west")+tt.second)
			fakeapi.Until(t, "it is placed", func() bool { return clustersOf(t, c, "shop", "deployment.apps-second") != "" })
			if in := clustersOf(t, c, "shop", "deployment.apps-second"); in != tt.want {
				t.Errorf("it is in %s", in)
			}
			fakeapi.Until(t, "the type is there", func() bool {
				u := c.Get(v1alpha1.ClusterResourceBindingResource, "", "customresourcedefinition.apiextensions.k8s.io-widgets.example.com")
				return u != nil && strings.Contains(strings.Join(clusterNames(as[v1alpha1.ResourceBinding](t, u).Spec.Clusters), " "), "west")
			})
			agreesWithPreview(t, c)
		})
	}
}

// TestRolesThatComeAfterTheOperator: some manifests have an operator's Deployment before its account and roles.
// Without the account its pods cannot start, so the decision can wait for them.
func TestRolesThatComeAfterTheOperator(t *testing.T) {
	ofType := custom[:strings.Index(custom, "---\napiVersion: fleet.atoll.dev/v1alpha1\nkind: APIResourceImport")]
	c := begin(t, clusters+ofType+operatorOf("first", "fleet.atoll.dev/cluster: west"))
	fakeapi.Until(t, "the first has its type", func() bool {
		u := c.Get(v1alpha1.ClusterResourceBindingResource, "", "customresourcedefinition.apiextensions.k8s.io-widgets.example.com")
		return u != nil && len(as[v1alpha1.ResourceBinding](t, u).Spec.Clusters) > 0
	})
	now := time.Now()
	second := parse(t, operatorOf("second", ""))
	last := len(second) - 1
	second[last].SetCreationTimestamp(metav1.NewTime(now))
	c.Put(second[last])
	for _, obj := range second[:last] {
		obj.SetCreationTimestamp(metav1.NewTime(now.Add(time.Second)))
		c.Put(obj)
	}
	fakeapi.Until(t, "it is placed", func() bool { return clustersOf(t, c, "shop", "deployment.apps-second") != "" })
	if in := clustersOf(t, c, "shop", "deployment.apps-second"); in != "west" {
		t.Errorf("it is in %s", in)
	}
}

// TestNewObjectsGoWhereOperatorsAre: if one of two operators goes, or loses a right, its cluster keeps the type
// because of its objects, and new ones go to the other cluster.
func TestNewObjectsGoWhereOperatorsAre(t *testing.T) {
	roles := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	both := custom[:strings.LastIndex(custom, "---")] + strings.NewReplacer("widgets.east", "widgets.west", "location: east", "location: west").
		Replace(custom[strings.Index(custom, "kind: APIResourceImport")-len("apiVersion: fleet.atoll.dev/v1alpha1\n")-len("---\n"):strings.LastIndex(custom, "---")])
	const definition = "customresourcedefinition.apiextensions.k8s.io-widgets.example.com"
	for name, happens := range map[string]func(c *control){
		"deleted":    func(c *control) { c.Delete(roles, "", "first") },
		"less right": func(c *control) { c.Merge(roles, "", "first", `{"rules":[]}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, clusters+both+operatorOf("first", "fleet.atoll.dev/cluster: west")+operatorOf("second", "fleet.atoll.dev/cluster: east"))
			types := func() string {
				u := c.Get(v1alpha1.ClusterResourceBindingResource, "", definition)
				if u == nil {
					return ""
				}
				in := clusterNames(as[v1alpha1.ResourceBinding](t, u).Spec.Clusters)
				slices.Sort(in)
				return strings.Join(in, " ")
			}
			fakeapi.Until(t, "both have the type", func() bool { return types() == "east west" })
			c.Merge(v1alpha1.ClusterResourceBindingResource, "", definition, `{"status":{"clusters":[{"name":"east","uid":"e"},{"name":"west","uid":"w"}]}}`)
			happens(c)
			fakeapi.Until(t, "the type is where it belongs", func() bool {
				u := c.Get(v1alpha1.ClusterResourceBindingResource, "", definition)
				return types() == "east west" && len(as[v1alpha1.ResourceBinding](t, u).Spec.RequiredBy) == 1
			})
			for i := range 4 {
				c.Put(map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": fmt.Sprintf("w%d", i), "namespace": "shop"}})
			}
			for i := range 4 {
				binding := fmt.Sprintf("widget.example.com-w%d", i)
				// The first decision may come before the scheduler sees its own about the type.
				fakeapi.Until(t, "it is where something works on it", func() bool { return clustersOf(t, c, "shop", binding) == "east" })
			}
		})
	}
}
