package interpret

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// parse decodes YAML as a client does: integers become int64.
func parse(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &u.Object); err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	return u
}

func mustFind(t *testing.T, group, name string) KindInfo {
	t.Helper()
	k, ok := Find(schema.GroupKind{Group: group, Kind: name})
	if !ok {
		t.Fatalf("%s.%s not found", name, group)
	}
	return k
}

const podWithEverything = `
serviceAccountName: robot
imagePullSecrets: [{name: pull}]
initContainers:
- name: init
  image: i
  envFrom: [{configMapRef: {name: init-env}}, {secretRef: {name: init-secret}}]
containers:
- name: main
  image: i
  env:
  - {name: A, value: a}
  - {name: B, valueFrom: {configMapKeyRef: {name: key, key: k}}}
  - {name: C, valueFrom: {secretKeyRef: {name: secret-key, key: k}}}
  - {name: D, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  envFrom: [{configMapRef: {name: init-env}}]
volumes:
- {name: a, configMap: {name: files}}
- {name: b, secret: {secretName: secret-files}}
- {name: c, persistentVolumeClaim: {claimName: data}}
- name: d
  projected:
    sources:
    - {configMap: {name: projected}}
    - {secret: {name: secret-projected}}
    - {serviceAccountToken: {path: token}}
- {name: e, csi: {driver: d, nodePublishSecretRef: {name: csi}}}
- {name: f, emptyDir: {}}
`

const everything = "ServiceAccount/robot Secret/pull ConfigMap/init-env Secret/init-secret ConfigMap/key Secret/secret-key " +
	"ConfigMap/files Secret/secret-files PersistentVolumeClaim/data ConfigMap/projected Secret/secret-projected Secret/csi"

func needsOf(t *testing.T, k KindInfo, manifest string) string {
	t.Helper()
	refs, err := k.Needs(parse(t, manifest))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range refs {
		out = append(out, r.Kind+"/"+r.Name)
	}
	return strings.Join(out, " ")
}

func indent(s, by string) string { return by + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n"+by) }

func TestNeeds(t *testing.T) {
	workload := "metadata: {name: w}\nspec:\n  template:\n    spec:\n" + indent(podWithEverything, "      ")
	for _, name := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		if got := needsOf(t, mustFind(t, "apps", name), workload); got != everything {
			t.Errorf("%s needs\n%s, want\n%s", name, got, everything)
		}
	}
	if got := needsOf(t, mustFind(t, "batch", "Job"), workload); got != everything {
		t.Errorf("Job needs\n%s, want\n%s", got, everything)
	}
	cron := "metadata: {name: w}\nspec:\n  jobTemplate:\n    spec:\n      template:\n        spec:\n" + indent(podWithEverything, "          ")
	if got := needsOf(t, mustFind(t, "batch", "CronJob"), cron); got != everything {
		t.Errorf("CronJob needs\n%s, want\n%s", got, everything)
	}
	tests := []struct{ group, kind, manifest, want string }{
		{"apps", "StatefulSet", "spec: {serviceName: db, template: {spec: {serviceAccountName: default}}}", "Service/db"},
		{"apps", "Deployment", "metadata: {name: empty}", ""},
		{"", "ServiceAccount", "imagePullSecrets: [{name: a}]\nsecrets: [{name: b}]", "Secret/a Secret/b"},
		{"", "ConfigMap", "data: {a: b}", ""},
	}
	for _, tt := range tests {
		if got := needsOf(t, mustFind(t, tt.group, tt.kind), tt.manifest); got != tt.want {
			t.Errorf("%s needs %q, want %q", tt.kind, got, tt.want)
		}
	}
	_, err := mustFind(t, "apps", "Deployment").Needs(parse(t, "metadata: {name: bad}\nspec: {template: {spec: {containers: 7}}}"))
	if err == nil || !strings.Contains(err.Error(), "bad") {
		t.Errorf("invalid template: %v, want an error that names the object", err)
	}
}

