package server

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
)

// mastersGroup has administrators, and the control plane itself: the controllers that delete old history, the
// content of a deleted namespace, and objects whose owner is gone.
const mastersGroup = "system:masters"

// begunApplies returns whether an Apply of a plan has begun.
type begunApplies func(ctx context.Context, namespace, plan string) (bool, error)

func appliesOf(client apiClient) begunApplies {
	return func(ctx context.Context, namespace, plan string) (bool, error) {
		api, err := client(ctx)
		if err != nil {
			return false, err
		}
		list, err := api.Resource(v1alpha1.ApplyResource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(list.Items, func(apply unstructured.Unstructured) bool {
			of, _, _ := unstructured.NestedString(apply.Object, "spec", "plan")
			return of == plan && hasBegun(&apply)
		}), nil
	}
}

func hasBegun(apply *unstructured.Unstructured) bool {
	start, _, _ := unstructured.NestedString(apply.Object, "status", "startTime")
	return start != ""
}

// keepsCarriedOutPlans rejects the deletion of a plan that an Apply has begun to carry out. The plan and the
// Apply are the only record of who changed what, and who approved it.
func keepsCarriedOutPlans(begun begunApplies) func(context.Context, *apiserver.AdmissionRequest) error {
	return func(ctx context.Context, r *apiserver.AdmissionRequest) error {
		if slices.Contains(r.User.Groups, mastersGroup) {
			return nil
		}
		phase, _, _ := unstructured.NestedString(r.Old.Object, "status", "phase")
		if phase != string(v1alpha1.PlanApplied) {
			used, err := begun(ctx, r.Namespace, r.Name)
			if err != nil {
				return fmt.Errorf("find the applies of plan %q: %w", r.Name, err)
			}
			if !used {
				return nil
			}
		}
		return apierrors.NewForbidden(v1alpha1.PlanResource.GroupResource(), r.Name, fmt.Errorf("the plan was carried out, and is kept as the record of that: the server deletes it "+
			"after the last 100 applies of its namespace, or after its TTL, but not within 7 days; to delete it now, ask an administrator (group %s)", mastersGroup))
	}
}

// keepsBegunApplies rejects the deletion of an Apply that has begun.
func keepsBegunApplies(_ context.Context, r *apiserver.AdmissionRequest) error {
	if slices.Contains(r.User.Groups, mastersGroup) || !hasBegun(r.Old) {
		return nil
	}
	if _, ended, _ := unstructured.NestedString(r.Old.Object, "status", "completionTime"); !ended {
		return apierrors.NewForbidden(v1alpha1.ApplyResource.GroupResource(), r.Name, fmt.Errorf("the apply has begun: to stop it, run `atoll cancel %s -n %s`", r.Name, r.Namespace))
	}
	return apierrors.NewForbidden(v1alpha1.ApplyResource.GroupResource(), r.Name, fmt.Errorf("the apply was carried out, and is kept as the record of that: the server deletes it "+
		"after the last 100 applies of its namespace; to delete it now, ask an administrator (group %s)", mastersGroup))
}
