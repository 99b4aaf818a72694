package imports

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
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
	s.control.Change(imports, "", importIn("west"), func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, "Gadget", "spec", "kind")
		_ = unstructured.SetNestedField(u.Object, "UpdateNever", "spec", "schemaUpdateStrategy")
	})
	fakeapi.Eventually(t, "the edit is undone", func() error {
		u, err := s.get(imports, importIn("west"))
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
	s.control.Delete(imports, "", importIn("west"))
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
	u, err := s.get(v1alpha1.NegotiatedAPIResourceResource, negotiatedWidgets)
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

	s.control.Change(v1alpha1.ClusterResource, "", "west", func(u *unstructured.Unstructured) { u.Object["status"] = newCluster("west", false).Object["status"] })
	s.wantCondition(imports, importIn("west"), "Available", "True", "LastKnown", "2026-01-01T00:00:00Z")
	s.control.Change(v1alpha1.ClusterResource, "", "west", func(u *unstructured.Unstructured) { u.Object["status"] = newCluster("west", true).Object["status"] })
	s.wantCondition(imports, importIn("west"), "Available", "True", "Served", "")

	// A member that returns an error may still serve its types.
	s.members["west"].documents.setFailing(true)
	s.serve("west", colour)
	s.wantCondition(imports, importIn("west"), "Available", "True", "LastKnown", "status.types.message")
	fakeapi.Eventually(t, "the Cluster's status has the cause", func() error {
		u, err := s.get(v1alpha1.ClusterResource, "west")
		if err != nil {
			return err
		}
		if message, _, _ := unstructured.NestedString(u.Object, "status", "types", "message"); message == "" {
			return errors.New("there is no message")
		}
		return nil
	})
	s.members["west"].documents.setFailing(false)

	s.control.Delete(v1alpha1.ClusterResource, "", "west")
	s.wantAbsent(imports, importIn("west"))
	fakeapi.Eventually(t, "the remaining imports are negotiated again", func() error {
		u, err := s.get(v1alpha1.NegotiatedAPIResourceResource, negotiatedWidgets)
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
	s.control.Change(negotiated, "", negotiatedWidgets, publishing(true))
	s.wantCondition(negotiated, negotiatedWidgets, "Published", "True", "Published", "")
	crd, err := s.get(crdResource, "widgets.example.com")
	if err != nil || !isOurs(crd) {
		t.Fatalf("CRD %v, %v", crd, err)
	}

	// An edit of the CRD is reverted and does not affect the compatibility of clusters.
	fakeapi.Eventually(t, "the CRD has the digests of the applied types", func() error {
		u, err := s.get(crdResource, "widgets.example.com")
		if err != nil {
			return err
		}
		if u.GetAnnotations()[v1alpha1.PublishedTypesAnnotation] == "" {
			return errors.New("no digest")
		}
		return nil
	})
	s.control.Change(crdResource, "", "widgets.example.com", func(u *unstructured.Unstructured) {
		edited := s.read(widgetCRD(colour + ", " + speed))
		u.Object["spec"] = edited.Object["spec"]
	})
	fakeapi.Eventually(t, "the edit is undone", func() error {
		u, err := s.get(crdResource, "widgets.example.com")
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
	var lists atomic.Int32
	var listable atomic.Bool
	s.control.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb != "list" || r.Resource != widgets || listable.Load() {
			return nil
		}
		lists.Add(1)
		return &apierrors.NewServiceUnavailable("not now").ErrStatus
	})
	s.control.Change(negotiated, "", negotiatedWidgets, publishing(false))
	fakeapi.Until(t, "the objects are listed", func() bool { return lists.Load() > 0 })
	if _, err := s.get(crdResource, "widgets.example.com"); err != nil {
		t.Errorf("the CRD: %v", err)
	}
	s.control.Put(s.read(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: one, namespace: default}}`))
	listable.Store(true)
	s.wantCondition(negotiated, negotiatedWidgets, "Published", "True", "ObjectsExist", "kubectl get widgets.example.com -A")

	// Removing the label takes over the CRD.
	s.control.Change(crdResource, "", "widgets.example.com", func(u *unstructured.Unstructured) { u.SetLabels(nil) })
	s.wantCondition(negotiated, negotiatedWidgets, "Enforced", "True", "Enforced", "widgets.example.com")
	s.wantCondition(negotiated, negotiatedWidgets, "Published", "True", "Enforced", "")
	s.serve("east", colour+", "+size)
	s.serve("east", painted)
	s.wantCondition(v1alpha1.APIResourceImportResource, importIn("east"), "Compatible", "False", "SchemaIncompatible", ".spec.colour")
	if crd, err := s.get(crdResource, "widgets.example.com"); err != nil || isOurs(crd) {
		t.Errorf("CRD %v, %v", crd, err)
	}
}
