package cli_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// shopInEast are the objects of an app that runs in a cluster without Atoll.
const shopInEast = `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, labels: {app: web}, annotations: {deployment.kubernetes.io/revision: "2"}},
  spec: {replicas: 3, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {serviceAccountName: web,
    containers: [{name: web, image: "web:1", envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: passwords}}, {configMapRef: {name: absent, optional: true}}]}],
    volumes: [{name: data, persistentVolumeClaim: {claimName: data}}, {name: ca, configMap: {name: kube-root-ca.crt}}]}}}, status: {replicas: 3}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], selector: {app: web}, ports: [{port: 80, protocol: TCP}]}}
---
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web, namespace: shop}, spec: {maxReplicas: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: shop}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: shop}, data: {a: b}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt, namespace: shop}, data: {ca: x}}
---
{apiVersion: v1, kind: Secret, metadata: {name: passwords, namespace: shop}, type: Opaque, data: {password: c2VjcmV0}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: pvc-1, storageClassName: fast}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast}, provisioner: csi.example.org}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: web, namespace: shop}, rules: []}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: web, namespace: shop}, roleRef: {kind: Role, name: web}, subjects: [{kind: ServiceAccount, name: web}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: other, namespace: shop}, roleRef: {kind: Role, name: web}, subjects: [{kind: ServiceAccount, name: other}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader}, rules: []}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: reader}, roleRef: {kind: ClusterRole, name: reader}, subjects: [{kind: ServiceAccount, name: web, namespace: shop}]}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {pod-security.kubernetes.io/enforce: baseline, kubernetes.io/metadata.name: shop}}}
`

// twoAPIs are an Atoll with Cluster east, and the API of this cluster.
type twoAPIs struct {
	t             *testing.T
	atoll, member *fakeapi.Server
	kubeconfig    string // of Atoll
}

func newTwoAPIs(t *testing.T) *twoAPIs {
	kinds := fakeapi.BuiltIns("v1 Namespace", "v1 ConfigMap", "v1 Secret", "v1 Service", "v1 ServiceAccount", "v1 PersistentVolumeClaim", "v1 Pod", "v1 Event",
		"apps/v1 Deployment", "apps/v1 ReplicaSet", "autoscaling/v2 HorizontalPodAutoscaler", "networking.k8s.io/v1 Ingress", "networking.k8s.io/v1 NetworkPolicy",
		"policy/v1 PodDisruptionBudget", "storage.k8s.io/v1 StorageClass", "rbac.authorization.k8s.io/v1 Role", "rbac.authorization.k8s.io/v1 RoleBinding",
		"rbac.authorization.k8s.io/v1 ClusterRole", "rbac.authorization.k8s.io/v1 ClusterRoleBinding", "apiextensions.k8s.io/v1 CustomResourceDefinition")
	widgets := fakeapi.Custom("Widget", schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"})
	a := &twoAPIs{t: t, atoll: fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), append(slices.Clone(kinds), append(fakeapi.BuiltIns("batch/v1 CronJob"), widgets)...)...)...), member: fakeapi.New(t, append(kinds, widgets)...)}
	a.put(a.member, `{apiVersion: v1, kind: Namespace, metadata: {name: kube-system, uid: 11111111-2222-3333-4444-555555555555}}`)
	a.put(a.member, shopInEast)
	a.put(a.atoll, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: east}, spec: {kubeconfigSecretRef: {namespace: atoll-system, name: cluster-east}}, status: {id: 11111111-2222-3333-4444-555555555555, conditions: [{type: Ready, status: "True"}]}}`)
	stored := base64.StdEncoding.EncodeToString([]byte(kubeconfigOf(a.member)))
	a.put(a.atoll, fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: cluster-east, namespace: atoll-system}, type: %s, data: {%s: %s}}`, v1alpha1.KubeconfigSecretType, v1alpha1.KubeconfigSecretKey, stored))
	a.kubeconfig = a.file("atoll", kubeconfigOf(a.atoll))
	return a
}

func kubeconfigOf(s *fakeapi.Server) string {
	return `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "` + s.Config().Host + `"}}], users: [{name: u, user: {token: t}}]}`
}

