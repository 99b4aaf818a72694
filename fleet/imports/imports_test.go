package imports

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const negotiatedWidgets = "widgets.v1.example.com"

func importIn(member string) string { return "widgets." + member + ".v1.example.com" }

func publishing(publish bool) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(u.Object, publish, "spec", "publish"); err != nil {
			panic(err)
		}
	}
}

func TestImportsFollowWhatMembersServe(t *testing.T) {
	s := newFixture(t, []string{"east", "west"})
	imports := v1alpha1.APIResourceImportResource
	s.serve("east", colour+", "+size)
	s.wantCondition(imports, importIn("east"), "Available", "True", "Served", "")
	s.serve("west", colour)
	s.wantCondition(imports, importIn("west"), "Compatible", "True", "SchemaAccepted", "")
	s.wantCondition(v1alpha1.NegotiatedAPIResourceResource, negotiatedWidgets, "Published", "False", "NotRequested", "TypePolicy")

	// Edits and deletions are reverted, except for the strategy.
	s.change(imports, importIn("west"), func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, "Gadget", "spec", "kind")
		_ = unstructured.SetNestedField(u.Object, "UpdateNever", "spec", "schemaUpdateStrategy")
	})
	s.await("the edit is undone", func() error {
		u, err := s.control.Resource(imports).Get(t.Context(), importIn("west"), metav1.GetOptions{})
		if err != nil {
			return err
		}
		kind, _, _ := unstructured.NestedString(u.Object, "spec", "kind")
		strategy, _, _ := unstructured.NestedString(u.Object, "spec", "schemaUpdateStrategy")
		holds, _, _ := unstructured.NestedString(u.Object, "status", "schemaUpdateStrategy")
		if kind != "Widget" || strategy != "UpdateNever" || holds != "UpdateNever" {
			return fmt.Errorf("kind %s, strategy %s, effective strategy %s", kind, strategy, holds)
		}
		return nil
	})
	s.wantCondition(imports, importIn("west"), "Compatible", "False", "SchemaIncompatible", "UpdateNever")
	if err := s.control.Resource(imports).Delete(t.Context(), importIn("west"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.wantCondition(imports, importIn("west"), "Compatible", "True", "SchemaAccepted", "")

	// The import of a type that is no longer served is deleted; with the last one, the negotiated type.
	s.unserve("west")
	s.wantAbsent(imports, importIn("west"))
	s.unserve("east")
	s.wantAbsent(imports, importIn("east"))
	s.wantAbsent(v1alpha1.NegotiatedAPIResourceResource, negotiatedWidgets)
}

func TestImportOfUsedTypeIsKept(t *testing.T) {
	s := newFixture(t, []string{"east", "west"}, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: ResourceBinding, metadata: {name: one, namespace: default},
spec: {resource: {apiVersion: example.com/v1, kind: Widget, name: one, uid: u}, clusters: [{name: east, reason: Scheduled}]}}`)
	imports := v1alpha1.APIResourceImportResource
	s.serve("east", colour)
	s.wantCondition(imports, importIn("east"), "Compatible", "True", "SchemaAccepted", "")
	s.serve("west", colour+", "+size)
	s.wantCondition(imports, importIn("west"), "Compatible", "True", "SchemaAccepted", "")
	s.unserve("east")
	s.wantCondition(imports, importIn("east"), "Available", "False", "NotServed", "1 objects")
	u, err := s.control.Resource(v1alpha1.NegotiatedAPIResourceResource).Get(t.Context(), negotiatedWidgets, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, widened, _ := unstructured.NestedMap(u.Object, "spec", "openAPIV3Schema", "properties", "spec", "properties", "size"); widened {
		t.Error("the type widened although objects of it run in east")
	}
	// If the type is served again, the import is available again.
	s.serve("east", colour)
	s.wantCondition(imports, importIn("east"), "Available", "True", "Served", "")
}

func TestImportsOfUnreadableAndDeletedClusters(t *testing.T) {
	s := newFixture(t, []string{"east", "west"})
	imports := v1alpha1.APIResourceImportResource
	s.serve("east", colour+", "+size)
	s.wantCondition(imports, importIn("east"), "Available", "True", "Served", "")
	s.serve("west", colour)
	s.wantCondition(imports, importIn("west"), "Compatible", "True", "SchemaAccepted", "")

	s.change(v1alpha1.ClusterResource, "west", func(u *unstructured.Unstructured) { u.Object["status"] = newCluster("west", false).Object["status"] })
	s.wantCondition(imports, importIn("west"), "Available", "True", "LastKnown", "2026-01-01T00:00:00Z")
	s.change(v1alpha1.ClusterResource, "west", func(u *unstructured.Unstructured) { u.Object["status"] = newCluster("west", true).Object["status"] })
	s.wantCondition(imports, importIn("west"), "Available", "True", "Served", "")

	// A member that returns an error may still serve its types.
	s.members["west"].documents.setFailing(true)
	s.serve("west", colour)
	s.wantCondition(imports, importIn("west"), "Available", "True", "LastKnown", "status.types.message")
	s.await("the Cluster's status has the cause", func() error {
		u, err := s.control.Resource(v1alpha1.ClusterResource).Get(t.Context(), "west", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if message, _, _ := unstructured.NestedString(u.Object, "status", "types", "message"); message == "" {
			return errors.New("there is no message")
		}
		return nil
	})
	s.members["west"].documents.setFailing(false)

	if err := s.control.Resource(v1alpha1.ClusterResource).Delete(t.Context(), "west", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.wantAbsent(imports, importIn("west"))
	s.await("the remaining imports are negotiated again", func() error {
		u, err := s.control.Resource(v1alpha1.NegotiatedAPIResourceResource).Get(t.Context(), negotiatedWidgets, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, found, _ := unstructured.NestedMap(u.Object, "spec", "openAPIV3Schema", "properties", "spec", "properties", "size"); !found {
			return errors.New("there is no size")
		}
		return nil
	})
}

func TestPublishing(t *testing.T) {
	s := newFixture(t, []string{"east"})
	negotiated := v1alpha1.NegotiatedAPIResourceResource
	s.serve("east", colour)
	s.wantCondition(negotiated, negotiatedWidgets, "Published", "False", "NotRequested", "")
	s.change(negotiated, negotiatedWidgets, publishing(true))
	s.wantCondition(negotiated, negotiatedWidgets, "Published", "True", "Published", "")
	crd, err := s.control.Resource(crdResource).Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	if err != nil || !isOurs(crd) {
		t.Fatalf("CRD %v, %v", crd, err)
	}

	// An edit of the CRD is reverted and does not affect the compatibility of clusters.
	s.await("the CRD has the digests of the applied types", func() error {
		u, err := s.control.Resource(crdResource).Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if u.GetAnnotations()[v1alpha1.PublishedTypesAnnotation] == "" {
			return errors.New("no digest")
		}
		return nil
	})
	s.change(crdResource, "widgets.example.com", func(u *unstructured.Unstructured) {
		edited := s.read(widgetCRD(colour + ", " + speed))
		u.Object["spec"] = edited.Object["spec"]
	})
	s.await("the edit is undone", func() error {
		u, err := s.control.Resource(crdResource).Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		crd, err := asCRD(u.DeepCopy())
		if err != nil {
			return err
		}
		if _, there := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["speed"]; there {
			return errors.New("speed is still there")
		}
		return nil
	})
	s.wantCondition(v1alpha1.APIResourceImportResource, importIn("east"), "Compatible", "True", "SchemaAccepted", "")

	// The CRD stays while objects exist or may exist.
	s.answerLists("widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("not now")
	})
	s.change(negotiated, negotiatedWidgets, publishing(false))
	s.wantListed()
	one := s.read(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: one, namespace: default}}`)
	s.answerLists("widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "WidgetList"}, Items: []unstructured.Unstructured{*one}}, nil
	})
	s.wantCondition(negotiated, negotiatedWidgets, "Published", "True", "ObjectsExist", "kubectl get widgets.example.com -A")

	// Removing the label takes over the CRD.
	s.change(crdResource, "widgets.example.com", func(u *unstructured.Unstructured) { u.SetLabels(nil) })
	s.wantCondition(negotiated, negotiatedWidgets, "Enforced", "True", "Enforced", "widgets.example.com")
	s.wantCondition(negotiated, negotiatedWidgets, "Published", "True", "Enforced", "")
	s.serve("east", colour+", "+size)
	s.serve("east", painted)
	s.wantCondition(v1alpha1.APIResourceImportResource, importIn("east"), "Compatible", "False", "SchemaIncompatible", ".spec.colour")
	if crd, err := s.control.Resource(crdResource).Get(t.Context(), "widgets.example.com", metav1.GetOptions{}); err != nil || isOurs(crd) {
		t.Errorf("CRD %v, %v", crd, err)
	}
}

// wantListed waits until the objects were listed, and checks that the CRD still exists.
func (s *fixture) wantListed() {
	s.t.Helper()
	s.await("the objects are listed", func() error {
		for _, a := range s.control.Actions() {
			if a.Matches("list", "widgets") {
				return nil
			}
		}
		return errors.New("no list request")
	})
	if _, err := s.control.Resource(crdResource).Get(s.t.Context(), "widgets.example.com", metav1.GetOptions{}); err != nil {
		s.t.Errorf("the CRD: %v", err)
	}
}
