package interpret

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestAsWritten compares what authors wrote, as far as it can be known, of the members' objects in
// testdata/written with the golden files beside them.
func TestAsWritten(t *testing.T) {
	files, err := filepath.Glob("testdata/written/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		var got bytes.Buffer
		for _, live := range readWritten(t, file) {
			before := live.DeepCopy()
			out, err := yaml.Marshal(mustFind(t, live.GroupVersionKind().Group, live.GetKind()).AsWritten(live).Object)
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString("---\n" + string(out))
			if diff := cmp.Diff(before, live); diff != "" {
				t.Errorf("the member's object was changed:\n%s", diff)
			}
		}
		golden := strings.TrimSuffix(file, ".yaml") + ".golden"
		if *update {
			if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s (-want +got; run go test -update to write it):\n%s", golden, diff)
		}
	}
}

// TestTakenOverUnchanged: prepared for its cluster again, an object has only values that are there already.
// So its pods are not replaced when Atoll applies it.
func TestTakenOverUnchanged(t *testing.T) {
	files, err := filepath.Glob("testdata/written/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, live := range readWritten(t, file) {
			k := mustFind(t, live.GroupVersionKind().Group, live.GetKind())
			applied := k.Prepare(k.AsWritten(live), "east", nil)
			for field, value := range applied.Object {
				if field != "metadata" {
					wantWithin(t, live.GetKind()+" "+live.GetName()+": "+field, value, live.Object[field])
				}
			}
		}
	}
}

// wantWithin checks that all values of one object are in another one.
func wantWithin(t *testing.T, path string, part, whole any) {
	t.Helper()
	switch p := part.(type) {
	case map[string]any:
		w, _ := whole.(map[string]any)
		for field, value := range p {
			wantWithin(t, path+"."+field, value, w[field])
		}
	case []any:
		w, _ := whole.([]any)
		if len(w) != len(p) {
			t.Errorf("%s has %d items, not %d", path, len(p), len(w))
			return
		}
		for i := range p {
			wantWithin(t, path, p[i], w[i])
		}
	default:
		if part != whole {
			t.Errorf("%s is %v, not %v", path, part, whole)
		}
	}
}

func readWritten(t *testing.T, file string) (out []*unstructured.Unstructured) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(data), "\n---\n") {
		out = append(out, parse(t, document))
	}
	return out
}
