package scheduler

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// tiers is a front end in both clusters, and a database in west with its Ingress.
const tiers = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: front, namespace: shop, uid: f}
spec: {replicas: 2, template: {metadata: {labels: {app: front}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: db, namespace: shop, uid: d, labels: {fleet.atoll.dev/cluster: west}}
spec: {replicas: 1, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop, uid: s}
spec: {selector: {app: db}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: db, namespace: shop, uid: i}
spec: {defaultBackend: {service: {name: db, port: {number: 80}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: read-by-api, namespace: shop, uid: c}
---
apiVersion: v1
kind: Secret
metadata: {name: sh.helm.release.v1.shop.v1, namespace: shop, uid: h}
type: helm.sh/release.v1
---
apiVersion: v1
kind: Secret
metadata: {name: other, namespace: elsewhere, uid: o}
`

// TestConfigurationGoesWithNamespace: a namespace's configuration is wherever its workloads run. What
// uses a Service stays where the Service's pods are. A custom resource at home in the control plane is none of
// them.
func TestConfigurationGoesWithNamespace(t *testing.T) {
	c := begin(t, clusters+tiers+strings.Replace(custom, "uid: w1}", "uid: w1, "+strings.ReplaceAll(keptHere, `":`, `": `)+"}", 1))
	decided(t, c, `
configmap-read-by-api: east, west [{ Namespace shop}]
deployment.apps-db: west 1
deployment.apps-front: east 1, west 1
ingress.networking.k8s.io-db: west [{ Service db}]
service-db: west, east [{ Deployment db} { Namespace shop}]
`)
	// The last workload leaves a cluster, and the configuration with it, on the user's request.
	c.Delete(deployments, "shop", "front")
	decided(t, c, `
configmap-read-by-api: west [{ Namespace shop}]
deployment.apps-db: west 1
ingress.networking.k8s.io-db: west [{ Service db}]
service-db: west [{ Deployment db} { Namespace shop}]
`)
	c.Delete(deployments, "shop", "db")
	decided(t, c, "\n")
}

// TestConfigurationLeavesOnRequest: when a workload is deleted, the removal of the configuration that
// went along with it was requested. When it moves, it was not.
func TestConfigurationLeavesOnRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		happens func(*control)
		want    string
	}{
		"deleted": {func(c *control) { c.Delete(deployments, "shop", "front") },
			"configmap-read-by-api: east UsersDeleted\nservice-db: east UsersDeleted\n"},
		"moved": {func(c *control) {
			c.Merge(deployments, "shop", "front", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"west"}}}`)
		}, "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c := begin(t, clusters+tiers)
			decided(t, c, `
configmap-read-by-api: east, west [{ Namespace shop}]
deployment.apps-db: west 1
deployment.apps-front: east 1, west 1
ingress.networking.k8s.io-db: west [{ Service db}]
service-db: west, east [{ Deployment db} { Namespace shop}]
`)
			report(t, c)
			tt.happens(c)
			waitForRequests(t, c, strings.TrimLeft(tt.want, "\n"))
		})
	}
}

// TestConfigurationWhereNeeded: a label of the object or its namespace, or a policy, keeps configuration
// from clusters where nothing refers to it.
func TestConfigurationWhereNeeded(t *testing.T) {
	const needed = `
deployment.apps-db: west 1
deployment.apps-front: east 1, west 1
ingress.networking.k8s.io-db: west [{ Service db}]
service-db: west [{ Deployment db}]
`
	const namespace = "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, uid: n, labels: {fleet.atoll.dev/configuration: WhereNeeded}}\n"
	t.Run("namespace", func(t *testing.T) {
		c := begin(t, clusters+tiers+namespace)
		decided(t, c, needed)
		c.Merge(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "shop", `{"metadata":{"labels":{"fleet.atoll.dev/configuration":null}}}`)
		decided(t, c, "\nconfigmap-read-by-api: east, west [{ Namespace shop}]"+strings.Replace(needed, "service-db: west [{ Deployment db}]", "service-db: west, east [{ Deployment db} { Namespace shop}]", 1))
	})
	t.Run("object", func(t *testing.T) {
		c := begin(t, clusters+tiers+namespace)
		decided(t, c, needed)
		c.Merge(configMaps, "shop", "read-by-api", `{"metadata":{"labels":{"fleet.atoll.dev/configuration":"WithNamespace"}}}`)
		decided(t, c, "\nconfigmap-read-by-api: east, west [{ Namespace shop}]"+needed)
	})
	t.Run("policy", func(t *testing.T) {
		c := begin(t, clusters+tiers)
		c.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ClusterPlacement",
			"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"configuration": "WhereNeeded"}}})
		decided(t, c, `
deployment.apps-db: west 1 by ClusterPlacement default
deployment.apps-front: east 1, west 1 by ClusterPlacement default
ingress.networking.k8s.io-db: west [{ Service db}]
service-db: west [{ Deployment db}]
`)
	})
}