func TestSelects(t *testing.T) {
	labels := map[string]string{"app": "web", "tier": "front"}
	for manifest, want := range map[string]bool{
		"spec: {selector: {app: web}}":              true,
		"spec: {selector: {app: web, tier: front}}": true,
		"spec: {selector: {app: db}}":               false,
		"spec: {selector: {app: web, zone: a}}":     false,
		"spec: {selector: {}}":                      false,
		"spec: {}":                                  false,
	} {
		if got := Selects(parse(t, manifest), labels); got != want {
			t.Errorf("%s: %v, want %v", manifest, got, want)
		}
	}
}

func TestPrepare(t *testing.T) {
	source := parse(t, `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
  uid: u1
  resourceVersion: "7"
  generation: 3
  creationTimestamp: "2026-01-01T00:00:00Z"
  finalizers: [f]
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: o, uid: o}]
  managedFields: [{manager: m}]
  labels: {app: web}
  annotations:
    team: a
    kubectl.kubernetes.io/last-applied-configuration: "{}"
    deployment.kubernetes.io/revision: "4"
    autoscaling.alpha.kubernetes.io/conditions: '[]'
    fleet.atoll.dev/adopt: "true"
spec:
  replicas: 9
  template: {metadata: {creationTimestamp: null, labels: {app: web}}}
status: {replicas: 9}
`)
	before := source.DeepCopy()
	n := int32(3)
	out := mustFind(t, "apps", "Deployment").Prepare(source, "east", &n)
	want := parse(t, `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
  labels: {app: web, fleet.atoll.dev/managed: "true"}
  annotations: {team: a, fleet.atoll.dev/cluster: east, fleet.atoll.dev/source-uid: u1}
spec:
  replicas: 3
  template: {metadata: {labels: {app: web}}}
`)
	wantSame(t, out, want)
	wantSame(t, source, before)
}

