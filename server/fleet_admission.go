package server

import (
	"context"
	"maps"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/fleet/scaling"
)

// fleetAdmission records the users whose rights schedules have, and rejects schedules without times.
func fleetAdmission() []apiserver.AdmissionStep {
	return []apiserver.AdmissionStep{{Resource: v1alpha1.ScaleScheduleResource.GroupResource(), Complete: recordAuthor, Check: validSchedule}}
}

// recordAuthor sets spec.author to the requesting user if the request changes another field of the
// spec, and otherwise to the user of the stored object.
func recordAuthor(r *apiserver.AdmissionRequest) {
	spec, ok := r.Object.Object["spec"].(map[string]any)
	if !ok {
		return // validation reports it
	}
	author, found := any(person(r)), true
	if r.Old != nil {
		if was, _ := r.Old.Object["spec"].(map[string]any); sameBut("author", was, spec) {
			author, found, _ = unstructured.NestedFieldCopy(r.Old.Object, "spec", "author")
		}
	}
	if found {
		spec["author"] = author
	} else {
		delete(spec, "author")
	}
}

// sameBut reports whether two objects differ at most in one field.
func sameBut(field string, a, b map[string]any) bool {
	a, b = maps.Clone(a), maps.Clone(b)
	delete(a, field)
	delete(b, field)
	return reflect.DeepEqual(a, b)
}

// validSchedule rejects a ScaleSchedule whose times cannot be computed. The CRD validates the rest.
func validSchedule(_ context.Context, r *apiserver.AdmissionRequest) error {
	schedule := &v1alpha1.ScaleSchedule{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, schedule); err != nil {
		return nil // validation reports it
	}
	if r.Old != nil && r.Object.GetDeletionTimestamp() != nil {
		return nil // its finalizers can be removed
	}
	if _, errs := scaling.Compile(&schedule.Spec); len(errs) > 0 {
		return apierrors.NewInvalid(r.Object.GroupVersionKind().GroupKind(), r.Name, errs)
	}
	return nil
}
