package server

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
)

// planGetter reads the current version of a plan. It returns the API's error.
type planGetter func(ctx context.Context, namespace, name string) (*v1alpha1.Plan, error)

// apiClient returns a client of the API that a request is to, with all permissions.
type apiClient func(context.Context) (dynamic.Interface, error)

// infraAdmission records the user in plans, approvals and applies. It rejects approvals
// and applies that do not match the named plan.
func infraAdmission(client apiClient) []apiserver.AdmissionStep {
	plans := newPlanGetter(client)
	return []apiserver.AdmissionStep{
		{Resource: v1alpha1.PlanResource.GroupResource(), Complete: recordUser("author"), CheckDelete: keepsCarriedOutPlans(appliesOf(client))},
		{Resource: v1alpha1.ApprovalResource.GroupResource(), Complete: recordUser("approver"), Check: matchesPlan(plans)},
		{Resource: v1alpha1.ApplyResource.GroupResource(), Complete: recordUser("author"), Check: matchesPlan(plans), CheckDelete: keepsBegunApplies},
		{GroupSuffix: "." + v1alpha1.ProvidersDomain, Complete: recordAuthors},
	}
}

// maxNamedResources is how many resources an error names.
const maxNamedResources = 3

// namespacesWithResources keeps a namespace whose ResourceStates record resources. The controller that
// empties a deleted namespace would delete the states at once. Then no plan could destroy the resources,
// and no record of them would be left.
func namespacesWithResources(client apiClient) func(context.Context, string) (string, error) {
	return func(ctx context.Context, namespace string) (string, error) {
		api, err := client(ctx)
		if err != nil {
			return "", err
		}
		names, err := recordedResources(ctx, api, namespace)
		if err != nil || len(names) == 0 {
			return "", err
		}
		return keptForResources(namespace, names), nil
	}
}

// recordedResources returns the first resources that ResourceStates of a namespace record, or of all namespaces if it is "".
func recordedResources(ctx context.Context, api dynamic.Interface, namespace string) (names []string, err error) {
	for next := ""; ; {
		page, err := api.Resource(v1alpha1.ResourceStateResource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 100, Continue: next})
		if apierrors.IsNotFound(err) {
			return nil, nil // the type is not installed, so it has no objects
		}
		if err != nil {
			return nil, fmt.Errorf("list the states of its resources: %w", err)
		}
		for i := range page.Items {
			state := &v1alpha1.ResourceState{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(page.Items[i].Object, state); err != nil {
				return nil, fmt.Errorf("read the state %s: %w", page.Items[i].GetName(), err)
			}
			if !state.Spec.HasResource() {
				continue
			}
			if len(names) == maxNamedResources {
				return append(names, "more"), nil
			}
			names = append(names, strings.ToLower(state.Spec.Object.Kind)+"/"+state.Spec.Object.Name)
		}
		if next = page.GetContinue(); next == "" {
			return names, nil
		}
	}
}

func keptForResources(namespace string, names []string) string {
	return fmt.Sprintf("it has resources that would go on to exist without a record (%s): run `atoll destroy -n %s` to destroy them. "+
		"To keep them instead, first annotate their objects with infra.atoll.dev/deletion-policy=Forget. Then delete the namespace",
		strings.Join(names, ", "), namespace)
}

func newPlanGetter(client apiClient) planGetter {
	return func(ctx context.Context, namespace, name string) (*v1alpha1.Plan, error) {
		api, err := client(ctx)
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

// recordUser sets a field of the spec to the requesting user when an object is created,
// whatever the request contains. Later the field never changes, whoever changes the
// rest.
func recordUser(name string) func(*apiserver.AdmissionRequest) {
	return func(r *apiserver.AdmissionRequest) {
		signature, found := any(person(r)), true
		if r.Old != nil {
			// The stored value was valid or absent.
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
		// Any other type is no valid spec, which validation reports.
	}
}

// person returns the requesting user as a v1alpha1.Person. The user's other attributes,
// such as scopes of a token, are left out because they are private.
func person(r *apiserver.AdmissionRequest) map[string]any {
	out := map[string]any{"username": r.User.Name}
	if r.UserUID != "" {
		out["uid"] = r.UserUID
	}
	var groups []any
	seen := map[string]bool{}
	for _, group := range r.User.Groups {
		if !seen[group] { // a certificate may name a group twice
			seen[group] = true
			groups = append(groups, group)
		}
	}
	if len(groups) > 0 {
		out["groups"] = groups
	}
	return out
}

// matchesPlan rejects an Approval or an Apply whose digest is not that of the current
// plan.
func matchesPlan(plans planGetter) func(context.Context, *apiserver.AdmissionRequest) error {
	return func(ctx context.Context, r *apiserver.AdmissionRequest) error {
		if r.Old != nil {
			return nil // plan and digest are immutable
		}
		name, _, _ := unstructured.NestedString(r.Object.Object, "spec", "plan")
		digest, _, _ := unstructured.NestedString(r.Object.Object, "spec", "digest")
		plan, err := plans(ctx, r.Namespace, name)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if problem := checkPlan(plan, r.Namespace, name, digest); problem != nil {
			return apierrors.NewInvalid(r.Object.GroupVersionKind().GroupKind(), r.Name, field.ErrorList{problem})
		}
		return nil
	}
}

// checkPlan returns why a plan with a digest cannot be approved or applied, or nil.
// plan is nil if it does not exist.
func checkPlan(plan *v1alpha1.Plan, namespace, name, digest string) *field.Error {
	at := field.NewPath("spec", "plan")
	switch {
	case plan == nil:
		return field.Invalid(at, name, fmt.Sprintf("no such plan in namespace %q: run `kubectl get plans -n %s` to list the existing ones", namespace, namespace))
	case len(plan.Spec.Objects) > 0:
		return field.Invalid(at, name, "the plan is a preview of objects in spec.objects that are not stored: apply the objects, then create a plan without spec.objects")
	case plan.DeletionTimestamp != nil:
		return field.Invalid(at, name, "the plan is being deleted: create a new plan")
	case plan.Status.Phase == v1alpha1.PlanApplied:
		return field.Invalid(at, name, "the plan has already been applied: create a new plan for the remaining changes")
	case plan.Status.Phase == v1alpha1.PlanFailed:
		return field.Invalid(at, name, "planning failed: fix the errors in its status.problems and create a new plan")
	case plan.Status.Phase != v1alpha1.PlanPlanned || plan.Status.Digest == "":
		return field.Invalid(at, name, "the plan is not complete yet: wait until its status.phase is Planned, then review it")
	case plan.Status.Digest != digest:
		return field.Invalid(field.NewPath("spec", "digest"), digest, fmt.Sprintf("the plan's digest is %s: review the plan again", plan.Status.Digest))
	}
	return nil
}
