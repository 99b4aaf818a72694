package server

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
)

// plansByName reads a plan as it is now. The error is the API's.
type plansByName func(ctx context.Context, namespace, name string) (*v1alpha1.Plan, error)

// infraAdmission has plans, approvals and applies say who made them, and lets none approve or apply
// what is not the plan of that name.
func (s *Server) infraAdmission() []apiserver.AdmissionStep {
	plans := s.plansByName()
	return []apiserver.AdmissionStep{
		{Resource: v1alpha1.PlanResource.GroupResource(), Complete: signedAs("author")},
		{Resource: v1alpha1.ApprovalResource.GroupResource(), Complete: signedAs("approver"), Check: ofItsPlan(plans)},
		{Resource: v1alpha1.ApplyResource.GroupResource(), Complete: signedAs("author"), Check: ofItsPlan(plans)},
	}
}

// unownedKinds are left out of garbage collection: there is one state for each object of infrastructure, and it
// goes when that does.
func unownedKinds() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{v1alpha1.ResourceStateResource}
}

func (s *Server) plansByName() plansByName {
	client := s.selfClient()
	return func(ctx context.Context, namespace, name string) (*v1alpha1.Plan, error) {
		api, err := client()
		if err != nil {
			return nil, err
		}
		u, err := api.Resource(v1alpha1.PlanResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		plan := &v1alpha1.Plan{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, plan); err != nil {
			return nil, fmt.Errorf("read plan %q: %w", name, err)
		}
		return plan, nil
	}
}

// signedAs fills in who asks, in a field of the spec: when an object is made, whatever was given. Afterwards
// the field stays as it is, whoever changes the rest.
func signedAs(name string) func(*apiserver.AdmissionRequest) {
	return func(r *apiserver.AdmissionRequest) {
		signature, found := any(person(r)), true
		if r.Old != nil {
			// What is there was well formed, or is not there.
			signature, found, _ = unstructured.NestedFieldCopy(r.Old.Object, "spec", name)
		}
		switch spec := r.Object.Object["spec"].(type) {
		case map[string]any:
			if found {
				spec[name] = signature
			} else {
				delete(spec, name)
			}
		case nil:
			if found {
				r.Object.Object["spec"] = map[string]any{name: signature}
			}
		}
		// Anything else is no spec, which validation says.
	}
}

// person is who asks, as v1alpha1.Person has it. What else is known of them, such as
// scopes of a token, is theirs alone.
func person(r *apiserver.AdmissionRequest) map[string]any {
	out := map[string]any{"username": r.User.Name}
	if r.UserUID != "" {
		out["uid"] = r.UserUID
	}
	var groups []any
	seen := map[string]bool{}
	for _, group := range r.User.Groups {
		if !seen[group] { // a certificate may name one twice
			seen[group] = true
			groups = append(groups, group)
		}
	}
	if len(groups) > 0 {
		out["groups"] = groups
	}
	return out
}

// ofItsPlan refuses an Approval or an Apply that is made of anything else than what its plan is now.
func ofItsPlan(plans plansByName) func(context.Context, *apiserver.AdmissionRequest) error {
	return func(ctx context.Context, r *apiserver.AdmissionRequest) error {
		if r.Old != nil {
			return nil // plan and digest do not change
		}
		name, _, _ := unstructured.NestedString(r.Object.Object, "spec", "plan")
		digest, _, _ := unstructured.NestedString(r.Object.Object, "spec", "digest")
		plan, err := plans(ctx, r.Namespace, name)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if problem := judge(plan, r.Namespace, name, digest); problem != nil {
			return apierrors.NewInvalid(r.Object.GroupVersionKind().GroupKind(), r.Name, field.ErrorList{problem})
		}
		return nil
	}
}

// judge tells what is wrong with approving or applying a plan of a digest; plan is nil if there is none.
func judge(plan *v1alpha1.Plan, namespace, name, digest string) *field.Error {
	at := field.NewPath("spec", "plan")
	switch {
	case plan == nil:
		return field.Invalid(at, name, fmt.Sprintf("there is no such plan in namespace %q: `kubectl get plans -n %s` lists those that there are", namespace, namespace))
	case len(plan.Spec.Objects) > 0:
		return field.Invalid(at, name, "the plan is of objects that are not written (spec.objects), and only shows what would be: write them, and plan without")
	case plan.DeletionTimestamp != nil:
		return field.Invalid(at, name, "the plan is being deleted: make another")
	case plan.Status.Phase == v1alpha1.PlanApplied:
		return field.Invalid(at, name, "the plan has been applied: make another of what is left")
	case plan.Status.Phase == v1alpha1.PlanFailed:
		return field.Invalid(at, name, "it could not be planned: its status.problems say why; put that right and make another")
	case plan.Status.Phase != v1alpha1.PlanPlanned || plan.Status.Digest == "":
		return field.Invalid(at, name, "it is not planned yet: wait until its status.phase is Planned, and look at it")
	case plan.Status.Digest != digest:
		return field.Invalid(field.NewPath("spec", "digest"), digest, fmt.Sprintf("the plan's digest is %s: look at it again", plan.Status.Digest))
	}
	return nil
}
