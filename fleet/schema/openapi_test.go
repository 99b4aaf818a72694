package schema

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"sigs.k8s.io/yaml"
)

func parseInto(t *testing.T, text string, into any) {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatalf("parsing %s: %v", text, err)
	}
}

const document = `
openapi: 3.0.0
paths:
  /apis/example.com/v1/namespaces/{namespace}/things/{name}:
    get: {x-kubernetes-group-version-kind: {group: example.com, version: v1, kind: Thing}, responses: {}}
  /apis/example.com/v1/namespaces/{namespace}/things/{name}/status: {}
components:
  schemas:
    io.k8s.example.Thing:
      type: object
      x-kubernetes-group-version-kind: [{group: example.com, version: v1, kind: Thing}]
      properties:
        apiVersion: {type: string}
        kind: {type: string}
        metadata: {default: {}, allOf: [{$ref: "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]}
        spec: {default: {}, allOf: [{$ref: "#/components/schemas/io.k8s.example.Spec"}]}
    io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta: {type: object, properties: {name: {type: string}}}
    io.k8s.example.Spec:
      type: object
      required: [port]
      properties:
        port: {$ref: "#/components/schemas/io.k8s.apimachinery.pkg.util.intstr.IntOrString"}
        memory: {$ref: "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"}
        name: {type: string, default: ""}
        policy: {type: string, default: Always, enum: [Always, Never]}
        raw: {type: object}
        tree: {$ref: "#/components/schemas/io.k8s.example.Tree"}
        words: {type: array, items: {type: string, default: ""}, x-kubernetes-patch-strategy: merge}
        ports:
          type: array
          x-kubernetes-patch-strategy: merge
          x-kubernetes-patch-merge-key: name
          items: {default: {}, allOf: [{$ref: "#/components/schemas/io.k8s.example.Port"}]}
        nameless:
          type: array
          x-kubernetes-patch-strategy: merge
          x-kubernetes-patch-merge-key: number
          items: {default: {}, allOf: [{$ref: "#/components/schemas/io.k8s.example.Port"}]}
    io.k8s.example.Port: {type: object, properties: {name: {type: string, default: ""}, number: {type: integer, format: int32}}}
    io.k8s.example.Tree: {type: object, properties: {leaf: {type: string}, sub: {$ref: "#/components/schemas/io.k8s.example.Tree"}}}
    io.k8s.apimachinery.pkg.util.intstr.IntOrString: {format: int-or-string, oneOf: [{type: integer}, {type: string}]}
    io.k8s.apimachinery.pkg.api.resource.Quantity: {oneOf: [{type: string}, {type: number}]}
`

func TestFromOpenAPI(t *testing.T) {
	var doc spec3.OpenAPI
	parseInto(t, document, &doc)
	got, err := FromOpenAPI(&doc, runtimeschema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"})
	if err != nil {
		t.Fatal(err)
	}
	want := Type{Group: "example.com", Version: "v1", Kind: "Thing", Plural: "things", Scope: apiextensionsv1.NamespaceScoped, Status: true,
		Loose: []string{".spec.tree.sub"}, Schema: parse(t, `
type: object
definitions:
  io.k8s.example.Tree: {type: object, properties: {leaf: {type: string}, sub: {$ref: io.k8s.example.Tree, x-kubernetes-preserve-unknown-fields: true, nullable: true}}}
properties:
  apiVersion: {type: string}
  kind: {type: string}
  metadata: {type: object}
  spec:
    type: object
    required: [port]
    properties:
      port: {x-kubernetes-int-or-string: true}
      memory: {x-kubernetes-int-or-string: true}
      name: {type: string}
      policy: {type: string, default: Always, enum: [Always, Never]}
      raw: {type: object, x-kubernetes-preserve-unknown-fields: true}
      tree: {type: object, properties: {leaf: {type: string}, sub: {$ref: io.k8s.example.Tree, x-kubernetes-preserve-unknown-fields: true, nullable: true}}}
      words: {type: array, items: {type: string}, x-kubernetes-list-type: set}
      ports:
        type: array
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [name]
        items: {type: object, properties: {name: {type: string, default: ""}, number: {type: integer, format: int32}}}
      nameless:
        type: array
        items: {type: object, properties: {name: {type: string}, number: {type: integer, format: int32}}}
`)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("type (-want +got):\n%s", diff)
	}
	var object map[string]any
	parseInto(t, `{spec: {tree: {sub: {sub: {sub: {leaf: x, also: 1}, sub2: {leaf: x}}}}}}`, &object)
	if diff := cmp.Diff([]string{".spec.tree.sub.sub.sub.also", ".spec.tree.sub.sub.sub2"}, UnknownPaths(got.Schema, object)); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	if _, refusals := Intersect(got, got, true); len(refusals) == 0 {
		t.Error("a loose type was accepted for negotiation")
	}
	if _, err := FromOpenAPI(&doc, runtimeschema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Other"}); err == nil {
		t.Error("a kind that is not in the document was found")
	}
}
