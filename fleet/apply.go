package fleet

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// ApplyStatus writes the manager's fields of an object's status by server-side apply, and takes
// ownership of fields that others wrote. Controllers call it often, so field validation is off:
// otherwise the server would parse each patch a second time, as YAML. Unknown fields are dropped.
func ApplyStatus(ctx context.Context, api dynamic.ResourceInterface, obj *unstructured.Unstructured, manager string) error {
	data, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	force := true
	_, err = api.Patch(ctx, obj.GetName(), types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: manager, Force: &force, FieldValidation: metav1.FieldValidationIgnore}, "status")
	return err
}
