package v1alpha1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

func TestBindingName(t *testing.T) {
	for want, in := range map[string][3]string{
		"deployment.apps-web": {"apps", "Deployment", "web"},
		"configmap-a.b":       {"", "ConfigMap", "a.b"},
	} {
		if got := BindingName(schema.GroupKind{Group: in[0], Kind: in[1]}, in[2]); got != want {
			t.Errorf("%v: %s, want %s", in, got, want)
		}
	}
	// All names are valid and unique.
	seen := map[string][3]string{}
	long := strings.Repeat("x", 253)
	for _, in := range [][3]string{
		{"b", "A", "c-d"}, {"b-c", "A", "d"}, {"", "A", "b-c-d"}, {"", "A.b", "c-d"},
		{"", "A", long}, {"b", "A", long}, {"rbac.authorization.k8s.io", "Role", "system:x"},
	} {
		name := BindingName(schema.GroupKind{Group: in[0], Kind: in[1]}, in[2])
		if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
			t.Errorf("%v: %q is not a valid name: %v", in, name, msgs)
		}
		// Two kinds cannot differ only in the position of a dot, because kinds contain no dots.
		if other, twice := seen[name]; twice && in[1] != "A.b" {
			t.Errorf("%v and %v share the name %s", in, other, name)
		}
		seen[name] = in
	}
}

func TestReservedNamesAreRefusedByTheCRD(t *testing.T) {
	crd, err := crds.ReadFile("crds/fleet.atoll.dev_clusters.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rule := "oldSelf.hasValue() || !(self.metadata.name in ['" + strings.Join(ReservedClusterNames(), "', '") + "'])"
	if !strings.Contains(strings.Join(strings.Fields(string(crd)), " "), rule) {
		t.Errorf("the CRD of Clusters has no rule %s", rule)
	}
}

func TestCRDs(t *testing.T) {
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	found := ""
	for _, data := range crds {
		var crd struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatal(err)
		}
		found += crd.Kind + " " + crd.Metadata.Name + "\n"
	}
	want := "CustomResourceDefinition apiresourceimports.fleet.atoll.dev\n" +
		"CustomResourceDefinition clusterplacements.fleet.atoll.dev\n" +
		"CustomResourceDefinition clusterresourcebindings.fleet.atoll.dev\n" +
		"CustomResourceDefinition clusters.fleet.atoll.dev\n" +
		"CustomResourceDefinition clustertaintpolicies.fleet.atoll.dev\n" +
		"CustomResourceDefinition fleetquotas.fleet.atoll.dev\n" +
		"CustomResourceDefinition negotiatedapiresources.fleet.atoll.dev\n" +
		"CustomResourceDefinition placements.fleet.atoll.dev\n" +
		"CustomResourceDefinition resourcebindings.fleet.atoll.dev\n" +
		"CustomResourceDefinition resourceinterpretations.fleet.atoll.dev\n" +
		"CustomResourceDefinition scaleschedules.fleet.atoll.dev\n" +
		"CustomResourceDefinition sharedapis.fleet.atoll.dev\n" +
		"CustomResourceDefinition typepolicies.fleet.atoll.dev\n" +
		"CustomResourceDefinition volumepolicies.fleet.atoll.dev\n"
	if found != want {
		t.Errorf("embedded\n%s, want\n%s", found, want)
	}
}
