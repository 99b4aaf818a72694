package tenancy

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// TestCompiledLimits: each limit has a default of its own.
func TestCompiledLimits(t *testing.T) {
	for _, c := range []struct {
		limits                   *v1alpha1.WorkspaceLimits
		definitions, expressions int64
	}{
		{nil, 200, 1000},
		{&v1alpha1.WorkspaceLimits{}, 200, 1000},
		{&v1alpha1.WorkspaceLimits{Definitions: ptr.To[int64](0)}, 0, 1000},
		{&v1alpha1.WorkspaceLimits{Expressions: ptr.To[int64](5000)}, 200, 5000},
	} {
		definitions, expressions := CompiledLimits(&v1alpha1.Workspace{Spec: v1alpha1.WorkspaceSpec{Limits: c.limits}})
		if definitions != c.definitions || expressions != c.expressions {
			t.Errorf("%+v: %d, %d", c.limits, definitions, expressions)
		}
	}
}

// TestAboveDefault: a value that is no number is above the default, until validation rejects it.
func TestAboveDefault(t *testing.T) {
	for _, c := range []struct {
		limits any
		want   []string
	}{
		{nil, nil},
		{"many", nil},
		{map[string]any{"definitions": int64(200), "expressions": int64(1000), "objects": int64(5000)}, nil},
		{map[string]any{"definitions": int64(201), "expressions": int64(1001)}, []string{"definitions", "expressions"}},
		{map[string]any{"expressions": 1e6}, []string{"expressions"}},
		{map[string]any{"definitions": nil}, nil},
		{map[string]any{"definitions": "all"}, []string{"definitions"}},
	} {
		w := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"limits": c.limits}}}
		if got := AboveDefault(w); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v", c.limits, got)
		}
	}
}