func wantSame(t *testing.T, got, want *unstructured.Unstructured) {
	t.Helper()
	a, _ := yaml.Marshal(got.Object)
	b, _ := yaml.Marshal(want.Object)
	if string(a) != string(b) {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
}

// TestLeftToTheMember: fields that each cluster sets itself are not sent.
func TestLeftToTheMember(t *testing.T) {
	tests := []struct{ group, kind, spec, want string }{
		// The control plane sets only the address. All else is the author's.
		{"", "Service", "spec: {clusterIP: 240.1.2.3, clusterIPs: [240.1.2.3], ipFamilyPolicy: SingleStack, type: NodePort, ports: [{port: 80}]}",
			"spec: {type: NodePort, ports: [{port: 80}]}"},
		{"", "Service", "spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ipFamilies: [IPv4], type: NodePort, healthCheckNodePort: 3, ports: [{port: 80, nodePort: 30000}]}",
			"spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ipFamilies: [IPv4], type: NodePort, healthCheckNodePort: 3, ports: [{port: 80, nodePort: 30000}]}"},
		{"", "Service", "spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}",
			"spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}"},
		{"", "Service", "spec: {ipFamilyPolicy: PreferDualStack}", "spec: {ipFamilyPolicy: PreferDualStack}"},
		{"", "PersistentVolumeClaim", "metadata: {annotations: {pv.kubernetes.io/bind-completed: 'yes'}}\nspec: {volumeName: pv-1, accessModes: [ReadWriteOnce]}", "spec: {accessModes: [ReadWriteOnce]}"},
		{"", "PersistentVolumeClaim", "spec: {volumeName: pv-1, accessModes: [ReadWriteOnce]}", "spec: {volumeName: pv-1, accessModes: [ReadWriteOnce]}"},
		{"", "ServiceAccount", "secrets: [{name: token}]\nimagePullSecrets: [{name: pull}]", "imagePullSecrets: [{name: pull}]"},
		{"batch", "Job", "spec: {selector: {matchLabels: {controller-uid: u}}, template: {metadata: {labels: {a: b, controller-uid: u, batch.kubernetes.io/job-name: j}}}}",
			"spec: {template: {metadata: {labels: {a: b}}}}"},
		{"batch", "Job", "spec: {ttlSecondsAfterFinished: 60, manualSelector: true}", "spec: {manualSelector: true}"},
		{"batch", "Job", "spec: {manualSelector: true, selector: {matchLabels: {a: b}}}", "spec: {manualSelector: true, selector: {matchLabels: {a: b}}}"},
		{"apps", "StatefulSet", "spec: {volumeClaimTemplates: [{metadata: {name: d}, status: {phase: Pending}}]}", "spec: {volumeClaimTemplates: [{metadata: {name: d}}]}"},
	}
	for _, tt := range tests {
		k := mustFind(t, tt.group, tt.kind)
		out := k.Prepare(parse(t, tt.spec), "east", nil)
		for _, field := range []string{"metadata", "apiVersion", "kind"} {
			delete(out.Object, field)
		}
		wantSame(t, out, parse(t, tt.want))
	}
}

func TestStaysHome(t *testing.T) {
	home := []string{
		"kind: ConfigMap\nmetadata: {name: a, namespace: kube-public}",
		"kind: ConfigMap\nmetadata: {name: extension-apiserver-authentication, namespace: kube-system}",
		"kind: RoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: a, namespace: kube-system}\nsubjects: [{kind: User, name: jane}]",
		"kind: Deployment\napiVersion: apps/v1\nmetadata: {name: a, namespace: atoll-system}",
		"kind: ServiceAccount\nmetadata: {name: default, namespace: shop}",
		"kind: ConfigMap\nmetadata: {name: kube-root-ca.crt, namespace: shop}",
		"kind: Secret\ntype: kubernetes.io/service-account-token\nmetadata: {name: a, namespace: shop}",
		"kind: Secret\ntype: fleet.atoll.dev/kubeconfig\nmetadata: {name: a, namespace: shop}",
		"kind: Service\nmetadata: {name: kubernetes, namespace: default}",
		"kind: Job\napiVersion: batch/v1\nmetadata: {name: a, namespace: shop, ownerReferences: [{apiVersion: batch/v1, kind: CronJob, name: c, uid: u, controller: true}]}",
	}
	for _, manifest := range home {
		if StaysHome(parse(t, manifest)) == "" {
			t.Errorf("is placed:\n%s", manifest)
		}
	}
	away := []string{
		"kind: Job\napiVersion: batch/v1\nmetadata: {name: a, namespace: shop, annotations: {cronjob.kubernetes.io/instantiate: manual}, ownerReferences: [{apiVersion: batch/v1, kind: CronJob, name: c, uid: u, controller: true}]}",
		"kind: ConfigMap\nmetadata: {name: a, namespace: shop}",
		"kind: Deployment\napiVersion: apps/v1\nmetadata: {name: metrics-server, namespace: kube-system}",
		"kind: ConfigMap\nmetadata: {name: a, namespace: kube-system}",
		"kind: Secret\ntype: Opaque\nmetadata: {name: a, namespace: kubernetes}",
		"kind: ServiceAccount\nmetadata: {name: robot, namespace: shop}",
		"kind: ConfigMap\napiVersion: v1\nmetadata: {name: a, namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: c, uid: u, controller: true}]}",
		"kind: Deployment\napiVersion: apps/v1\nmetadata: {name: a, namespace: shop, ownerReferences: [{apiVersion: shop/v1, kind: Shop, name: c, uid: u, controller: true}]}",
	}
	for _, manifest := range away {
		if why := StaysHome(parse(t, manifest)); why != "" {
			t.Errorf("is not placed (%s):\n%s", why, manifest)
		}
	}
}

// TestTable: the rows of the table are consistent.
func TestTable(t *testing.T) {
	var seen []schema.GroupKind
	for _, k := range Kinds() {
		if slices.Contains(seen, k.GroupKind()) {
			t.Errorf("%s is listed twice", k.Kind)
		}
		seen = append(seen, k.GroupKind())
		if k.Resource == "" || k.Version == "" {
			t.Errorf("%s has no resource or version", k.Kind)
		}
		if k.Divided && !k.Placed {
			t.Errorf("%s is divided and follows others", k.Kind)
		}
		if k.Placed != k.MakesPods() {
			t.Errorf("%s is placed: %v, and makes pods: %v", k.Kind, k.Placed, k.MakesPods())
		}
		if k.Placed != (k.DefaultMode != "") || k.Single && k.DefaultMode != Single || k.DefaultMode == Divided && !k.Divided {
			t.Errorf("%s is placed: %v, single: %v, divided: %v, and runs %q", k.Kind, k.Placed, k.Single, k.Divided, k.DefaultMode)
		}
	}
}

// TestOwnedByACustomResource: only a controller that works on the control plane can have created
// the object here, so no cluster creates it by itself.
func TestOwnedByACustomResource(t *testing.T) {
	owned := parse(t, "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: a, namespace: shop, ownerReferences: [{apiVersion: example.org/v1, kind: Ring, name: r, uid: u, controller: true}]}")
	if why := BuiltIn().With(ring()).StaysHome(owned); why != "" {
		t.Errorf("it is not placed: %s", why)
	}
}

// TestGoesWithNamespace: what programs read goes with the workloads; what belongs to clients or to one
// cluster does not.
func TestGoesWithNamespace(t *testing.T) {
	const binding = "kind: ClusterRoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: a}\nsubjects: [{kind: ServiceAccount, namespace: kube-system, name: %s}]"
	for manifest, want := range map[string]bool{
		"kind: ConfigMap\nmetadata: {name: a, namespace: shop}":                                             true,
		"kind: ConfigMap\nmetadata: {name: a, namespace: kube-system}":                                      false,
		"kind: Secret\ntype: helm.sh/release.v1\nmetadata: {name: a, namespace: shop}":                      false,
		"kind: ConfigMap\nmetadata: {name: a, namespace: shop, annotations: {" + leaderAnnotation + ": x}}": false,
		"kind: PersistentVolumeClaim\nmetadata: {name: a, namespace: shop}":                                 false,
		"kind: IngressClass\napiVersion: networking.k8s.io/v1\nmetadata: {name: nginx}":                     true,
		fmt.Sprintf(binding, "horizontal-pod-autoscaler"):                                                   true,
		fmt.Sprintf(binding, "namespace-controller"):                                                        true,
		fmt.Sprintf(binding, "metrics-server"):                                                              false,
	} {
		obj := parse(t, manifest)
		k, _ := Find(obj.GroupVersionKind().GroupKind())
		if k.GoesWithNamespace(obj) != want {
			t.Errorf("goes with the workloads is not %v:\n%s", want, manifest)
		}
	}
}

// TestOldStorageClassAnnotation: Kubernetes prefers the annotation to the field.
func TestOldStorageClassAnnotation(t *testing.T) {
	const meta = "{name: a, namespace: shop, annotations: {volume.beta.kubernetes.io/storage-class: fast}}"
	for _, manifest := range []string{
		"kind: PersistentVolumeClaim\nmetadata: " + meta + "\nspec: {storageClassName: slow}",
		"kind: StatefulSet\napiVersion: apps/v1\nmetadata: {name: a, namespace: shop}\nspec: {volumeClaimTemplates: [{metadata: " + meta + "}]}",
		"kind: Pod\nmetadata: {name: a, namespace: shop}\nspec: {volumes: [{name: v, ephemeral: {volumeClaimTemplate: {metadata: {annotations: {volume.beta.kubernetes.io/storage-class: fast}}}}}]}",
	} {
		obj := parse(t, manifest)
		k, _ := Find(obj.GroupVersionKind().GroupKind())
		needs, err := k.Needs(obj)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(needs, refer(storageGroup, "StorageClass", "", "fast")) || slices.Contains(needs, refer(storageGroup, "StorageClass", "", "slow")) {
			t.Errorf("needs %v:\n%s", needs, manifest)
		}
	}
}
