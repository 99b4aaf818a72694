package schema

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func widget(t *testing.T, spec string) Type {
	root := parse(t, "type: object")
	root.Properties = map[string]Props{"spec": *parse(t, spec)}
	return Type{Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets", Singular: "widget", ListKind: "WidgetList",
		ShortNames: []string{"w", "wi"}, Scope: apiextensionsv1.NamespaceScoped, Schema: root}
}

func TestNegotiateLeavesOutWhatDoesNotMeet(t *testing.T) {
	types := []Type{
		widget(t, `{type: object, properties: {size: {type: integer, maximum: 9}, color: {type: string}}}`),
		widget(t, `{type: object, properties: {size: {type: string}}}`),
		widget(t, `{type: object, properties: {size: {type: integer, maximum: 5}, shape: {type: string}}}`),
	}
	types[2].ShortNames = []string{"wi", "wid"}
	result, refused := Negotiate(types)
	if len(refused[0]) > 0 || len(refused[2]) > 0 {
		t.Fatalf("refused: %v", refused)
	}
	wantRefusal(t, "the second", "TypeDiffers at .spec.size", refused[1])
	want := parse(t, `{type: object, properties: {size: {type: integer, maximum: 5}}}`)
	got := result.Schema.Properties["spec"]
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"wi"}, result.ShortNames); diff != "" {
		t.Errorf("short names (-want +got):\n%s", diff)
	}
	for i, r := range refused {
		if i == 1 {
			continue
		}
		if _, why := Intersect(result, types[i], false); len(why) > 0 {
			t.Errorf("the result is not contained in type %d: %v %v", i, why, r)
		}
	}
}

func TestNegotiateNothing(t *testing.T) {
	if result, refused := Negotiate(nil); result.Schema != nil || len(refused) != 0 {
		t.Errorf("Negotiate(nil) = %v, %v", result, refused)
	}
	broken := widget(t, `{type: object, properties: {a: {type: string, $ref: "#/x"}}}`)
	fine := widget(t, `{type: object}`)
	result, refused := Negotiate([]Type{broken, fine})
	wantRefusal(t, "a broken seed", "UnsupportedConstruct at .spec.a", refused[0])
	if len(refused[1]) > 0 || result.Schema == nil {
		t.Errorf("the other type did not seed: %v", refused[1])
	}
}

func TestIntersectAroundTheSchema(t *testing.T) {
	spec := `{type: object, properties: {replicas: {type: integer}}}`
	for _, test := range []struct {
		name, want, check string
		change            func(*Type)
	}{
		{"same", "", "", func(*Type) {}},
		{"singular and list kind", "", "", func(o *Type) { o.Singular, o.ListKind = "wg", "Widgets" }},
		{"kind", "NamesDiffer at kind", "NamesDiffer", func(o *Type) { o.Kind = "Wodget" }},
		{"plural", "NamesDiffer at plural", "NamesDiffer", func(o *Type) { o.Plural = "widgetses" }},
		{"version", "NamesDiffer at version", "NamesDiffer", func(o *Type) { o.Version = "v2" }},
		{"scope", "ScopeDiffers at scope", "ScopeDiffers", func(o *Type) { o.Scope = apiextensionsv1.ClusterScoped }},
		{"status", "SubresourceDiffers at subresources.status", "SubresourceDiffers", func(o *Type) { o.Status = true }},
		{"scale", "", "SubresourceDiffers at subresources.scale", func(o *Type) {
			o.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}
		}},
		{"no schema", "SchemaMissing", "SchemaMissing", func(o *Type) { o.Schema = nil }},
		{"loose", "NotExpressible at .spec.tree", "NotExpressible", func(o *Type) { o.Loose = []string{".spec.tree"} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			other := widget(t, spec)
			test.change(&other)
			result, refusals := Intersect(widget(t, spec), other, true)
			wantRefusal(t, "narrowing", test.want, refusals)
			if test.name == "scale" && result.Scale == nil {
				t.Error("the result has no scale, so its replicas are not validated")
			}
			_, refusals = Intersect(widget(t, spec), other, false)
			wantRefusal(t, "containment", test.check, refusals)
		})
	}
}

// TestStatusIsWidened: clusters report the status, so it has to accept every report of both.
func TestStatusIsWidened(t *testing.T) {
	withStatus := func(status string) Type {
		o := widget(t, `{type: object}`)
		o.Status = true
		o.Schema.Properties["status"] = *parse(t, status)
		return o
	}
	a := withStatus(`{type: object, required: [phase], properties: {phase: {type: string, enum: [Up]}, old: {type: string}, n: {type: integer}}}`)
	b := withStatus(`{type: object, properties: {phase: {type: string, enum: [Down]}, new: {type: string}, n: {type: string}}}`)
	result, refusals := Intersect(a, b, true)
	if len(refusals) > 0 {
		t.Fatal(refusals)
	}
	got := result.Schema.Properties["status"]
	want := parse(t, `{type: object, properties: {phase: {type: string}, old: {type: string}, new: {type: string}, n: {x-kubernetes-preserve-unknown-fields: true, nullable: true}}}`)
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}

	a.Schema.XValidations = []Rule{{Rule: "self.status.n > 1"}}
	_, refusals = Intersect(a, b, true)
	wantRefusal(t, "a rule that reads the status", "RuleDiffers at .status", refusals)
}

func TestCRDThereAndBack(t *testing.T) {
	v1, v2 := widget(t, `{type: object, properties: {a: {type: string}}}`), widget(t, `{type: object, properties: {a: {type: string, description: later}}}`)
	v2.Version = "v2"
	v1.Status, v2.Status = true, true
	crd, err := CRD([]Type{v2, v1})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Type{v2, v1}, FromCRD(crd)); diff != "" {
		t.Errorf("types (-want +got):\n%s", diff)
	}
	v1.Schema.Properties["spec"].Properties["b"] = *parse(t, `{type: string}`)
	if _, err := CRD([]Type{v2, v1}); err == nil || !strings.Contains(err.Error(), "widgets.v1.example.com") {
		t.Errorf("versions with other fields went into one CRD: %v", err)
	}
	crd.Spec.PreserveUnknownFields = true
	for _, o := range FromCRD(crd) {
		if o.Schema != nil {
			t.Errorf("%s prunes nothing, but its schema was used", o)
		}
	}
}

func TestUnknown(t *testing.T) {
	p := parse(t, `{type: object, properties: {spec: {type: object, properties: {
		list: {type: array, items: {type: object, properties: {a: {type: string}}}},
		map: {type: object, additionalProperties: {type: object, properties: {a: {type: string}}}},
		free: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: object}}},
		flat: {type: object, additionalProperties: true}}}}}`)
	var o map[string]any
	parseInto(t, `{apiVersion: v1, kind: K, metadata: {anything: 1}, other: 1, spec: {new: {b: 1}, list: [{a: x}, {b: y}], map: {k: {a: x, b: y}},
		free: {z: {y: 1}, a: {b: 1}}, flat: {k: 1, l: {m: 1}}}}`, &o)
	want := []string{".other", ".spec.flat.l.m", ".spec.free.a.b", ".spec.list[1].b", ".spec.map.k.b", ".spec.new"}
	if diff := cmp.Diff(want, UnknownPaths(p, o)); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	if got := UnknownPaths(nil, o); got != nil {
		t.Errorf("without a schema %v are unknown", got)
	}
}
