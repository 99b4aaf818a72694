package interpret

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func interpretation(t *testing.T, spec string) *v1alpha1.ResourceInterpretation {
	t.Helper()
	u := parse(t, "metadata: {name: test}\nspec:\n  target: {apiVersion: example.org/v1, kind: Ring}\n"+indent(spec, "  "))
	var in v1alpha1.ResourceInterpretation
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &in, true); err != nil {
		t.Fatal(err)
	}
	return &in
}

func ring() KindInfo {
	return Generic(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Ring"}, "rings", false, nil)
}

func customized(t *testing.T, spec string) KindInfo {
	t.Helper()
	customization, err := ParseCustomization(interpretation(t, spec))
	if err != nil {
		t.Fatal(err)
	}
	k, ok := BuiltIn().WithCustomizations(customization).With(ring()).Find(ring().GroupKind())
	if !ok {
		t.Fatal("the kind is not in the catalog")
	}
	return k
}

const ringCustomization = `
mode: Divided
replicas: {path: .spec.nodes, count: "self.spec.nodes * 2"}
pods: {template: .spec.podTemplate, labels: "{'ring': self.metadata.name}"}
needs: |
  [{'kind': 'Secret', 'name': self.?spec.?secret.orValue('')}] +
  [{'kind': 'StorageClass', 'apiVersion': 'storage.k8s.io/v1', 'name': 'fast'},
   {'kind': 'Config', 'group': 'example.org', 'namespace': 'elsewhere', 'name': 'c'}]
retain: [.spec.token, ".spec.listeners[*].port", ".metadata.annotations['a.b/c']"]
health: |
  self.?status.?phase.orValue('') == 'Broken' ? {'health': 'Degraded', 'message': self.status.why} :
  self.?status.?phase.orValue('') == 'Up' ? {'health': 'Healthy', 'message': ''} : {'health': 'Progressing', 'message': 'not up'}
finished: self.?status.?phase.orValue('') == 'Done'
status:
- {field: nodes, merge: Sum}
- {field: oldest, merge: Min}
- {field: endpoints, merge: Concat}
- {field: leader, merge: First}
- {field: version, merge: Agreed}
- {field: summary.text, expression: "members.filter(m, m.?status.?phase.orValue('') == 'Up').map(m, m.cluster).join(' and ')"}
- {field: summary.ready, expression: "members.map(m, m.?status.?nodes.orValue(0)).sum()"}
- {field: summary.most, expression: "members.map(m, m.?status.?nodes.orValue(0)).greatest()"}
- {field: conditions, expression: "null"}
`

const ringObject = `
apiVersion: example.org/v1
kind: Ring
metadata: {name: one, namespace: shop, generation: 1, annotations: {a.b/c: x, keep: y}}
spec:
  nodes: 3
  secret: key
  token: abc
  listeners: [{name: a, port: 1}, {name: b, port: 2}]
  podTemplate: {spec: {volumes: [{name: v, configMap: {name: conf}}]}}
`

func TestCustomized(t *testing.T) {
	k := customized(t, ringCustomization)
	obj := parse(t, ringObject)
	if k.Origin != "customized by test" || k.DefaultMode != Divided || !k.Placed {
		t.Errorf("origin %q, mode %q", k.Origin, k.DefaultMode)
	}
	if n, ok := k.Replicas(obj); n != 6 || !ok {
		t.Errorf("replicas %d %v, want 6", n, ok)
	}
	if labels := k.PodLabels(obj); labels["ring"] != "one" || !k.MakesPods() {
		t.Errorf("pod labels %v", labels)
	}
	refs, err := k.Needs(obj)
	if err != nil {
		t.Fatal(err)
	}
	var needs []string
	for _, r := range refs {
		needs = append(needs, refText(r))
	}
	if got, want := strings.Join(needs, ", "), "ConfigMap shop/conf, Secret shop/key, StorageClass.storage.k8s.io fast, Config.example.org elsewhere/c"; got != want {
		t.Errorf("needs %s, want %s", got, want)
	}
	n := int32(2)
	out := k.PrepareShare(obj, Share{Cluster: "east", Replicas: &n})
	delete(out.Object, "metadata")
	wantSame(t, out, parse(t, `
apiVersion: example.org/v1
kind: Ring
spec:
  nodes: 2
  secret: key
  listeners: [{name: a}, {name: b}]
  podTemplate: {spec: {volumes: [{name: v, configMap: {name: conf}}]}}
`))
	for status, want := range map[string]v1alpha1.Health{
		"{phase: Up}": v1alpha1.Healthy, "{phase: Broken, why: fire}": v1alpha1.Degraded, "{}": v1alpha1.Progressing, "{phase: Broken}": v1alpha1.Unknown,
	} {
		if got, why := k.Health(parse(t, "status: "+status)); got != want {
			t.Errorf("%s is %s (%s), want %s", status, got, why, want)
		}
	}
	if !k.Finished(parse(t, "status: {phase: Done}")) || k.Finished(parse(t, "status: {phase: Up}")) || k.Finished(parse(t, "spec: {}")) {
		t.Error("finished is wrong")
	}
}

func TestCustomizedSummary(t *testing.T) {
	k := customized(t, ringCustomization)
	member := func(cluster, status string) MemberStatus {
		return MemberStatus{Cluster: cluster, Generation: 1, Current: true, Status: parse(t, status).Object}
	}
	status, ok, err := k.Aggregate(parse(t, ringObject), []MemberStatus{
		member("east", `{phase: Up, nodes: 2, oldest: "2026-01-02T00:00:00Z", endpoints: [a, b], version: v1, conditions: [{type: Ready, status: "True"}]}`),
		member("north", `{phase: Up, nodes: 1, oldest: "2026-01-01T00:00:00Z", endpoints: [c], leader: n1, version: v2}`),
		{Cluster: "west"},
	})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	wantSame(t, &unstructured.Unstructured{Object: status}, parse(t, `
phase: Up
nodes: 3
oldest: "2026-01-01T00:00:00Z"
endpoints: [a, b, c]
leader: n1
summary: {text: east and north, ready: 3, most: 2}
`))
	_, _, err = k.Aggregate(parse(t, ringObject), []MemberStatus{member("east", "{nodes: many}")})
	if err == nil || !strings.Contains(err.Error(), "Sum") {
		t.Errorf("%v, want an error that names the merge", err)
	}
}

func TestCustomizedFollows(t *testing.T) {
	k := customized(t, `follows: "[{'kind': 'Service', 'name': self.spec.service}, {'pods': {'app': self.spec.app}}]"`)
	if k.Placed || k.DefaultMode != "" {
		t.Errorf("a follower is placed: %v %q", k.Placed, k.DefaultMode)
	}
	all, err := k.Follows(parse(t, "metadata: {namespace: shop}\nspec: {service: web, app: web}"))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if refText(all[0].To) != "Service shop/web" || !all[1].Selects("shop", map[string]string{"app": "web"}) || all[1].Selects("other", map[string]string{"app": "web"}) {
		t.Errorf("%v", all)
	}
	if _, err := k.Follows(parse(t, "spec: {}")); err == nil || !strings.Contains(err.Error(), "spec.follows") {
		t.Errorf("%v, want an error that names the field", err)
	}
}

// TestMistakes: an error names the field, and the position in the expression.
func TestMistakes(t *testing.T) {
	for spec, want := range map[string]string{
		`health: "slf.status"`:                                "spec.health: line 1, column 1: undeclared reference to 'slf'",
		"health: |\n  'a' +\n  1":                             "spec.health: line 1, column 5",
		`health: "1"`:                                         "spec.health: the result has type int, want a string or a map",
		`finished: "'yes'"`:                                   "want a boolean",
		`needs: "{'kind': 'Secret'}"`:                         "spec.needs: the result has type map(string, string), want a list",
		`replicas: {path: spec.nodes}`:                        `spec.replicas.path: "spec.nodes": character 1: want .name`,
		`replicas: {path: ".spec.a[*].b"}`:                    "[*] selects many fields",
		`replicas: {path: .spec.nodes, count: "'three'"}`:     "spec.replicas.count",
		`mode: Divided`:                                       "mode Divided requires spec.replicas",
		`mode: Often`:                                         `unsupported value "Often"`,
		`retain: [".spec..a"]`:                                "spec.retain[0]",
		`retain: [".spec['a"]`:                                "not closed",
		`status: [{field: a, merge: Average}]`:                "spec.status[0].merge",
		`status: [{field: a}]`:                                "set either merge or expression",
		`status: [{field: a, expression: "members.cluster"}]`: "spec.status[0].expression: line 1",
		`health: "members"`:                                   "undeclared reference to 'members'",
	} {
		_, err := ParseCustomization(interpretation(t, spec))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "ResourceInterpretation test") {
			t.Errorf("%s:\n  %v\nwant\n  %s", spec, err, want)
		}
	}
}

