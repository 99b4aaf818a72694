package interpret

import (
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// These functions read fields of objects that API servers have validated. A field that is missing,
// or has another type, is empty.

// text returns a string field.
func text(obj map[string]any, path ...string) string {
	s, _, _ := unstructured.NestedString(obj, path...)
	return s
}

// number returns an integer field.
func number(obj map[string]any, path ...string) (int64, bool) {
	n, found, err := unstructured.NestedInt64(obj, path...)
	return n, found && err == nil
}

// generation returns the observedGeneration of a status. Some types have it as a string.
func generation(status map[string]any) (int64, bool) {
	if s, is := status["observedGeneration"].(string); is {
		n, err := strconv.ParseInt(s, 10, 64)
		return n, err == nil
	}
	return number(status, "observedGeneration")
}

// items returns the objects in a list, without copying them.
func items(obj map[string]any, path ...string) []map[string]any {
	field, _, _ := unstructured.NestedFieldNoCopy(obj, path...)
	list, _ := field.([]any)
	out := make([]map[string]any, 0, len(list))
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// object returns the object at a path, without copying it, or nil if there is no object.
func object(obj map[string]any, path ...string) map[string]any {
	field, _, _ := unstructured.NestedFieldNoCopy(obj, path...)
	m, _ := field.(map[string]any)
	return m
}

// texts returns a list of strings.
func texts(obj map[string]any, path ...string) []string {
	list, _, _ := unstructured.NestedStringSlice(obj, path...)
	return list
}

func setNested(obj map[string]any, value any, path ...string) {
	for _, field := range path[:len(path)-1] {
		next, ok := obj[field].(map[string]any)
		if !ok {
			next = map[string]any{}
			obj[field] = next
		}
		obj = next
	}
	obj[path[len(path)-1]] = value
}

// pruneNulls removes nulls, because server-side apply treats them as owned, empty fields. Typed
// clients write them (creationTimestamp: null).
func pruneNulls(m map[string]any) {
	for key, value := range m {
		switch v := value.(type) {
		case nil:
			delete(m, key)
		case map[string]any:
			pruneNulls(v)
		case []any:
			for _, item := range v {
				if im, ok := item.(map[string]any); ok {
					pruneNulls(im)
				}
			}
		}
	}
}