func (a *twoAPIs) file(name, content string) string {
	a.t.Helper()
	file := filepath.Join(a.t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

func (a *twoAPIs) put(s *fakeapi.Server, manifests string) {
	a.t.Helper()
	for _, document := range strings.Split(manifests, "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			a.t.Fatal(err)
		}
		s.Put(object)
	}
}

// adopt runs `atoll adopt ARGS --from east`.
func (a *twoAPIs) adopt(args string, more ...string) (code int, stdout, stderr string) {
	a.t.Helper()
	return run(a.t, append(append([]string{"atoll", "adopt", "--from", "east", "--kubeconfig", a.kubeconfig}, strings.Fields(args)...), more...)...)
}

// created returns the objects that were created in Atoll, in this order.
func (a *twoAPIs) created(suffix string) (out []string) {
	for _, write := range a.atoll.Writes() {
		if name, is := strings.CutPrefix(write, "create "); is && strings.HasSuffix(name, "(dry run)") == (suffix != "") {
			out = append(out, strings.TrimSuffix(name, suffix))
		}
	}
	return out
}

var everythingOfShop = []string{"clusterroles reader", "clusterrolebindings reader", "serviceaccounts shop/web", "configmaps shop/settings", "secrets shop/passwords",
	"persistentvolumeclaims shop/data", "roles shop/web", "rolebindings shop/web", "horizontalpodautoscalers shop/web", "deployments shop/web"}

// TestAdoptFrom: a Deployment is copied with its dependencies, all checked before anything is created, and with
// the label that keeps it in its cluster. The cluster is only read.
func TestAdoptFrom(t *testing.T) {
	a := newTwoAPIs(t)
	code, stdout, stderr := a.adopt("deployment/web -n shop")
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	if got := a.created(""); !slices.Equal(got, append([]string{"namespaces shop"}, everythingOfShop...)) {
		t.Errorf("created %q", got)
	}
	if got := a.created(" (dry run)"); len(got) < len(everythingOfShop) || !slices.Equal(got[:len(everythingOfShop)], everythingOfShop) {
		t.Errorf("checked %q", got)
	}
	if writes := a.member.Writes(); len(writes) > 0 {
		t.Errorf("written to the member: %q", writes)
	}
	for _, want := range []string{"deployment.apps/web in namespace shop copied from east and taken over there\n",
		"configmap/settings in namespace shop, for deployment.apps/web in namespace shop, copied from east"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	for _, want := range []string{"in namespace shop, service/web act on copied objects and are not copied", "clusters usually have their own: storageclass.storage.k8s.io/fast",
		"until you remove their label fleet.atoll.dev/cluster"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in\n%s", want, stderr)
		}
	}
	web := a.atoll.Get(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "shop", "web")
	if web.GetLabels()[v1alpha1.ClusterLabel] != "east" || web.GetAnnotations()[v1alpha1.AdoptAnnotation] != "east" || len(web.GetAnnotations()) != 1 {
		t.Errorf("labels %v, annotations %v", web.GetLabels(), web.GetAnnotations())
	}
	claim := a.atoll.Get(schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}, "shop", "data")
	if name, found, _ := unstructured.NestedString(claim.Object, "spec", "volumeName"); found {
		t.Errorf("the claim names volume %s", name)
	}
	shop := a.atoll.Get(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "shop")
	if shop.GetLabels()["pod-security.kubernetes.io/enforce"] != "baseline" {
		t.Errorf("labels of the namespace: %v", shop.GetLabels())
	}

	code, stdout, _ = a.adopt("deployment/web -n shop")
	if code != 0 || !strings.Contains(stdout, "deployment.apps/web in namespace shop was copied from east before") || len(a.created("")) != len(everythingOfShop)+1 {
		t.Errorf("repeated: exit code %d: %s; created %q", code, stdout, a.created(""))
	}
}

