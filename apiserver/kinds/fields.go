package kinds

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// kindFields knows from a kind's OpenAPI schema which fields it has.
type kindFields struct{ schema *spec.Schema }

// preserve is the extension of schemas that allow fields which they do not list.
const preserve = "x-kubernetes-preserve-unknown-fields"

// prune removes the fields that the kind does not have from an object's content, and
// returns their paths. It does not touch the fields that every object has.
func (f kindFields) prune(content map[string]any) (removed []string) {
	for _, name := range sortedKeys(content) {
		if name == "apiVersion" || name == "kind" || name == "metadata" {
			continue
		}
		field, ok := f.schema.Properties[name]
		if !ok {
			delete(content, name)
			removed = append(removed, name)
			continue
		}
		removed = append(removed, pruneValue(content[name], &field, name)...)
	}
	return removed
}

func pruneValue(value any, s *spec.Schema, path string) (removed []string) {
	if all, _ := s.Extensions.GetBool(preserve); all {
		return nil
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range sortedKeys(value) {
			at := path + "." + name
			field, named := s.Properties[name]
			switch rest := s.AdditionalProperties; {
			case named:
				removed = append(removed, pruneValue(value[name], &field, at)...)
			case rest != nil && rest.Schema != nil:
				removed = append(removed, pruneValue(value[name], rest.Schema, at)...)
			case rest != nil && rest.Allows || len(s.Properties) == 0:
				// Any field may be here: the schema lists none.
			default:
				delete(value, name)
				removed = append(removed, at)
			}
		}
	case []any:
		if s.Items == nil || s.Items.Schema == nil {
			return nil
		}
		for i := range value {
			removed = append(removed, pruneValue(value[i], s.Items.Schema, fmt.Sprintf("%s[%d]", path, i))...)
		}
	}
	return removed
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// kindTypes defines for server-side apply how objects of a kind are merged.
type kindTypes struct {
	kind   typed.ParseableType
	fields kindFields
}

// ObjectToTyped implements managedfields.TypeConverter.
func (t kindTypes) ObjectToTyped(object runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("cannot apply %T", object)
	}
	value, err := t.kind.FromUnstructured(u.Object, options...)
	if err != nil && u.GetUID() != "" {
		// It was stored when the kind had other fields. Those are not merged.
		u = u.DeepCopy()
		t.fields.prune(u.Object)
		value, err = t.kind.FromUnstructured(u.Object, options...)
	}
	return value, err
}

// TypedToObject implements managedfields.TypeConverter.
func (t kindTypes) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	content, ok := value.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%T is not an object", value.AsValue().Unstructured())
	}
	return &unstructured.Unstructured{Object: content}, nil
}
