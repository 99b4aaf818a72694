package test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

var crdsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// crdOf is a CRD of group types.test.atoll.dev with one version, whose spec has these
// properties.
func crdOf(plural, kind, properties string) string {
	return fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %[1]s.types.test.atoll.dev},
spec: {group: types.test.atoll.dev, scope: Namespaced, names: {plural: %[1]s, singular: %[2]s, kind: %[3]s},
versions: [{name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {
spec: {type: object, properties: {%[4]s}}, status: {type: object, properties: {ready: {type: boolean}}}}}}}]}}`,
		plural, strings.ToLower(kind), kind, properties)
}

// serve has members serve a type, each with its own properties, until the test ends.
func (f *fixture) serve(t *testing.T, plural, kind string, properties map[string]string) {
	t.Helper()
	for member, p := range properties {
		f.put(t, member, crdOf(plural, kind, p))
		t.Cleanup(func() {
			_, _ = f.tryKubectl(context.Background(), member, "", "delete", "crd", plural+".types.test.atoll.dev", "--ignore-not-found")
		})
	}
}

// wantCondition waits until a condition of a type's object says this. The message is
// searched for text.
func (f *fixture) wantCondition(t *testing.T, gvr schema.GroupVersionResource, name, condition, status, reason, says string) {
	t.Helper()
	client := f.dynamic(t).Resource(gvr)
	eventually(t, settle, fmt.Sprintf("%s %s is %s", name, condition, status), func(ctx context.Context) error {
		u, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			is, _ := c.(map[string]any)
			if is["type"] != condition {
				continue
			}
			message, _ := is["message"].(string)
			if is["status"] == status && (reason == "" || is["reason"] == reason) && strings.Contains(message, says) {
				return nil
			}
			return fmt.Errorf("it is %s, %s: %s", is["status"], is["reason"], message)
		}
		return errors.New("there is no such condition")
	})
}

// wantSpec waits until the schema of a negotiated type has exactly these properties in
// its spec, each with its maximum if it has one.
func (f *fixture) wantSpec(t *testing.T, plural string, want map[string]string) {
	t.Helper()
	client := f.dynamic(t).Resource(v1alpha1.NegotiatedAPIResourceResource)
	eventually(t, settle, plural+" are negotiated", func(ctx context.Context) error {
		u, err := client.Get(ctx, plural+".v1.types.test.atoll.dev", metav1.GetOptions{})
		if err != nil {
			return err
		}
		has, _, err := unstructured.NestedMap(u.Object, "spec", "openAPIV3Schema", "properties", "spec", "properties")
		if err != nil {
			return err
		}
		got := map[string]string{}
		for name, p := range has {
			got[name] = ""
			if most, ok := p.(map[string]any)["maximum"]; ok {
				got[name] = fmt.Sprint(most)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("they have %v, not %v", got, want)
		}
		return nil
	})
}

func (f *fixture) wantAbsent(t *testing.T, gvr schema.GroupVersionResource, name string) {
	t.Helper()
	eventually(t, settle, name+" is gone", func(ctx context.Context) error {
		_, err := f.dynamic(t).Resource(gvr).Get(ctx, name, metav1.GetOptions{})
		return wantNotFound(err)
	})
}

func (f *fixture) patchType(t *testing.T, gvr schema.GroupVersionResource, name, patch string) {
	t.Helper()
	if _, err := f.dynamic(t).Resource(gvr).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func widgetNamed(name string, size int) string {
	return fmt.Sprintf(`{apiVersion: types.test.atoll.dev/v1, kind: Widget, metadata: {name: %s, namespace: default}, spec: {colour: blue, size: %d}}`, name, size)
}

// Atoll imports the types of members, negotiates a common type, and publishes it on request. The type becomes
// narrower or wider, or is removed, only when that harms no object.
func TestTypesAreNegotiatedAndPublished(t *testing.T) {
	f := whole(t)
	imports, negotiated := v1alpha1.APIResourceImportResource, v1alpha1.NegotiatedAPIResourceResource
	const widgets = "widgets.v1.types.test.atoll.dev"
	in := func(member string) string { return "widgets." + member + ".v1.types.test.atoll.dev" }

	f.serve(t, "widgets", "Widget", map[string]string{"east": "colour: {type: string}, size: {type: integer, maximum: 10}, speed: {type: integer}"})
	f.wantCondition(t, imports, in("east"), "Available", "True", "Served", "")
	f.serve(t, "widgets", "Widget", map[string]string{"west": "colour: {type: string}, size: {type: integer, maximum: 5}"})
	f.wantCondition(t, imports, in("west"), "Compatible", "True", "", "")
	f.serve(t, "widgets", "Widget", map[string]string{"north": "colour: {type: integer}"})

	f.wantCondition(t, imports, in("north"), "Compatible", "False", "SchemaIncompatible", ".spec.colour")
	f.wantCondition(t, imports, in("east"), "Compatible", "True", "SchemaAccepted", "")
	f.wantSpec(t, "widgets", map[string]string{"colour": "", "size": "5"})
	f.wantCondition(t, negotiated, widgets, "Published", "False", "NotRequested", "spec.publish")
	f.wantAbsent(t, crdsResource, "widgets.types.test.atoll.dev")

	// Published, it takes what both take and nothing else.
	f.patchType(t, negotiated, widgets, `{"spec":{"publish":true}}`)
	f.wantCondition(t, negotiated, widgets, "Published", "True", "Published", "")
	f.wantCondition(t, negotiated, widgets, "Submitted", "True", "", "")
	f.apply(t, widgetNamed("one", 4))
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "widgets.types.test.atoll.dev", "--all", "--ignore-not-found")
	})
	if _, err := f.tryKubectl(t.Context(), "atoll", widgetNamed("two", 7), "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "spec.size") {
		t.Errorf("a widget that west would refuse: %v", err)
	}

	// What all of them have come to accept, people can use.
	f.serve(t, "widgets", "Widget", map[string]string{"west": "colour: {type: string}, size: {type: integer, maximum: 10}"})
	f.wantSpec(t, "widgets", map[string]string{"colour": "", "size": "10"})
	eventually(t, settle, "a bigger widget is accepted", func(ctx context.Context) error {
		_, err := f.tryKubectl(ctx, "atoll", widgetNamed("two", 7), "apply", "-f", "-")
		return err
	})

	// A cluster that accepts less does not fit, unless it is allowed to narrow the type.
	f.serve(t, "widgets", "Widget", map[string]string{"north": "colour: {type: string}, size: {type: integer, maximum: 8}"})
	f.wantCondition(t, imports, in("north"), "Compatible", "False", "", "UpdatePublished")
	f.patchType(t, imports, in("north"), `{"spec":{"schemaUpdateStrategy":"UpdatePublished"}}`)
	f.wantCondition(t, imports, in("north"), "Compatible", "True", "", "")
	f.wantSpec(t, "widgets", map[string]string{"colour": "", "size": "8"})

	// But no stored object loses a field.
	f.serve(t, "widgets", "Widget", map[string]string{"north": "colour: {type: string}"})
	f.wantCondition(t, negotiated, widgets, "Published", "True", "UpdateWaits", ".spec.size")
	f.wantCondition(t, imports, in("north"), "Compatible", "False", "", "")
	f.wantSpec(t, "widgets", map[string]string{"colour": "", "size": "8"})
	if got := f.kubectl(t, "atoll", "get", "widgets", "one", "-o", "jsonpath={.spec.size}"); got != "4" {
		t.Errorf("the widget has size %q", got)
	}

	// An edit of the CRD is undone.
	f.patchType(t, crdsResource, "widgets.types.test.atoll.dev", `{"spec":{"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":
{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	eventually(t, settle, "the edit is undone", func(ctx context.Context) error {
		u, err := f.dynamic(t).Resource(crdsResource).Get(ctx, "widgets.types.test.atoll.dev", metav1.GetOptions{})
		if err != nil {
			return err
		}
		versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
		if _, there, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "size"); !there {
			return errors.New("there is no size")
		}
		return nil
	})

	// While there are objects it stays, whatever is asked for.
	f.patchType(t, negotiated, widgets, `{"spec":{"publish":false}}`)
	f.wantCondition(t, negotiated, widgets, "Published", "True", "ObjectsExist", "kubectl get widgets")
	f.kubectl(t, "atoll", "delete", negotiated.Resource, widgets)
	f.wantCondition(t, negotiated, widgets, "Published", "True", "ObjectsExist", "")
	f.kubectl(t, "atoll", "delete", "widgets.types.test.atoll.dev", "--all")
	f.wantAbsent(t, crdsResource, "widgets.types.test.atoll.dev")
	f.wantCondition(t, negotiated, widgets, "Published", "False", "NotRequested", "")

	// With the last cluster that has it, the type goes.
	for _, m := range islands {
		f.kubectl(t, m, "delete", "crd", "widgets.types.test.atoll.dev")
		f.wantAbsent(t, imports, in(m))
	}
	f.wantAbsent(t, negotiated, widgets)
}

// What a person defines is enforced: members are checked against it, and it is
// never changed.
func TestTypesOfPeopleAreEnforced(t *testing.T) {
	f := whole(t)
	const gadgets = "gadgets.v1.types.test.atoll.dev"
	manifest := crdOf("gadgets", "Gadget", "colour: {type: string}, size: {type: integer}")
	f.apply(t, manifest)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "crd", "gadgets.types.test.atoll.dev", "--ignore-not-found")
	})
	f.wantCondition(t, v1alpha1.NegotiatedAPIResourceResource, gadgets, "Enforced", "True", "Enforced", "gadgets.types.test.atoll.dev")
	before, err := f.dynamic(t).Resource(crdsResource).Get(t.Context(), "gadgets.types.test.atoll.dev", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, "gadgets", "Gadget", map[string]string{
		"east": "colour: {type: string}, size: {type: integer}, speed: {type: integer}",
		"west": "colour: {type: string}",
	})
	in := func(member string) string { return "gadgets." + member + ".v1.types.test.atoll.dev" }
	f.wantCondition(t, v1alpha1.APIResourceImportResource, in("east"), "Compatible", "True", "", "")
	f.wantCondition(t, v1alpha1.APIResourceImportResource, in("west"), "Compatible", "False", "SchemaIncompatible", ".spec.size")
	f.wantCondition(t, v1alpha1.NegotiatedAPIResourceResource, gadgets, "Published", "True", "Enforced", "")
	f.patchType(t, v1alpha1.NegotiatedAPIResourceResource, gadgets, `{"spec":{"publish":false}}`)
	f.serve(t, "gadgets", "Gadget", map[string]string{"west": "colour: {type: string}, size: {type: integer}"})
	f.wantCondition(t, v1alpha1.APIResourceImportResource, in("west"), "Compatible", "True", "", "")
	after, err := f.dynamic(t).Resource(crdsResource).Get(t.Context(), "gadgets.types.test.atoll.dev", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after.GetUID() != before.GetUID() || after.GetGeneration() != before.GetGeneration() || len(after.GetLabels()) > 0 {
		t.Errorf("the CRD was changed: generation %d, then %d; labels %v", before.GetGeneration(), after.GetGeneration(), after.GetLabels())
	}
}

