package cli

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestExplainWithoutProgram: a custom resource on which nothing works that is placed is explained, and is
// no error.
func TestExplainWithoutProgram(t *testing.T) {
	control := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace")...)...)
	client, err := dynamic.NewForConfig(control.Config())
	if err != nil {
		t.Fatal(err)
	}
	s, err := scheduler.Load(t.Context(), client, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "one", "namespace": "shop"}}}
	e, err := explainObject(s, obj.GroupVersionKind(), obj)
	if err != nil || !e.Scheduled || e.Reason != "StaysHome" || !strings.Contains(e.Message, "may write it") {
		t.Errorf("%+v, %v", e, err)
	}
}