// TestRuntimeMistakes: an evaluation error with one object is reported, and changes nothing else.
func TestRuntimeMistakes(t *testing.T) {
	obj := parse(t, "metadata: {namespace: shop}\nspec: {list: [1, 2, 3]}")
	k := customized(t, `
replicas: {path: .spec.nodes, count: "self.spec.missing"}
needs: "[{'kind': 'Secret', 'nam': 'x'}]"
pods: {labels: "{'a': self.spec.missing}"}
`)
	if _, ok := k.Replicas(obj); ok || !strings.Contains(k.CheckMode(obj, Divided), "cannot count its replicas") {
		t.Errorf("an object without a count is divided: %v %q", ok, k.CheckMode(obj, Divided))
	}
	if _, err := k.Needs(obj); err == nil || !strings.Contains(err.Error(), `key "nam"`) {
		t.Errorf("%v, want an error that names the key", err)
	}
	if labels := k.PodLabels(obj); labels != nil {
		t.Errorf("labels %v", labels)
	}
	costly := customized(t, `health: "self.spec.list.map(a, self.spec.list.map(b, self.spec.list.map(c, self.spec.list.map(d, self.spec.list.map(e, self.spec.list.map(f, self.spec.list.map(g, self.spec.list.map(h, self.spec.list.map(i, self.spec.list.map(j, self.spec.list.map(k, self.spec.list.map(l, 'x')))))))))))).size() > 0 ? 'Healthy' : 'Degraded'"`)
	health, why := costly.Health(obj)
	if health != v1alpha1.Unknown || !strings.Contains(why, "cost limit") {
		t.Errorf("%s (%s), want Unknown because of the cost limit", health, why)
	}
}

