package controllers

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/test/fakeapi"
)

const widgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true}
  - {name: v0, served: false, storage: false}
`

// TestInstallCRDs: InstallCRDs returns when the served versions can be listed, and can be repeated.
func TestInstallCRDs(t *testing.T) {
	crds := fakeapi.Kind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition", Plural: "customresourcedefinitions", ClusterScoped: true}
	widgets := fakeapi.Kind{Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets"}
	api := fakeapi.New(t, crds, widgets)
	var lists atomic.Int32
	api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Resource == widgets.GVR() && lists.Add(1) < 3 {
			return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
		}
		return nil
	})
	client, err := dynamic.NewForConfig(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := InstallCRDs(t.Context(), client, "me", [][]byte{[]byte(widgetCRD)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := lists.Load(); n != 4 {
		t.Errorf("%d lists, want 3 until the type is served, and 1 when it is", n)
	}
	crd := api.Get(crds.GVR(), "", "widgets.example.com")
	if crd == nil || len(crd.GetManagedFields()) != 1 || crd.GetManagedFields()[0].Manager != "me" {
		t.Errorf("installed %v", crd)
	}
}

// TestWaitServedForbidden: missing permission to list the type ends the wait at once.
func TestWaitServedForbidden(t *testing.T) {
	widgets := fakeapi.Kind{Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets"}
	api := fakeapi.New(t, widgets)
	api.OnRequest(func(fakeapi.Request) *metav1.Status {
		return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "widgets are forbidden"}
	})
	client, err := dynamic.NewForConfig(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	err = WaitServed(t.Context(), client, widgets.GVR())
	if err == nil || !strings.Contains(err.Error(), "widgets are forbidden") {
		t.Errorf("%v", err)
	}
}
