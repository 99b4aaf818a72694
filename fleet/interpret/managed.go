package interpret

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ownedByOthers tells whether a manager other than the given one owns a field of
// the object, by its managed fields. Where they cannot be read nobody is known to.
func ownedByOthers(obj *unstructured.Unstructured, manager string, path []string) bool {
	for _, entry := range obj.GetManagedFields() {
		if entry.Manager == manager || entry.FieldsV1 == nil {
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal(entry.FieldsV1.Raw, &fields); err != nil {
			continue
		}
		if ownsField(fields, path) {
			return true
		}
	}
	return false
}

// ownsField looks a path of plain fields up in the notation of managed fields,
// where field "spec" is the key "f:spec".
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
