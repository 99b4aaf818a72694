package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// refuseOwners is the name of the admission plugin. It cannot be disabled: the requests
// that it rejects would never complete.
const refuseOwners = "AtollUnowned"

// unownedPlugin rejects requests that only the garbage collector could carry out, for
// kinds that the collector does not track (Config.Unowned).
type unownedPlugin struct {
	*admission.Handler
	kinds map[schema.GroupResource]struct{}
}

var _ admission.ValidationInterface = unownedPlugin{}

func withUnowned(o *kubeoptions.AdmissionOptions, kinds []schema.GroupVersionResource) error {
	plugin := unownedPlugin{admission.NewHandler(admission.Create, admission.Update, admission.Delete), ignoring(nil, kinds)}
	return addRequired(o, refuseOwners, lifecycle.PluginName, plugin, "the requests that it rejects would never complete")
}

// ignoring returns the resources that a controller ignores, plus the unowned kinds.
func ignoring(resources map[schema.GroupResource]struct{}, kinds []schema.GroupVersionResource) map[schema.GroupResource]struct{} {
	all := make(map[schema.GroupResource]struct{}, len(resources)+len(kinds))
	maps.Copy(all, resources)
	for _, kind := range kinds {
		all[kind.GroupResource()] = struct{}{}
	}
	return all
}

// Validate implements admission.ValidationInterface.
func (p unownedPlugin) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := a.GetResource().GroupResource()
	if _, ok := p.kinds[resource]; !ok || a.GetSubresource() != "" {
		return nil
	}
	kind, problems := a.GetKind().GroupKind(), field.ErrorList(nil)
	if a.GetOperation() == admission.Delete {
		kind = schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}
		problems = problemsOfDelete(resource, a.GetOperationOptions())
	} else {
		problems = problemsOfOwned(resource, a.GetObject(), a.GetOldObject())
	}
	if len(problems) == 0 {
		return nil
	}
	return apierrors.NewInvalid(kind, a.GetName(), problems)
}

// problemsOfDelete checks the propagation policy of a delete request.
func problemsOfDelete(resource schema.GroupResource, options runtime.Object) (problems field.ErrorList) {
	asked, ok := options.(*metav1.DeleteOptions)
	if !ok {
		return nil
	}
	if policy := asked.PropagationPolicy; policy != nil && *policy != metav1.DeletePropagationBackground {
		problems = append(problems, field.Invalid(field.NewPath("propagationPolicy"), *policy,
			fmt.Sprintf("%s have no dependents: use Background, or omit the policy (kubectl delete --cascade=background)", resource)))
	}
	if orphan := asked.OrphanDependents; orphan != nil && *orphan { //nolint:staticcheck // clients may still send it
		problems = append(problems, field.Invalid(field.NewPath("orphanDependents"), true,
			fmt.Sprintf("%s have no dependents: omit this field", resource)))
	}
	return problems
}

// problemsOfOwned checks an object's metadata for fields that the old object did not
// have. old is nil on create.
func problemsOfOwned(resource schema.GroupResource, object, old runtime.Object) (problems field.ErrorList) {
	is, err := meta.Accessor(object)
	if err != nil {
		return nil
	}
	var was metav1.Object = &metav1.ObjectMeta{}
	if old != nil {
		if was, err = meta.Accessor(old); err != nil {
			return nil
		}
	}
	path := field.NewPath("metadata")
	if owners := is.GetOwnerReferences(); len(owners) > 0 && !equality.Semantic.DeepEqual(owners, was.GetOwnerReferences()) {
		problems = append(problems, field.Forbidden(path.Child("ownerReferences"),
			fmt.Sprintf("%s are not deleted with an owner: omit this field", resource)))
	}
	for i, name := range is.GetFinalizers() {
		if (name == metav1.FinalizerDeleteDependents || name == metav1.FinalizerOrphanDependents) && !slices.Contains(was.GetFinalizers(), name) {
			problems = append(problems, field.Invalid(path.Child("finalizers").Index(i), name,
				fmt.Sprintf("%s have no dependents, and no controller would remove this finalizer: omit it", resource)))
		}
	}
	return problems
}

// unownedEvaluators count the unowned kinds for quotas. The quota controller does not
// watch these kinds: it lists them whenever it counts a quota for them.
func (l *leadership) unownedEvaluators(ctx context.Context) []quota.Evaluator {
	var all []quota.Evaluator
	for _, kind := range l.unowned {
		list := func(namespace string) ([]runtime.Object, error) {
			// From the watch cache: a quota that is recalculated every few seconds
			// tolerates that.
			found, err := l.metadata.Resource(kind).Namespace(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				return nil, fmt.Errorf("count %s: %w", kind.GroupResource(), err)
			}
			objects := make([]runtime.Object, len(found.Items))
			for i := range found.Items {
				objects[i] = &found.Items[i]
			}
			return objects, nil
		}
		all = append(all, generic.NewObjectCountEvaluator(kind.GroupResource(), list, ""))
	}
	return all
}