// TestAdoptFromPreviews: a dry run stores nothing.
func TestAdoptFromPreviews(t *testing.T) {
	a := newTwoAPIs(t)
	code, stdout, stderr := a.adopt("deployment/web -n shop --dry-run=client")
	if code != 0 || !strings.Contains(stdout, "deployment.apps/web in namespace shop copied from east and taken over there (dry run)") || len(a.atoll.Writes()) > 0 {
		t.Errorf("client: exit code %d: %s%s; wrote %q", code, stdout, stderr, a.atoll.Writes())
	}
	code, stdout, stderr = a.adopt("secret/passwords -n shop --dry-run=client -o yaml")
	var list unstructured.UnstructuredList
	if err := yaml.Unmarshal([]byte(stdout), &list); code != 0 || err != nil || !strings.Contains(stdout, "password: c2VjcmV0") || !strings.Contains(stdout, "kind: Namespace") {
		t.Errorf("yaml: exit code %d: %s%s %v", code, stdout, stderr, err)
	}
	a.put(a.atoll, `{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)
	code, stdout, stderr = a.adopt("deployment/web -n shop --dry-run=server")
	if code != 0 || !strings.Contains(stdout, "(server dry run)") || !slices.Equal(a.created(" (dry run)"), everythingOfShop) || len(a.created("")) > 0 {
		t.Errorf("server: exit code %d: %s%s; wrote %q", code, stdout, stderr, a.atoll.Writes())
	}
}

// TestAdoptFromWithoutNamespace: objects whose namespace is missing cannot be checked before it exists, and that
// does not hide that another one is rejected.
func TestAdoptFromWithoutNamespace(t *testing.T) {
	a := newTwoAPIs(t)
	refused := ""
	a.atoll.OnRequest(func(r fakeapi.Request) *metav1.Status {
		switch {
		case r.Verb == "create" && r.Namespace == "shop" && a.atoll.Get(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "shop") == nil:
			return &metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: "no namespace"}
		case r.Verb == "create" && r.Resource.Resource == refused:
			return &metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "not today"}
		}
		return nil
	})
	code, _, stderr := a.adopt("deployment/web -n shop --dry-run=server")
	if code != 0 || !strings.Contains(stderr, "warning: the namespace does not exist in Atoll") || !strings.Contains(stderr, "so it is created with the labels") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	refused = "clusterroles"
	for _, dryRun := range []string{"server", "none"} {
		code, _, stderr := a.adopt("deployment/web -n shop --dry-run=" + dryRun)
		if code == 0 || !strings.Contains(stderr, "Atoll would reject clusterrole.rbac.authorization.k8s.io/reader: not today") || len(a.created("")) > 0 {
			t.Errorf("%s: exit code %d: %s; created %q", dryRun, code, stderr, a.created(""))
		}
	}
	refused = "deployments"
	code, _, stderr = a.adopt("deployment/web -n shop")
	if code == 0 || !strings.Contains(stderr, "Only namespace shop was created") || !slices.Equal(a.created(""), []string{"namespaces shop"}) {
		t.Errorf("exit code %d: %s; created %q", code, stderr, a.created(""))
	}
}

// TestAdoptFromSelects: dependencies can be left out, and a selector chooses objects of several kinds.
func TestAdoptFromSelects(t *testing.T) {
	a := newTwoAPIs(t)
	a.put(a.member, `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web-1, namespace: shop, labels: {app: web}, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: u, controller: true}]}, spec: {}}`)
	code, stdout, stderr := a.adopt("deployments,services replicasets -l app=web -n shop --dependencies=false")
	if code != 0 || !slices.Equal(a.created(""), []string{"namespaces shop", "services shop/web", "deployments shop/web"}) {
		t.Fatalf("exit code %d: %s%s; created %q", code, stdout, stderr, a.created(""))
	}
	for _, want := range []string{"replicaset.apps/web-1 in namespace shop is not copied: a controller there makes it for Deployment web: copy deployment.apps/web instead",
		"horizontalpodautoscaler.autoscaling/web act on copied objects"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in\n%s", want, stderr)
		}
	}
	service := a.atoll.Get(schema.GroupVersionResource{Version: "v1", Resource: "services"}, "shop", "web")
	if ip, found, _ := unstructured.NestedString(service.Object, "spec", "clusterIP"); found {
		t.Errorf("the Service has address %s", ip)
	}
	if code, _, stderr := a.adopt("deployments -l app=none -n shop"); code == 0 || !strings.Contains(stderr, "matches no object") {
		t.Errorf("no match: exit code %d: %s", code, stderr)
	}
}

// TestAdoptFromRefuses: an object that cannot be taken over is refused with the reason and the next step, and
// nothing is written, not even for the other objects.
func TestAdoptFromRefuses(t *testing.T) {
	a := newTwoAPIs(t)
	a.put(a.member, `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web-1, namespace: shop, uid: rs, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: u, controller: true}]}, spec: {}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1-a, namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: rs, controller: true}]}, spec: {containers: []}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: managed, namespace: shop, labels: {fleet.atoll.dev/managed: "true"}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, namespace: shop}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: coredns, namespace: kube-system}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: shop}}
