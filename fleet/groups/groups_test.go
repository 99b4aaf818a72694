package groups

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// read returns the facts about an object in YAML. Its pods have the labels of its template.
func read(t *testing.T, manifest string) Facts {
	t.Helper()
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &obj.Object); err != nil {
		t.Fatal(err)
	}
	obj.SetNamespace("n")
	pod, _, _ := unstructured.NestedMap(obj.Object, "spec", "template", "spec")
	pods, _, _ := unstructured.NestedStringMap(obj.Object, "spec", "template", "metadata", "labels")
	if pods == nil && pod != nil {
		pods = map[string]string{}
	}
	return Read(obj, pod != nil, pods, pod)
}

func owned(name, owner string) string {
	return fmt.Sprintf(`{metadata: {name: %s, uid: %[1]s, ownerReferences: [{kind: Train, name: %s, uid: %[2]s, controller: true}]}, spec: {template: {spec: {}}}}`, name, owner)
}

func mounting(name string, claims ...string) string {
	volumes := ""
	for _, c := range claims {
		volumes += fmt.Sprintf("{persistentVolumeClaim: {claimName: %s}},", c)
	}
	return fmt.Sprintf(`{metadata: {name: %s}, spec: {template: {metadata: {labels: {app: %[1]s}}, spec: {volumes: [%s]}}}}`, name, volumes)
}

func requiring(name, app string) string {
	return fmt.Sprintf(`{metadata: {name: %s}, spec: {template: {metadata: {labels: {app: %[1]s}}, spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchLabels: {app: %s}}}]}}}}}}`, name, app)
}

