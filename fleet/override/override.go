// Package override applies a policy's overrides to an object for one cluster: images, variables, a
// JSON patch.
//
// It is pure. The identity of an object, and the fleet's own marks, cannot be overridden: a patch
// that tries is an error, and never reaches a cluster.
package override

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Apply applies overrides in order to an object that is prepared for a cluster. The given object is
// not changed.
func Apply(obj *unstructured.Unstructured, overrides []v1alpha1.Override) (*unstructured.Unstructured, error) {
	if len(overrides) == 0 {
		return obj, nil
	}
	out := obj.DeepCopy()
	for i := range overrides {
		o := &overrides[i]
		for _, pod := range podSpecs(out.Object) {
			replaceImages(pod, o.Images)
			setVariables(pod, o.Env)
		}
		var err error
		if out, err = patch(out, o.JSONPatch); err != nil {
			return nil, fmt.Errorf("override %d of %s %s: %w", i+1, obj.GetKind(), named(obj), err)
		}
		for _, t := range o.Text {
			if err := patchText(out, t); err != nil {
				return nil, fmt.Errorf("override %d of %s %s: text %s: %w", i+1, obj.GetKind(), named(obj), t.Path, err)
			}
		}
	}
	if err := checkIdentity(obj, out); err != nil {
		return nil, err
	}
	return out, nil
}

func named(obj *unstructured.Unstructured) string {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}.String()
}

func patch(obj *unstructured.Unstructured, operations []v1alpha1.PatchOperation) (*unstructured.Unstructured, error) {
	if len(operations) == 0 {
		return obj, nil
	}
	ops := make([]operation, 0, len(operations))
	for _, o := range operations {
		ops = append(ops, operation(o))
	}
	before, err := json.Marshal(obj.Object)
	if err != nil {
		return nil, err
	}
	after, err := apply(before, ops)
	if err != nil {
		return nil, fmt.Errorf("jsonPatch does not match the object: %w; a path with /- appends to a list, and ~1 stands for / in a key", err)
	}
	out := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(after, &out.Object); err != nil {
		return nil, fmt.Errorf("the result of jsonPatch is not an object: %w", err)
	}
	return out, nil
}

type operation struct {
	Op    string                `json:"op"`
	Path  string                `json:"path"`
	From  string                `json:"from,omitempty"`
	Value *runtime.RawExtension `json:"value,omitempty"`
}

// apply applies operations to JSON. A missing value is null.
func apply(document []byte, ops []operation) ([]byte, error) {
	for i := range ops {
		if ops[i].Value == nil && slices.Contains([]string{"add", "replace", "test"}, ops[i].Op) {
			ops[i].Value = &runtime.RawExtension{Raw: []byte("null")}
		}
	}
	text, err := json.Marshal(ops)
	if err != nil {
		return nil, err
	}
	decoded, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, err
	}
	return decoded.Apply(document)
}

// checkIdentity checks that the result is still the same object, with the fleet's marks.
func checkIdentity(was, is *unstructured.Unstructured) error {
	var changed []string
	if was.GetAPIVersion() != is.GetAPIVersion() || was.GetKind() != is.GetKind() {
		changed = append(changed, "its kind")
	}
	if was.GetNamespace() != is.GetNamespace() || was.GetName() != is.GetName() {
		changed = append(changed, "its name")
	}
	meta := func(obj *unstructured.Unstructured) map[string]any {
		m, _, _ := unstructured.NestedMap(obj.Object, "metadata")
		delete(m, "labels")
		delete(m, "annotations")
		return m
	}
	if before, after := meta(was), meta(is); len(changed) == 0 && !jsonEqual(before, after) {
		changed = append(changed, "metadata other than labels and annotations")
	}
	if !maps.Equal(ours(was.GetLabels()), ours(is.GetLabels())) || !maps.Equal(ours(was.GetAnnotations()), ours(is.GetAnnotations())) {
		changed = append(changed, "the fleet's own labels or annotations ("+v1alpha1.Group+"/…)")
	}
	if len(changed) > 0 {
		return fmt.Errorf("overrides of %s %s change %s: remove that from the policy", was.GetKind(), named(was), strings.Join(changed, " and "))
	}
	return nil
}

func jsonEqual(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

func ours(marks map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range marks {
		if strings.HasPrefix(key, v1alpha1.Group+"/") {
			out[key] = value
		}
	}
	return out
}