---
{apiVersion: v1, kind: Event, metadata: {name: e, namespace: shop}}
---
{apiVersion: example.com/v1, kind: Widget, metadata: {name: w, namespace: shop}}`)
	a.put(a.atoll, `{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, namespace: shop}}`)
	wrong := a.file("wrong", kubeconfigOf(a.atoll))
	a.put(a.atoll, `{apiVersion: v1, kind: Namespace, metadata: {name: kube-system, uid: 99999999-2222-3333-4444-555555555555}}`)
	for args, want := range map[string]string{
		"pod/web-1-a":                                     "a controller there makes it for Deployment web: copy deployment.apps/web instead",
		"configmap/managed":                               "Atoll manages it there already",
		"configmap/theirs":                                "use `atoll adopt` without --from",
		"configmap/none":                                  "cluster east does not have it: run `kubectl get configmaps -n shop` with a kubeconfig of east",
		"clusterrole/none":                                "run `kubectl get clusterroles.rbac.authorization.k8s.io` with",
		"deployments,services -l app=none":                "run `kubectl get deployments.apps -n shop -l app=none` and `kubectl get services -n shop -l app=none` with a kubeconfig of east",
		"configmap/kube-root-ca.crt":                      "every cluster publishes its own CA",
		"serviceaccount/default":                          "every cluster creates its own default ServiceAccount",
		"configmap/coredns -n kube-system deployment/web": "belong to the cluster itself",
		"event/e":                                         "Atoll never places objects of kind Event",
		"namespace/shop":                                  "name these objects",
		"widget.example.com/w":                            "Atoll never places objects of kind Widget.example.com",
		"cronjob/c":                                       "cluster east does not serve cronjobs.batch in version v1: run `kubectl api-resources` with a kubeconfig of east",
		"gadget/g":                                        "apply its CustomResourceDefinition to Atoll first",
		"deployment/web --all":                            "cannot be combined with --from",
		"deployment/web -l a=b":                           "KIND[,KIND...] -l SELECTOR",
		"deployments":                                     "name objects as KIND/NAME",
		"deployment/web -o yaml":                          "set --dry-run=client, too",
		"deployment/web --member-context c":               "set --member-kubeconfig, too",
		"deployment/web --from west":                      "cluster \"west\" not found",
		"-l a=b":                                          "no objects specified",
		"deployment/web --member-kubeconfig /":            "set --member-kubeconfig to a file",
		"deployment/web --member-kubeconfig " + wrong:     "leads to another cluster than east",
	} {
		if !strings.Contains(args, " -n ") {
			args += " -n shop"
		}
		code, stdout, stderr := a.adopt(args)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s%s\nwant %q", args, code, stdout, stderr, want)
		}
	}
	if writes := a.atoll.Writes(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
	if code, _, stderr := run(t, "atoll", "adopt", "deployment/web", "--member-kubeconfig", wrong); code == 0 || !strings.Contains(stderr, "only valid with --from") {
		t.Errorf("without --from: %s", stderr)
	}
}

// TestAdoptWithoutConflict: the error names where the command looked, and how to list the conflicts there.
func TestAdoptWithoutConflict(t *testing.T) {
	a := newTwoAPIs(t)
	for args, want := range map[string]string{
		"configmap/none -n shop":                "configmap/none in namespace shop has no conflict in any cluster: run `atoll adopt --all -n shop --dry-run=client` to list",
		"configmap/none -n shop --cluster east": "has no conflict in cluster east: run `atoll adopt --all -n shop --cluster east --dry-run=client` to list",
		"clusterrole/none":                      "has no conflict in any cluster: run `atoll adopt --all -A --dry-run=client` to list",
	} {
		code, stdout, stderr := run(t, append([]string{"atoll", "adopt", "--kubeconfig", a.kubeconfig}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s%s\nwant %q", args, code, stdout, stderr, want)
		}
	}
}

// TestAdoptFromCustomKinds: an object of a custom kind is copied once Atoll places objects of the kind.
func TestAdoptFromCustomKinds(t *testing.T) {
	a := newTwoAPIs(t)
	a.put(a.member, `{apiVersion: example.com/v1, kind: Widget, metadata: {name: w, namespace: shop}, spec: {size: 3}}`)
	define := func(labels string) {
		a.put(a.atoll, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com, labels: {`+labels+`}},
  spec: {group: example.com, scope: Namespaced, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true, storage: true}]}}`)
	}
	refuse := func(want string) {
		t.Helper()
		if code, _, stderr := a.adopt("widget/w -n shop"); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d: %s, want %q", code, stderr, want)
		}
	}
	define(v1alpha1.SharedLabel + `: "true"`)
	refuse("clusters share the objects of example.com in Atoll")
	define(v1alpha1.HomeLabel + ": Above")
	refuse("keeps objects of the type in Atoll")
	define("")
	refuse("Atoll places no objects of widgets.example.com yet")
	name := v1alpha1.NegotiatedName(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"})
	a.put(a.atoll, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: NegotiatedAPIResource, metadata: {name: `+name+`}, status: {conditions: [{type: `+v1alpha1.NegotiatedEnforced+`, status: "True"}]}}`)
	code, stdout, stderr := a.adopt("widget/w -n shop")
	if code != 0 || !slices.Equal(a.created(""), []string{"namespaces shop", "widgets shop/w"}) || strings.Contains(stderr, "not copied") {
		t.Errorf("exit code %d: %s%s; created %q", code, stdout, stderr, a.created(""))
	}

	a.put(a.atoll, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: east}, spec: {unschedulable: true, kubeconfigSecretRef: {namespace: atoll-system, name: cluster-east}}, status: {id: 11111111-2222-3333-4444-555555555555}}`)
	if code, _, stderr := a.adopt("configmap/settings -n shop"); code != 0 || !strings.Contains(stderr, "takes over nothing now, because it is cordoned") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestAdoptFromWithOverrides: an object whose pods an override would change is refused. Another change is noted.