func TestCustomizations(t *testing.T) {
	at := func(name string, hour int, spec string) *v1alpha1.ResourceInterpretation {
		in := interpretation(t, spec)
		in.Name, in.CreationTimestamp = name, metav1.NewTime(time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC))
		return in
	}
	customizations, wrong := Customizations([]*v1alpha1.ResourceInterpretation{
		at("late", 3, "mode: Single"), at("broken", 1, "mode: Often"), at("early", 2, "mode: Duplicated"),
	})
	if len(customizations) != 1 || customizations[0].Name != "early" {
		t.Errorf("%d customizations", len(customizations))
	}
	var duplicate *DuplicateCustomizationError
	if !errors.As(wrong["late"], &duplicate) || duplicate.Older != "early" {
		t.Errorf("late: %v", wrong["late"])
	}
	if wrong["broken"] == nil || wrong["early"] != nil {
		t.Errorf("%v", wrong)
	}
}

// TestCatalogIsAValue: a change does not affect existing holders.
func TestCatalogIsAValue(t *testing.T) {
	first := BuiltIn()
	gk := ring().GroupKind()
	second := first.With(ring())
	customization, err := ParseCustomization(interpretation(t, "mode: Single"))
	if err != nil {
		t.Fatal(err)
	}
	third := second.WithCustomizations(customization)
	if _, ok := first.Find(gk); ok {
		t.Error("the first catalog has the kind")
	}
	if k, _ := second.Find(gk); k.DefaultMode != Duplicated {
		t.Errorf("the second catalog is customized: %s", k.DefaultMode)
	}
	if k, _ := third.Find(gk); k.DefaultMode != Single {
		t.Errorf("the third catalog is not customized: %s", k.DefaultMode)
	}
	if k, _ := third.WithCustomizations().Find(gk); k.DefaultMode != Duplicated {
		t.Errorf("a removed customization is still in effect: %s", k.DefaultMode)
	}
	if _, ok := third.Without(gk).Find(gk); ok || len(third.Kinds()) != len(first.Kinds())+1 || len(third.Without(gk).Kinds()) != len(first.Kinds()) {
		t.Error("Without is wrong")
	}
}
