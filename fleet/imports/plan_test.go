package imports

import (
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func TestPlan(t *testing.T) {
	yes, no := true, false
	type v struct {
		name       string
		properties string
		compatible int
		publish    *bool
		standing   bool
	}
	tests := []struct {
		name     string
		auto     bool
		stored   []string // stored versions of the existing CRD; the last one is the storage version
		versions []v
		want     string            // the first one is the storage version
		why      map[string]string // reasons of the others
	}{
		{name: "not requested", versions: []v{{name: "v1", properties: colour, compatible: 1}}, why: map[string]string{"v1": v1alpha1.ReasonNotRequested}},
		{name: "requested by spec.publish", versions: []v{{name: "v1", properties: colour, compatible: 1, publish: &yes}}, want: "v1"},
		{name: "requested by a policy", auto: true, versions: []v{{name: "v1", properties: colour, compatible: 1}}, want: "v1"},
		{name: "spec.publish overrides the policy", auto: true, versions: []v{{name: "v1", properties: colour, compatible: 1, publish: &no}}, why: map[string]string{"v1": v1alpha1.ReasonNotRequested}},
		{name: "nothing to publish", auto: true, versions: []v{{name: "v1", properties: colour}}, why: map[string]string{"v1": v1alpha1.ReasonNotNegotiable}},
		{name: "equivalent versions", auto: true, versions: []v{{name: "v1beta1", properties: colour, compatible: 1}, {name: "v1", properties: colour, compatible: 1}, {name: "v2", properties: colour, compatible: 1}}, want: "v2 v1 v1beta1"},
		{name: "different versions", auto: true, versions: []v{{name: "v1", properties: colour, compatible: 1}, {name: "v2", properties: size, compatible: 1}}, want: "v2", why: map[string]string{"v1": v1alpha1.ReasonNotConvertible}},
		{name: "most compatible version first", auto: true, versions: []v{{name: "v1", properties: colour, compatible: 3}, {name: "v2", properties: size, compatible: 1}}, want: "v1", why: map[string]string{"v2": v1alpha1.ReasonNotConvertible}},
		{name: "explicitly requested version first", auto: true, versions: []v{{name: "v1", properties: colour, compatible: 3}, {name: "v2", properties: size, compatible: 1, publish: &yes}}, want: "v2", why: map[string]string{"v1": v1alpha1.ReasonNotConvertible}},
		{name: "storage version stays", auto: true, stored: []string{"v1"}, versions: []v{{name: "v1", properties: colour, compatible: 1, standing: true}, {name: "v2", properties: size, compatible: 3, publish: &yes}}, want: "v1", why: map[string]string{"v2": v1alpha1.ReasonNotConvertible}},
		{name: "previously stored version stays", auto: true, stored: []string{"v1beta1", "v1"}, versions: []v{{name: "v1beta1", properties: colour, publish: &no, standing: true}, {name: "v1", properties: colour, compatible: 1, standing: true}}, want: "v1 v1beta1"},
		{name: "no longer requested", stored: []string{"v1"}, versions: []v{{name: "v1", properties: colour, compatible: 1, standing: true}}},
	}
	for _, tt := range tests {
		f := &typeState{gr: kschema.GroupResource{Group: "example.com", Resource: "widgets"}, versions: map[string]*version{}}
		if tt.auto {
			f.policy = &v1alpha1.TypePolicy{Spec: v1alpha1.TypePolicySpec{Publish: v1alpha1.PublishAutomatically}}
		}
		if len(tt.stored) > 0 {
			f.crd = &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.PublishedLabel: "true"}}}
			f.crd.Status.StoredVersions = tt.stored
			for n, name := range tt.stored {
				f.crd.Spec.Versions = append(f.crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: n == len(tt.stored)-1})
			}
		}
		for _, one := range tt.versions {
			typ := widget(t, one.properties)
			typ.Version = one.name
			made := &version{name: one.name, typ: typ, existing: &negotiated{NegotiatedAPIResource: &v1alpha1.NegotiatedAPIResource{}}}
			made.existing.Spec.Publish = one.publish
			if one.standing {
				made.current = currentType{published: true, typ: typ}
			}
			made.imports = append(made.imports, &imported{APIResourceImport: &v1alpha1.APIResourceImport{}})
			for range one.compatible {
				made.compatibilities = append(made.compatibilities, compatibility{compatible: true})
			}
			f.versions[one.name] = made
		}
		p := f.plan()
		var got []string
		for _, v := range p.versions {
			got = append(got, v.name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
			continue
		}
		for name, v := range f.versions {
			if !slices.Contains(got, name) && v.published.reason != tt.why[name] {
				t.Errorf("%s: %s is not published with reason %q (%s), want %q", tt.name, name, v.published.reason, v.published.message, tt.why[name])
			}
		}
		if len(p.versions) == 0 {
			continue
		}
		u, err := p.crd(f)
		if err != nil {
			t.Fatal(err)
		}
		crd, err := asCRD(u)
		if err != nil {
			t.Fatal(err)
		}
		if crd.Name != "widgets.example.com" || !isOurs(crd) || len(crd.Spec.Versions) != len(got) || !crd.Spec.Versions[0].Storage || crd.Spec.Conversion.Strategy != apiextensionsv1.NoneConverter {
			t.Errorf("%s: %+v", tt.name, crd)
		}
	}
}
