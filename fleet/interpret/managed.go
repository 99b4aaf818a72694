package interpret

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TrimManagedFields removes the managed fields of a member's object, except the owners of its
// replica count. Handing over the count depends on them. The rest is most of a small object's size
// in a cache.
func (k KindInfo) TrimManagedFields(obj *unstructured.Unstructured) {
	entries := obj.GetManagedFields()
	obj.SetManagedFields(nil)
	path := k.ReplicasPath()
	if len(path) == 0 || k.replicas != nil && k.scale == nil {
		return
	}
	var kept []metav1.ManagedFieldsEntry
	for _, entry := range entries {
		if !owns(entry, path) {
			continue
		}
		one := metav1.ManagedFieldsEntry{Manager: entry.Manager, Operation: entry.Operation, FieldsType: entry.FieldsType, FieldsV1: fieldsFor(path)}
		if !slices.ContainsFunc(kept, func(k metav1.ManagedFieldsEntry) bool { return k.Manager == one.Manager }) {
			kept = append(kept, one)
		}
	}
	if kept != nil {
		obj.SetManagedFields(kept)
	}
}

// fieldsFor returns the managed fields notation of one field.
func fieldsFor(path []string) *metav1.FieldsV1 {
	text := "{}"
	for _, name := range slices.Backward(path) {
		key, _ := json.Marshal("f:" + name)
		text = "{" + string(key) + ":" + text + "}"
	}
	return metav1.NewFieldsV1(text)
}

// ownedByOthers reports whether another manager owns a field of the object, by its managed fields.
// If they cannot be decoded, it returns false.
func ownedByOthers(obj *unstructured.Unstructured, manager string, path []string) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager != manager && owns(entry, path)
	})
}

func owns(entry metav1.ManagedFieldsEntry, path []string) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	var fields map[string]any
	err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields)
	return err == nil && ownsField(fields, path)
}

// ownsField looks up a path of plain fields in the managed fields notation, where field "spec" has
// the key "f:spec".
func ownsField(fields map[string]any, path []string) bool {
	for _, name := range path {
		next, ok := fields["f:"+name].(map[string]any)
		if !ok {
			return false
		}
		fields = next
	}
	return true
}
