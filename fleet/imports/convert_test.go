package imports

import (
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

func TestTypeRoundTripThroughAPI(t *testing.T) {
	label := ".status.selector"
	typ := widget(t, `colour: {type: string, enum: [red, "<blue>"], default: red}, size: {type: number, maximum: 1, minimum: 0.5}`)
	typ.Status, typ.ShortNames, typ.Categories = true, []string{"wd"}, []string{"all"}
	typ.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.size", StatusReplicasPath: ".status.size", LabelSelectorPath: &label}
	typ.Columns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Size", Type: "number", JSONPath: ".spec.size", Priority: 1}}
	silent := *typ
	silent.Schema, silent.Loose = nil, []string{".spec"}
	for _, in := range []*schema.Type{typ, &silent} {
		s, err := newServed(in, v1alpha1.FromCRD)
		if err != nil {
			t.Fatal(err)
		}
		out, err := typeOf(&s.spec, s.spec.OpenAPIV3Schema.Raw)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(in, out) {
			t.Errorf("%+v became %+v", in, out)
		}
		// The cached object from the API server is unchanged.
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.APIResourceImportSpec{CommonAPIResourceSpec: s.spec, Location: "east"})
		if err != nil {
			t.Fatal(err)
		}
		u := object("APIResourceImport", "x")
		u.Object["spec"] = fields
		data, err := u.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		stored := &unstructured.Unstructured{}
		if err := stored.UnmarshalJSON(data); err != nil {
			t.Fatal(err)
		}
		cached, err := cacheImport(stored)
		i, ok := cached.(*imported)
		if err != nil || !ok || i.digest != s.digest || i.schema.Value() != string(s.spec.OpenAPIV3Schema.Raw) {
			t.Errorf("cached as %+v, %v; its digest was %s", cached, err, s.digest)
		}
	}
}

func TestServedVersionsOfCRD(t *testing.T) {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", Annotations: map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved"}}}
	crd.Spec.Group, crd.Spec.Scope = "example.com", apiextensionsv1.ClusterScoped
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"}
	for _, name := range []string{"v1", "v1beta1", "v1alpha1"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: name != "v1alpha1",
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: widget(t, colour).Schema}})
	}
	found, err := fromCRD(crd)
	if err != nil || len(found) != 2 || found[1].spec.GroupVersion.Version != "v1beta1" || found[0].approved != "unapproved" || found[0].digest == found[1].digest {
		t.Errorf("%+v, %v", found, err)
	}
	if isServed(crd) {
		t.Error("a CRD that is not established counts as served")
	}
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	if !isServed(crd) {
		t.Error("an established CRD does not count as served")
	}
	now := metav1.Now()
	crd.DeletionTimestamp = &now
	if isServed(crd) {
		t.Error("a CRD that is being deleted counts as served")
	}
}