// TestGroups: the group of the first object, the reason of each, "!" for one that cannot be divided, and
// "?" for one that another policy keeps apart.
func TestGroups(t *testing.T) {
	for name, tt := range map[string]struct {
		objects []string
		claims  map[string]bool
		want    string
	}{
		"alone": {[]string{mounting("a"), mounting("b")}, nil, ""},
		"of one owner": {[]string{owned("a", "t"), owned("b", "t"), owned("c", "u")}, nil,
			"a its controller is Train t, b? its controller is Train t"},
		"of one owner above their owners": {[]string{owned("a", "s1"), owned("b", "s2"),
			`{metadata: {name: s1, uid: s1, ownerReferences: [{kind: Run, name: r, uid: r, controller: true}]}}`,
			`{metadata: {name: s2, uid: s2, ownerReferences: [{kind: Run, name: r, uid: r, controller: true}]}}`}, nil,
			"a its controller is Train s1, b? its controller is Train s2"},
		"an owner that does not control": {[]string{
			`{metadata: {name: a, ownerReferences: [{kind: Train, name: t, uid: t}]}, spec: {template: {spec: {}}}}`, owned("b", "t")}, nil, ""},
		"with one claim": {[]string{mounting("a", "x"), mounting("b", "x", "w"), mounting("c", "w"), mounting("d", "z")}, map[string]bool{"x": false, "w": false},
			"a! it mounts the claim x, b! it mounts the claim x, c! it mounts the claim w"},
		"with a claim of several clusters": {[]string{mounting("a", "x"), mounting("b", "x")}, map[string]bool{"x": true},
			"a it mounts the claim x, b it mounts the claim x"},
		"a claim that is not there yet": {[]string{mounting("a", "x")}, nil, "a it mounts the claim x"},
		"the claims of replicas": {[]string{mounting("backup", "data-db-1"),
			`{metadata: {name: db}, spec: {volumeClaimTemplates: [{metadata: {name: data}}], template: {spec: {}}}}`}, nil,
			"backup it mounts the claim data-db-1 (data-db-1 of db), db it shares the claims data-db-N"},
		"required affinity": {[]string{requiring("a", "b"), mounting("b"), mounting("c")}, nil,
			"a its pods require pods with app=b beside them (b), b "},
		"seen from the other": {[]string{mounting("b"), requiring("a", "b")}, nil, "b , a its pods require pods with app=b beside them (b)"},
		"affinity to itself":  {[]string{requiring("a", "a")}, nil, "a! "},
		"a Service that gives names": {[]string{`{metadata: {name: a}, spec: {template: {spec: {subdomain: peers}}}}`,
			`{metadata: {name: b}, spec: {serviceName: peers, template: {spec: {}}}}`}, nil, "a its pods have names of the Service peers, b? its pods have names of the Service peers"},
		"a label": {[]string{`{metadata: {name: a, labels: {fleet.atoll.dev/group: g}}, spec: {template: {spec: {}}}}`,
			`{metadata: {name: b, labels: {fleet.atoll.dev/group: g, fleet.atoll.dev/cluster: east}}, spec: {template: {spec: {}}}}`}, nil,
			"a it has the label fleet.atoll.dev/group=g, b it has the label fleet.atoll.dev/group=g"},
		"a cluster of its own": {[]string{owned("a", "t"),
			`{metadata: {name: b, labels: {fleet.atoll.dev/cluster: east}, ownerReferences: [{kind: Train, name: t, uid: t, controller: true}]}, spec: {template: {spec: {}}}}`}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			x := NewIndex[string]()
			first := ""
			for _, o := range tt.objects {
				f := read(t, o)
				obj := &unstructured.Unstructured{}
				if err := yaml.Unmarshal([]byte(o), &obj.Object); err != nil {
					t.Fatal(err)
				}
				if first == "" {
					first = obj.GetName()
				}
				x.Set("n", obj.GetName(), f)
				x.Set("other", obj.GetName(), f) // never counts
			}
			for claim, shared := range tt.claims {
				x.SetClaim("n", claim, shared)
			}
			if got := describe(x.Of("n", first)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func describe(g Group[string]) string {
	var out []string
	for _, m := range g.Members {
		text := m.ID
		if m.Weak {
			text += "?"
		}
		if m.Whole != "" {
			text += "!"
		}
		text += " " + m.Why
		for _, near := range m.Near {
			where := strings.Join(near.Of, "+")
			if near.Numbered {
				text += fmt.Sprintf(" (data-db-%d of %s)", near.Ordinal, where)
			} else {
				text += " (" + where + ")"
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// TestWholeSpreads: what cannot run without an object in one cluster runs in one cluster, too.
func TestWholeSpreads(t *testing.T) {
	x := NewIndex[string]()
	for name, o := range map[string]string{"a": requiring("a", "b"), "b": requiring("b", "c"), "c": mounting("c")} {
		x.Set("n", name, read(t, o))
	}
	g := x.Of("n", "a")
	if got := g.Whole(func(Member[string]) bool { return false }); len(got) != 0 {
		t.Errorf("all are divided, and it reports %v", got)
	}
	got := g.Whole(func(m Member[string]) bool { return m.ID == "c" })
	if len(got) != 3 || got["c"] != "" || !strings.Contains(got["a"], "app=b beside them, and those run in one cluster") {
		t.Errorf("%v", got)
	}
}

// TestChangesNameTheAffected: a change names the objects about which another decision may follow.
func TestChangesNameTheAffected(t *testing.T) {
	x := NewIndex[string]()
	expect := func(what string, got []string, want ...string) {
		t.Helper()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("nothing needs it", x.Set("n", "a", read(t, requiring("a", "b"))))
	expect("it is needed", x.Set("n", "b", read(t, mounting("b", "x"))), "a")
	expect("unchanged", x.Set("n", "b", read(t, mounting("b", "x"))))
	expect("its pods have another label", x.Set("n", "b", read(t, strings.ReplaceAll(mounting("b", "x"), "app: b", "app: c"))), "a")
	expect("a claim", x.SetClaim("n", "x", false), "b")
	expect("the same claim", x.SetClaim("n", "x", false))
	expect("its modes change", x.SetClaim("n", "x", true), "b")
	expect("it is deleted", x.DeleteClaim("n", "x"), "b")
	expect("a child", x.Set("n", "k1", read(t, owned("k1", "s1"))))
	expect("its owner's owner", x.Set("n", "s1", Facts{UID: "s1", Owner: types.UID("r")}), "k1")
	expect("the owner goes", x.Delete("n", "s1"), "k1")
	for _, id := range []string{"a", "b", "k1"} {
		x.Delete("n", id)
	}
	if len(x.namespaces) != 0 {
		t.Errorf("it keeps %v", x.namespaces)
	}
}
