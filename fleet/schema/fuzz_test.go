package schema

import (
	"encoding/json"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
)

// The control plane reads documents of members, so every input must be handled without a panic or
// an endless loop. These bounds are at or below those of the API server.
const (
	mostBytes = 64 << 10
	mostDepth = 60
)

// deep reports whether JSON is nested deeper than the tests cover.
func deep(raw []byte) bool {
	depth, most := 0, 0
	for _, b := range raw {
		switch b {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		most = max(most, depth)
	}
	return most > mostDepth
}

// FuzzCompare compares arbitrary inputs, as schemas and inside a CRD.
func FuzzCompare(f *testing.F) {
	for _, seed := range []string{
		`{"type":"object","properties":{"a":{"type":"integer","maximum":1e300}}}`,
		`{"type":"object","properties":{"a":{"type":"array","items":[{"type":"string"}]}}}`,
		`{"type":"object","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"],"items":{}}`,
		`{"type":"number","multipleOf":0,"allOf":[{"multipleOf":-1}],"enum":[1,null,{}],"default":1}`,
		`{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}],"allOf":[{"anyOf":[{"type":"integer"},{"type":"string"}]}]}`,
		`{"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":{"$ref":"#/a"}}}`,
		`{"type":"string","pattern":"(","format":"date","not":{"not":{"not":{}}},"x-kubernetes-validations":[{"rule":"self"}]}`,
		`{"type":"object","x-kubernetes-embedded-resource":true,"default":{"a":null},"properties":{"metadata":{"type":"object"}}}`,
	} {
		f.Add([]byte(seed), []byte(`{"type":"object"}`))
		f.Add([]byte(seed), []byte(seed))
	}
	f.Fuzz(func(t *testing.T, one, other []byte) {
		var a, b Props
		if len(one)+len(other) > mostBytes || deep(one) || deep(other) || json.Unmarshal(one, &a) != nil || json.Unmarshal(other, &b) != nil {
			return
		}
		result, refusals := Compare(&a, &b, true)
		if (result == nil) != (len(refusals) > 0) {
			t.Fatalf("result %v, refusals %v", result, refusals)
		}
		if result != nil {
			if _, why := Compare(result, &a, false); len(why) > 0 {
				t.Errorf("the result is not contained in what it was made from: %v", why)
			}
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{
			{Name: "v1", Served: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &a}, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}},
			{Name: "v1", Served: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &b}, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}},
		}
		if types := FromCRD(crd); len(types) == 2 {
			Negotiate(types)
		}
		var object map[string]any
		if json.Unmarshal(other, &object) == nil {
			UnknownPaths(&a, object)
		}
	})
}

// FuzzOpenAPI reads arbitrary documents, and checks objects against them.
func FuzzOpenAPI(f *testing.F) {
	f.Add([]byte(`{"openapi":"3.0.0","components":{"schemas":{"K":{"type":"object","x-kubernetes-group-version-kind":[{"group":"","version":"v1","kind":"K"}],
		"properties":{"a":{"$ref":"#/components/schemas/K"},"b":{"allOf":[{"$ref":"#/components/schemas/L"}]}}},"L":{"items":{"$ref":"#/components/schemas/L"}}}}}`), []byte(`{"a":{"a":{"c":1}}}`))
	f.Add([]byte(`{"openapi":"3.0.0","components":{"schemas":{"K":{"x-kubernetes-group-version-kind":[{"version":"v1","kind":"K"}],"$ref":"#/components/schemas/K"}}}}`), []byte(`{}`))
	f.Add([]byte(`{"openapi":"3.0.0","paths":{"/{name}":{"get":{"x-kubernetes-group-version-kind":{"version":"v1","kind":"K"}}}},"components":{"schemas":{"K":{"type":"array",
		"x-kubernetes-patch-strategy":"merge","x-kubernetes-patch-merge-key":"a","x-kubernetes-group-version-kind":[{"version":"v1","kind":"K"}]}}}}`), []byte(`{"a":[1,{"b":2}]}`))
	f.Fuzz(func(t *testing.T, document, object []byte) {
		var doc spec3.OpenAPI
		var o map[string]any
		if len(document) > mostBytes || deep(document) || deep(object) || json.Unmarshal(document, &doc) != nil || json.Unmarshal(object, &o) != nil {
			return
		}
		got, err := FromOpenAPI(&doc, runtimeschema.GroupVersionKind{Version: "v1", Kind: "K"})
		if err != nil {
			return
		}
		UnknownPaths(got.Schema, o)
		Intersect(got, got, true)
	})
}