func TestAdoptFromWithOverrides(t *testing.T) {
	a := newTwoAPIs(t)
	a.put(a.atoll, `{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)
	policy := func(patch string) {
		a.put(a.atoll, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: Placement, metadata: {name: p, namespace: shop, uid: p}, spec: {selector: {names: [web]},
  overrides: [{clusters: {names: [east]}, `+patch+`}]}}`)
	}
	policy(`images: [{registry: mirror.example.org}]`)
	code, _, stderr := a.adopt("deployment/web -n shop --dependencies=false")
	if code == 0 || !strings.Contains(stderr, "would change spec.template.spec.containers.0.image") || len(a.created("")) > 0 {
		t.Errorf("exit code %d: %s; created %q", code, stderr, a.created(""))
	}
	policy(`jsonPatch: [{op: add, path: /spec/minReadySeconds, value: 5}]`)
	code, _, stderr = a.adopt("deployment/web -n shop --dependencies=false")
	if code != 0 || !strings.Contains(stderr, "an override of a policy set spec.minReadySeconds") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestAdoptFromWithOwnKubeconfig: without permission to read the kubeconfig in Atoll, a user sets another one.
func TestAdoptFromWithOwnKubeconfig(t *testing.T) {
	a := newTwoAPIs(t)
	a.atoll.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Resource.Resource == "secrets" && r.Verb == "get" && r.Namespace == v1alpha1.SystemNamespace {
			return &metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "may not read secrets"}
		}
		return nil
	})
	if code, _, stderr := a.adopt("configmap/settings -n shop"); code == 0 || !strings.Contains(stderr, "may not read secrets") || !strings.Contains(stderr, "set --member-kubeconfig") {
		t.Errorf("without: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := a.adopt("configmap/settings -n shop --member-kubeconfig", a.file("east", kubeconfigOf(a.member))); code != 0 {
		t.Errorf("with: exit code %d: %s", code, stderr)
	}
}

// TestAdoptFromWithFewPermissions: a dependency that cannot be read is an error if an object names it, and a note
// if it can only be found by a list.
func TestAdoptFromWithFewPermissions(t *testing.T) {
	a := newTwoAPIs(t)
	refused := ""
	a.member.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Resource.Resource == refused {
			return &metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "may not read " + refused}
		}
		return nil
	})
	refused = "secrets"
	if code, _, stderr := a.adopt("deployment/web -n shop"); code == 0 || !strings.Contains(stderr, "may not read secrets") || !strings.Contains(stderr, "set --dependencies=false") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	refused = "rolebindings"
	if code, _, stderr := a.adopt("deployment/web -n shop"); code != 0 || !strings.Contains(stderr, "none of the rolebindings are copied") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestAdoptFromContinues: nothing is created if Atoll would reject an object. If a write fails all the same, the
// error says how far it went, and the next run continues there.
func TestAdoptFromContinues(t *testing.T) {
	a := newTwoAPIs(t)
	refused := "" // resource
	dry := true
	a.atoll.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "create" && r.Resource.Resource == refused && r.DryRun == dry {
			return &metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "not today"}
		}
		return nil
	})
	refused = "deployments"
	code, _, stderr := a.adopt("deployment/web -n shop")
	if code == 0 || len(a.created("")) > 0 || !strings.Contains(stderr, "Atoll would reject deployment.apps/web in namespace shop: not today") {
		t.Errorf("exit code %d: %s; created %q", code, stderr, a.created(""))
	}
	refused, dry = "secrets", false
	code, _, stderr = a.adopt("deployment/web -n shop")
	if code == 0 || !strings.Contains(stderr, "create secret/passwords in namespace shop: not today") || !strings.Contains(stderr, "4 of 10 objects were created") || strings.Contains(stderr, "c2VjcmV0") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	refused = ""
	if code, _, stderr := a.adopt("deployment/web -n shop"); code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if got := a.created(""); !slices.Equal(got, append([]string{"namespaces shop"}, everythingOfShop...)) {
		t.Errorf("created %q", got)
	}
}
