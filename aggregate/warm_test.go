package aggregate

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func markedCRD(name, uid string, generation int64, established string, versions ...any) *unstructured.Unstructured {
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"spec":   map[string]any{"versions": versions},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": established}}},
	}}
	crd.SetName(name)
	crd.SetUID(types.UID(uid))
	crd.SetGeneration(generation)
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
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.SharedAPIResource: "SharedAPIList", crdResource: "CustomResourceDefinitionList",
		things: "ThingList", others: "OtherList",
	}, markedCRD("things.a.example", "1", 1, "True", version("v1", false), version("v2", true)))
	asked := make(chan string, 100)
	unknown := 1
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		gvr := action.GetResource()
		if gvr.Group != "a.example" {
			return false, nil, nil
		}
		if gvr == others && unknown > 0 { // its server discovers it a little later
			unknown--
			return true, nil, apierrors.NewNotFound(gvr.GroupResource(), "")
		}
		asked <- gvr.Version + " " + gvr.Resource
		return false, nil, nil
	})
	clk := testingclock.NewFakeClock(start)
	f := newDirectoryFixtureWithClient(t, client, clk)
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
				clk.Step(probeRetryInterval)
			}
		}
	}
	f.put(crdResource, markedCRD("others.a.example", "2", 1, "False", version("v1", true)))
	f.put(crdResource, markedCRD("others.a.example", "2", 1, "True", version("v1", true)))
	next("v1 others")
	f.put(crdResource, markedCRD("things.a.example", "1", 2, "True", version("v2", true)))
	next("v2 things")
	f.put(crdResource, markedCRD("others.a.example", "3", 1, "True", version("v1", true)))
	next("v1 others")
}
