package expose

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden file")

func servers(addresses ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addresses {
		out = append(out, netip.MustParseAddrPort(a))
	}
	return out
}

// TestDesiredGolden compares the complete configuration of a member.
func TestDesiredGolden(t *testing.T) {
	groups := []Group{
		{Name: "widgets.example.org", SharedAPI: "shop", Versions: []string{"v1", "v1beta1"}, Types: "0123456789abcdef"},
		{Name: "apps.example.org", SharedAPI: "apps", Versions: []string{"v1alpha1"}},
	}
	at := servers("10.0.0.3:7443", "10.0.0.1:7443", "10.0.0.2:8443", "[fd00::1]:7443")
	var got bytes.Buffer
	for _, u := range Desired(groups, at, []byte("the CA of Atoll")) {
		data, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString("---\n")
		got.Write(data)
	}
	file := filepath.Join("testdata", "member.yaml")
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("a member gets\n%s\nwant the content of %s (run go test -update to write it)", got.Bytes(), file)
	}

	// A different order of the inputs must not cause a write.
	slices.Reverse(groups)
	slices.Reverse(at)
	var again bytes.Buffer
	for _, u := range Desired(groups, at, []byte("the CA of Atoll")) {
		data, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		again.WriteString("---\n")
		again.Write(data)
	}
	if !bytes.Equal(got.Bytes(), again.Bytes()) {
		t.Errorf("another order gives another result:\n%s", again.Bytes())
	}
}

func TestDesired(t *testing.T) {
	tests := []struct {
		name    string
		groups  []Group
		servers []netip.AddrPort
		want    string
	}{
		{"nothing is shared", nil, servers("10.0.0.1:7443"), ""},
		{"one version", []Group{{Name: "a.example", SharedAPI: "s", Versions: []string{"v1"}}}, servers("10.0.0.1:7443"),
			"Namespace/atoll-system Service/atoll EndpointSlice/atoll-v4-7443 ClusterRole/atoll:view:a.example ClusterRole/atoll:edit:a.example APIService/v1.a.example"},
		{"two ports are two slices", []Group{{Name: "a.example", SharedAPI: "s"}}, servers("10.0.0.1:2", "10.0.0.1:1"),
			"Namespace/atoll-system Service/atoll EndpointSlice/atoll-v4-1 EndpointSlice/atoll-v4-2 ClusterRole/atoll:view:a.example ClusterRole/atoll:edit:a.example"},
		{"two families are two slices", []Group{{Name: "a.example", SharedAPI: "s"}}, servers("10.0.0.1:1", "[fd00::1]:1"),
			"Namespace/atoll-system Service/atoll EndpointSlice/atoll-v4-1 EndpointSlice/atoll-v6-1 ClusterRole/atoll:view:a.example ClusterRole/atoll:edit:a.example"},
	}
	for _, tt := range tests {
		var got []string
		known := kinds()
		last := 0
		for _, u := range Desired(tt.groups, tt.servers, nil) {
			got = append(got, u.GetKind()+"/"+u.GetName())
			if u.GetLabels()[v1alpha1.ManagedByLabel] != v1alpha1.ManagedByAtoll {
				t.Errorf("%s: %s %s lacks our label, so it would never be removed", tt.name, u.GetKind(), u.GetName())
			}
			at := slices.IndexFunc(known, func(k kind) bool { return k.name == u.GetKind() })
			if at < last {
				t.Errorf("%s: %s %s is unknown or comes after an object that may refer to it", tt.name, u.GetKind(), u.GetName())
			}
			last = at
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, got, tt.want)
		}
	}
}

func crd(name, group, established string, versions ...string) *unstructured.Unstructured {
	var list []any
	for _, v := range versions {
		v, off := strings.CutPrefix(v, "!")
		list = append(list, map[string]any{"name": v, "served": !off})
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"spec": map[string]any{"group": group, "versions": list}}}
	u.SetName(name + "." + group)
	if established != "" {
		u.Object["status"] = map[string]any{"conditions": []any{
			map[string]any{"type": "NamesAccepted", "status": "True"}, map[string]any{"type": "Established", "status": established}}}
	}
	return u
}