// fakeCredentials are those of one Secret, shop/cloud.
type fakeCredentials struct {
	named  atomic.Bool
	notify func(string, []string)
}

func (f *fakeCredentials) Ready(context.Context) error { return nil }

func (f *fakeCredentials) Named(namespace, secret string) bool {
	return namespace == "shop" && secret == "cloud" && f.named.Load()
}

func (f *fakeCredentials) OnChange(notify func(string, []string)) func() {
	f.notify = notify
	return func() {}
}

// TestCredentialsStay: a Secret that configures a provider does not go along with workloads. While it is
// new, it may become one.
func TestCredentialsStay(t *testing.T) {
	f := &fakeCredentials{}
	f.named.Store(true)
	c := beginWith(t, Config{Credentials: f}, clusters+`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: db, namespace: shop, uid: d, labels: {fleet.atoll.dev/cluster: west}}
spec: {replicas: 1, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: v1
kind: Secret
metadata: {name: cloud, namespace: shop, uid: s1, creationTimestamp: 2026-01-01T00:00:00Z}
---
apiVersion: v1
kind: Secret
metadata: {name: old, namespace: shop, uid: s2, creationTimestamp: 2026-01-01T00:00:00Z}
---
apiVersion: v1
kind: Secret
metadata: {name: new, namespace: shop, uid: s3, creationTimestamp: `+time.Now().Add(time.Hour).Format(time.RFC3339)+`}
`)
	const others = "deployment.apps-db: west 1\nsecret-old: west [{ Namespace shop}]\n"
	decided(t, c, others)
	f.named.Store(false)
	f.notify("shop", []string{"cloud"})
	decided(t, c, strings.Replace(others, "secret-old", "secret-cloud: west [{ Namespace shop}]\nsecret-old", 1))
	f.named.Store(true)
	f.notify("shop", []string{"cloud"})
	decided(t, c, others)
}

// controllerOfWidgets is an operator whose permissions come from an aggregated role, which names its
// types by their group, and from a namespace of Kubernetes' own.
const controllerOfWidgets = `
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: shop, uid: sa}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: whole, uid: cr}
aggregationRule: {clusterRoleSelectors: [{matchLabels: {part: "true"}}]}
rules: []
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: part, uid: cp, labels: {part: "true"}}
rules: [{apiGroups: [example.com], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: view-widgets, uid: cv, labels: {rbac.authorization.k8s.io/aggregate-to-view: "true"}}
rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: view-others, uid: co, labels: {rbac.authorization.k8s.io/aggregate-to-view: "true"}}
rules: [{apiGroups: [other.example.com], resources: [others], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operator, uid: crb}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: whole}
subjects: [{kind: ServiceAccount, name: operator, namespace: shop}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: leader, namespace: kube-system, uid: r}
rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: leader, namespace: kube-system, uid: rb}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leader}
subjects: [{kind: ServiceAccount, name: operator, namespace: shop}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: people, namespace: kube-system, uid: rp}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leader}
subjects: [{kind: User, name: jane}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com, uid: crd}
spec: {group: example.com, scope: Namespaced, names: {plural: widgets, kind: Widget}, versions: [{name: v1, served: true, storage: true}]}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: others.other.example.com, uid: cro}
spec: {group: other.example.com, scope: Namespaced, names: {plural: others, kind: Other}, versions: [{name: v1, served: true, storage: true}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: edit-widgets, uid: re, labels: {rbac.authorization.k8s.io/aggregate-to-edit: "true"}}
rules: [{apiGroups: [example.com], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: autoscaler-reads-metrics, uid: ra}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metrics}
subjects: [{kind: ServiceAccount, name: horizontal-pod-autoscaler, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: metrics, uid: rm}
rules: [{apiGroups: [external.metrics.k8s.io], resources: ["*"], verbs: [get]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: operator, namespace: shop, uid: op, labels: {fleet.atoll.dev/cluster: west}}
spec: {replicas: 1, template: {metadata: {labels: {app: operator}}, spec: {serviceAccountName: operator, containers: [{name: c, image: i}]}}}
`

