package apiserver

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// refuseItems is the name of the admission plugin TopLevelItems.
const refuseItems = "AtollTopLevelItems"

// TopLevelItems is the admission plugin that rejects custom resources with a list named items at the top. Upstream's handlers take such an object for a list of
// objects: they store it and answer with an internal error. Objects that have the list already may be changed, so that they can be deleted.
type TopLevelItems struct{}

var _ admission.ValidationInterface = TopLevelItems{}

func withTopLevelItems(o *kubeoptions.AdmissionOptions) error {
	return addRequired(o, refuseItems, lifecycle.PluginName, TopLevelItems{}, "requests for the objects that it rejects would fail")
}

// Handles implements admission.Interface.
func (TopLevelItems) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Validate implements admission.ValidationInterface.
func (TopLevelItems) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || !hasItems(a.GetObject()) || hasItems(a.GetOldObject()) {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{field.Forbidden(field.NewPath("items"),
		"the API takes an object with a list of this name at the top for a list of objects: give the field another name, or move it into spec")})
}

func hasItems(object runtime.Object) bool {
	u, ok := object.(*unstructured.Unstructured)
	return ok && u != nil && u.IsList()
}
