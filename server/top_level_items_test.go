package server_test

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// TestTopLevelItems: a custom resource with a list named items at the top is rejected, however it is written, and nothing is stored. Other fields of this name are not.
func TestTopLevelItems(t *testing.T) { inEachAPI(t, testTopLevelItems) }

func testTopLevelItems(t *testing.T, s atoll) {
	ns := s.namespace(t)
	s.mustKubectl(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: bags.items.example.com}, spec: {group: items.example.com, scope: Namespaced,
		names: {plural: bags, singular: bag, kind: Bag}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`,
		"apply", "-f", "-")
	path := "/apis/items.example.com/v1/namespaces/" + ns + "/bags"
	client := s.client(t).RESTClient()
	eventually(t, "it is served", func(ctx context.Context) error {
		_, err := client.Get().AbsPath(path).DoRaw(ctx)
		return err
	})
	create := func(name, more string) error {
		return client.Post().AbsPath(path).SetHeader("Content-Type", "application/json").
			Body([]byte(`{"apiVersion":"items.example.com/v1","kind":"Bag","metadata":{"name":"` + name + `"},` + more + `}`)).Do(t.Context()).Error()
	}
	rejected := func(what string, err error) {
		t.Helper()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "items: Forbidden") || !strings.Contains(err.Error(), "move it into spec") {
			t.Errorf("%s: %v", what, err)
		}
	}
	rejected("a new object", create("one", `"items":[{"name":"a"}]`))
	if _, err := client.Get().AbsPath(path + "/one").DoRaw(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("it is stored: %v", err)
	}
	if err := create("one", `"spec":{"items":[1]},"items":{"a":1}`); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []types.PatchType{types.MergePatchType, types.ApplyPatchType} {
		patch := client.Patch(kind).AbsPath(path+"/one").Param("fieldManager", "test")
		if kind == types.ApplyPatchType {
			patch.Param("force", "true")
		}
		rejected(string(kind), patch.Body([]byte(`{"apiVersion":"items.example.com/v1","kind":"Bag","metadata":{"name":"one"},"items":[]}`)).Do(t.Context()).Error())
	}
	if err := client.Delete().AbsPath(path + "/one").Do(t.Context()).Error(); err != nil {
		t.Error(err)
	}
}
