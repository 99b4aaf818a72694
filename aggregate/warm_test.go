package aggregate

import (
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func markedCRD(name, established string, versions ...any) *unstructured.Unstructured {
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"spec":   map[string]any{"versions": versions},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": established}}},
	}}
	crd.SetName(name)
	crd.SetLabels(map[string]string{v1alpha1.SharedLabel: "true"})
	return crd
}

func version(name string, served bool) map[string]any {
	return map[string]any{"name": name, "served": served}
}

// Every shared kind is probed: before members connect if it was shared before, as soon
// as it is served if it is created later, and again when its CRD changes.
func TestSharedKindsAreKeptWarm(t *testing.T) {
	things := schema.GroupVersionResource{Group: "a.example", Version: "v2", Resource: "things"}
	others := schema.GroupVersionResource{Group: "a.example", Version: "v1", Resource: "others"}
	api := newWorkspace(t, fakeapi.Custom("Thing", things), fakeapi.Custom("Other", others))
	api.Put(markedCRD("things.a.example", "True", version("v1", false), version("v2", true)))
	asked := make(chan string, 100)
	var unknown atomic.Bool // its server discovers it a little later
	unknown.Store(true)
	api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		switch {
		case r.Resource.Group != "a.example":
		case r.Resource == others && unknown.Swap(false):
			status := apierrors.NewNotFound(r.Resource.GroupResource(), "").Status()
			return &status
		default:
			asked <- r.Resource.Version + " " + r.Resource.Resource
		}
		return nil
	})
	f := newDirectoryFixture(t, api)
	if err := f.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-asked:
		if got != "v2 things" {
			t.Fatalf("unexpected probe of %s", got)
		}
	default:
		t.Fatal("warm before the shared kinds were probed")
	}

	next := func(want string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			select {
			case got := <-asked:
				if got != want {
					t.Fatalf("probed %s, want %s", got, want)
				}
				return
			case <-deadline:
				t.Fatalf("%s was not probed", want)
			case <-time.After(time.Millisecond):
				f.clock.Step(probeRetryInterval)
			}
		}
	}
	api.Put(markedCRD("others.a.example", "False", version("v1", true)))
	api.Put(markedCRD("others.a.example", "True", version("v1", true)))
	next("v1 others")
	api.Put(markedCRD("things.a.example", "True", version("v2", true)))
	next("v2 things")
	api.Delete(crdResource, "", "others.a.example")
	api.Put(markedCRD("others.a.example", "True", version("v1", true)))
	next("v1 others")
}