// TestOperatorsPermissions: everything that an operator's permissions consist of is where it runs.
func TestOperatorsPermissions(t *testing.T) {
	c := begin(t, clusters+controllerOfWidgets)
	const rbac = ".rbac.authorization.k8s.io-"
	decided(t, c, `
clusterrole`+rbac+`edit-widgets: west [{ CustomResourceDefinition widgets.example.com}]
clusterrole`+rbac+`metrics: west [{ ClusterRoleBinding autoscaler-reads-metrics}]
clusterrole`+rbac+`part: west [{ ClusterRole whole}]
clusterrole`+rbac+`view-widgets: west [{ CustomResourceDefinition widgets.example.com}]
clusterrole`+rbac+`whole: west [{ ClusterRoleBinding operator}]
clusterrolebinding`+rbac+`autoscaler-reads-metrics: west [{ Namespace *}]
clusterrolebinding`+rbac+`operator: west [{shop ServiceAccount operator}]
customresourcedefinition.apiextensions.k8s.io-widgets.example.com: west [{ ClusterRole part}]
role`+rbac+`leader: west [{ RoleBinding leader}]
rolebinding`+rbac+`leader: west [{shop ServiceAccount operator}]
deployment.apps-operator: west 1
serviceaccount-operator: west [{ Deployment operator} { Namespace shop}]
`)
	// Without its label, the role is no part any more, and nothing needs it.
	c.Merge(schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, "", "part", `{"metadata":{"labels":null}}`)
	decided(t, c, `
clusterrole`+rbac+`edit-widgets: west [{ CustomResourceDefinition widgets.example.com}]
clusterrole`+rbac+`metrics: west [{ ClusterRoleBinding autoscaler-reads-metrics}]
clusterrole`+rbac+`view-widgets: west [{ CustomResourceDefinition widgets.example.com}]
clusterrole`+rbac+`whole: west [{ ClusterRoleBinding operator}]
clusterrolebinding`+rbac+`autoscaler-reads-metrics: west [{ Namespace *}]
clusterrolebinding`+rbac+`operator: west [{shop ServiceAccount operator}]
customresourcedefinition.apiextensions.k8s.io-widgets.example.com: west
role`+rbac+`leader: west [{ RoleBinding leader}]
rolebinding`+rbac+`leader: west [{shop ServiceAccount operator}]
deployment.apps-operator: west 1
serviceaccount-operator: west [{ Deployment operator} { Namespace shop}]
`)
}

// TestTypeGoesWithItsObjects: a type that no cluster serves and no role names goes where a policy or a label
// wants its objects. It stays when they are placed, because it holds them.
func TestTypeGoesWithItsObjects(t *testing.T) {
	unserved := custom[:strings.Index(custom, "---\napiVersion: fleet.atoll.dev/v1alpha1\nkind: APIResourceImport")]
	widget := custom[strings.Index(custom, "---\napiVersion: example.com"):]
	served := strings.TrimSuffix(strings.TrimPrefix(custom, unserved), widget)
	c := begin(t, clusters+unserved+strings.Replace(widget, "uid: w1", "uid: w1, labels: {fleet.atoll.dev/cluster: east}", 1))
	decided(t, c, `
customresourcedefinition.apiextensions.k8s.io-widgets.example.com: east
widget.example.com-one: no cluster
`)
	for _, u := range parse(t, served) {
		c.Put(u)
	}
	decided(t, c, `
customresourcedefinition.apiextensions.k8s.io-widgets.example.com: east
widget.example.com-one: east
`)
}

// TestTypeStaysAbove: an operator that runs against Atoll works on objects there. No policy or label
// places them, so that their type stays there, too, and they get no bindings.
func TestTypeStaysAbove(t *testing.T) {
	unserved := custom[:strings.Index(custom, "---\napiVersion: fleet.atoll.dev/v1alpha1\nkind: APIResourceImport")]
	widget := custom[strings.Index(custom, "---\napiVersion: example.com"):]
	c := begin(t, clusters+unserved+widget+app)
	decided(t, c, everything)
}

// TestClusterConfiguration: admission policies apply wherever any workloads run, because a cluster's own
// controllers create Pods there. Those that depend on who sends a request apply to the control plane only.
func TestClusterConfiguration(t *testing.T) {
	policies := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
	c := begin(t, clusters+tiers+`
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: limits, uid: vl}
spec: {paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: object.spec.replicas < 5}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: limits, uid: vb}
spec: {policyName: limits, paramRef: {name: limits, namespace: policies}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: limits, namespace: policies, uid: vc}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: people, uid: vp}
spec: {matchConditions: [{name: m, expression: "request.userInfo.username != 'jane'"}], validations: [{expression: "false"}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: people, uid: vq}
spec: {policyName: people}
`)
	const shop = `
configmap-read-by-api: east, west [{ Namespace shop}]
deployment.apps-db: west 1
deployment.apps-front: east 1, west 1
ingress.networking.k8s.io-db: west [{ Service db}]
service-db: west, east [{ Deployment db} { Namespace shop}]
`
	const policy = `
validatingadmissionpolicy.admissionregistration.k8s.io-limits: east, west [{ Namespace *}]
validatingadmissionpolicybinding.admissionregistration.k8s.io-limits: east, west [{ ValidatingAdmissionPolicy limits}]
configmap-limits: east, west [{ ValidatingAdmissionPolicyBinding limits}]`
	decided(t, c, policy+shop)
	c.Merge(policies, "", "limits", `{"metadata":{"labels":{"fleet.atoll.dev/configuration":"WhereNeeded"}}}`)
	decided(t, c, shop)
}
