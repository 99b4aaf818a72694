package fleet

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// TestOnlyStatusDiffers: the result for metadata equals that for the object made from it. For a
// full object, the other fields count too.
func TestOnlyStatusDiffers(t *testing.T) {
	k, _ := interpret.Find(schema.GroupKind{Kind: "ConfigMap"})
	now := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	metadataWith := func(change func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
		m := &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings", UID: "u1", ResourceVersion: "1", CreationTimestamp: now}}
		change(m)
		if _, err := slimMetadata(k)(m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	objectOf := func(m *metav1.PartialObjectMetadata) *unstructured.Unstructured {
		u, ok := Unpack(m)
		if !ok || u.GetKind() != "ConfigMap" || u.GetAPIVersion() != "v1" || u.GetName() != "settings" || !u.GetCreationTimestamp().Time.Equal(now.Time) {
			t.Fatalf("the object of the metadata is %v", u)
		}
		return u
	}
	pack := func(u *unstructured.Unstructured) metav1.Object {
		held, err := Pack(trimManagedFields)(u)
		p, ok := held.(*packed)
		if err != nil || !ok {
			t.Fatalf("not packed: %v, %v", held, err)
		}
		return p
	}
	was := metadataWith(func(*metav1.PartialObjectMetadata) {})
	for name, tt := range map[string]struct {
		change func(*metav1.PartialObjectMetadata)
		same   bool
	}{
		"version": {func(m *metav1.PartialObjectMetadata) { m.ResourceVersion = "2" }, true},
		"managed fields": {func(m *metav1.PartialObjectMetadata) {
			m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		}, true},
		"empty labels": {func(m *metav1.PartialObjectMetadata) { m.Labels = map[string]string{} }, true},
		"labels":       {func(m *metav1.PartialObjectMetadata) { m.Labels = map[string]string{"a": "b"} }, false},
		"annotations":  {func(m *metav1.PartialObjectMetadata) { m.Annotations = map[string]string{"a": "b"} }, false},
		"deletion":     {func(m *metav1.PartialObjectMetadata) { m.DeletionTimestamp = &now }, false},
		"owners":       {func(m *metav1.PartialObjectMetadata) { m.OwnerReferences = []metav1.OwnerReference{{Name: "web"}} }, false},
	} {
		is := metadataWith(tt.change)
		if got := OnlyStatusDiffers(was, is); got != tt.same {
			t.Errorf("%s of metadata: %v", name, got)
		}
		if got := OnlyStatusDiffers(pack(objectOf(was)), pack(objectOf(is))); got != tt.same {
			t.Errorf("%s of an object: %v", name, got)
		}
	}

	whole := func(rest map[string]any) *unstructured.Unstructured {
		u := objectOf(was)
		for field, value := range rest {
			u.Object[field] = value
		}
		return u
	}
	one := map[string]any{"replicas": int64(1)}
	for name, tt := range map[string]struct {
		was, is map[string]any
		same    bool
	}{
		"a status":     {nil, map[string]any{"status": one}, true},
		"no status":    {map[string]any{"status": one}, nil, true},
		"a spec":       {nil, map[string]any{"spec": one}, false},
		"no spec":      {map[string]any{"spec": one}, nil, false},
		"another spec": {map[string]any{"spec": one}, map[string]any{"spec": map[string]any{"replicas": int64(2)}}, false},
	} {
		if got := OnlyStatusDiffers(pack(whole(tt.was)), pack(whole(tt.is))); got != tt.same {
			t.Errorf("%s: %v", name, got)
		}
	}
}