func TestServedVersions(t *testing.T) {
	got := ServedVersions([]*unstructured.Unstructured{
		crd("widgets", "a.example", "True", "v1beta1", "v1", "!v0", "v2alpha1"),
		crd("gadgets", "a.example", "True", "v2", "v1", "v10"),
		crd("early", "b.example", "", "v1"),
		crd("refused", "c.example", "False", "v1"),
		crd("off", "d.example", "True", "!v1"),
	})
	want := map[string][]string{"a.example": {"v10", "v2", "v1", "v1beta1", "v2alpha1"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestTypesOf: the digest differs for each change that members need to know.
func TestTypesOf(t *testing.T) {
	widgets, gadgets := crd("widgets", "a.example", "True", "v1"), crd("gadgets", "a.example", "True", "v1")
	early, other := crd("early", "a.example", "", "v1"), crd("other", "b.example", "True", "v1")
	of := func(crds ...*unstructured.Unstructured) string { return TypesOf(append(crds, other))["a.example"] }
	before := of(widgets, gadgets)
	if before == "" || before != of(gadgets, widgets) || before != of(widgets, gadgets, early) {
		t.Errorf("the digest depends on the order, or on a type that is not served yet")
	}
	changed, anew, leaving := widgets.DeepCopy(), widgets.DeepCopy(), widgets.DeepCopy()
	changed.SetGeneration(2)
	anew.SetUID("another")
	leaving.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
	// A type that is being deleted is in discovery until it is gone.
	seen := map[string]string{before: "nothing"}
	for what, now := range map[string]string{
		"a change": of(changed, gadgets), "a recreated type": of(anew, gadgets), "a type that is being deleted": of(leaving, gadgets), "a deleted type": of(gadgets),
	} {
		if same, ok := seen[now]; ok {
			t.Errorf("%s gives the same digest as %s", what, same)
		}
		seen[now] = what
	}
	if TypesOf([]*unstructured.Unstructured{widgets, other})["b.example"] != TypesOf([]*unstructured.Unstructured{changed, other})["b.example"] {
		t.Error("the digest depends on another group's types")
	}
}

func TestCovers(t *testing.T) {
	desired := Desired([]Group{{Name: "a.example", SharedAPI: "s", Versions: []string{"v1"}}}, servers("10.0.0.1:1"), []byte("ca"))[1]
	tests := []struct {
		name   string
		change func(map[string]any)
		want   bool
	}{
		{"the same", func(map[string]any) {}, true},
		{"defaulted by the member", func(o map[string]any) {
			o["spec"].(map[string]any)["clusterIP"] = "10.96.0.7"
			o["spec"].(map[string]any)["ports"].([]any)[0].(map[string]any)["targetPort"] = int64(443)
			o["metadata"].(map[string]any)["labels"].(map[string]any)["theirs"] = "x"
		}, true},
		{"another port", func(o map[string]any) {
			o["spec"].(map[string]any)["ports"].([]any)[0].(map[string]any)["port"] = int64(80)
		}, false},
		{"one port more", func(o map[string]any) {
			spec := o["spec"].(map[string]any)
			spec["ports"] = append(spec["ports"].([]any), map[string]any{"port": int64(80)})
		}, false},
		{"without our label", func(o map[string]any) {
			delete(o["metadata"].(map[string]any)["labels"].(map[string]any), v1alpha1.ManagedByLabel)
		}, false},
		{"without a spec", func(o map[string]any) { delete(o, "spec") }, false},
	}
	for _, tt := range tests {
		live := desired.DeepCopy()
		tt.change(live.Object)
		if got := covers(live.Object, desired.Object); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