// A policy publishes by group; a cluster that leaves takes its imports along, and one
// that is silent does not.
func TestTypesFollowPoliciesAndClusters(t *testing.T) {
	f := whole(t)
	imports, negotiated := v1alpha1.APIResourceImportResource, v1alpha1.NegotiatedAPIResourceResource
	const parts = "parts.v1.types.test.atoll.dev"
	in := func(member string) string { return "parts." + member + ".v1.types.test.atoll.dev" }
	f.serve(t, "parts", "Part", map[string]string{"east": "colour: {type: string}, size: {type: integer}"})
	f.wantCondition(t, imports, in("east"), "Compatible", "True", "", "")
	f.serve(t, "parts", "Part", map[string]string{"north": "colour: {type: string}"})
	f.wantSpec(t, "parts", map[string]string{"colour": ""})
	f.apply(t, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: TypePolicy, metadata: {name: tests}, spec: {groups: ["*.test.atoll.dev"], publish: Automatically}}`)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "typepolicy", "tests", "--ignore-not-found")
	})
	f.wantCondition(t, negotiated, parts, "Published", "True", "Published", "")

	// Silence changes nothing.
	f.members["north"].Kill()
	f.wantReady(t, settle, "north", false)
	f.wantCondition(t, imports, in("north"), "Available", "True", "LastKnown", "not been Ready since")
	f.wantSpec(t, "parts", map[string]string{"colour": ""})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var err error
	if f.members["north"], err = f.StartMember(ctx, "north"); err != nil {
		t.Fatal(err)
	}
	f.wantReady(t, settle, "north", true)
	f.wantCondition(t, imports, in("north"), "Available", "True", "Served", "")

	// Leaving does.
	f.atoll(t, "leave", "north")
	t.Cleanup(func() {
		if _, err := f.dynamic(t).Resource(clustersResource).Get(context.Background(), "north", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			if err := f.Join(context.Background(), f.members["north"]); err != nil {
				t.Error(err)
			}
		}
	})
	f.wantAbsent(t, imports, in("north"))
	f.wantSpec(t, "parts", map[string]string{"colour": "", "size": ""})
	if err := f.Join(ctx, f.members["north"]); err != nil {
		t.Fatal(err)
	}
	f.wantReady(t, settle, "north", true)
	f.wantCondition(t, imports, in("north"), "Compatible", "False", "", ".spec.size")

	f.kubectl(t, "atoll", "delete", "typepolicy", "tests")
	f.wantAbsent(t, crdsResource, "parts.types.test.atoll.dev")
}
