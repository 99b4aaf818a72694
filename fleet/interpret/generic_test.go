package interpret

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestGenerationsOfCustomKinds: the generation of a status keeps the type that the kind's schema has for it.
func TestGenerationsOfCustomKinds(t *testing.T) {
	k := Generic(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}, "things", false, nil)
	obj := parse(t, `{apiVersion: example.com/v1, kind: Thing, metadata: {name: a, generation: 3}}`)
	for name, tt := range map[string]struct {
		in   any
		want any
	}{
		"a number":          {int64(7), int64(3)},
		"a string":          {"7", "3"},
		"a string of words": {"6f4d", "6f4d"},
		"none":              {nil, nil},
	} {
		status := map[string]any{"phase": "Healthy"}
		if tt.in != nil {
			status["observedGeneration"] = tt.in
		}
		out, _, err := k.Aggregate(obj, []MemberStatus{{Cluster: "east", Generation: 3, Current: true, Status: status}})
		if err != nil {
			t.Fatal(err)
		}
		if got := out["observedGeneration"]; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %#v", name, got)
		}
	}
	for status, want := range map[string]int64{`{observedGeneration: 4}`: 4, `{observedGeneration: "4"}`: 4} {
		obj.Object["status"] = parse(t, status).Object
		if got, found := k.ObservedGeneration(obj); !found || got != want {
			t.Errorf("%s: %d", status, got)
		}
	}
}
