package apiserver

import (
	"context"
	"fmt"
	"io"
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

// refuseOwners is the name of the admission plugin. It cannot be disabled: what it refuses would
// wait for ever.
const refuseOwners = "AtollUnowned"

// unownedPlugin refuses what only the garbage collector could carry out, for the kinds that it does not
// keep (Config.Unowned).
type unownedPlugin struct {
	*admission.Handler
	kinds map[schema.GroupResource]struct{}
}

var _ admission.ValidationInterface = unownedPlugin{}

func withUnowned(o *kubeoptions.AdmissionOptions, kinds []schema.GroupVersionResource) error {
	generic := o.GenericAdmission
	if slices.Contains(generic.DisablePlugins, refuseOwners) {
		return fmt.Errorf("admission plugin %s cannot be disabled, since what it refuses would wait for ever: leave it out of --disable-admission-plugins", refuseOwners)
	}
	plugin := unownedPlugin{admission.NewHandler(admission.Create, admission.Update, admission.Delete), ignoring(nil, kinds)}
	generic.Plugins.Register(refuseOwners, func(io.Reader) (admission.Interface, error) { return plugin, nil })
	order := slices.Clone(generic.RecommendedPluginOrder)
	generic.RecommendedPluginOrder = slices.Insert(order, slices.Index(order, lifecycle.PluginName)+1, refuseOwners)
	return nil
}

// ignoring are resources that a controller leaves out, and the unowned kinds with them.
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

// problemsOfDelete are of what is asked to become of the dependents.
func problemsOfDelete(resource schema.GroupResource, options runtime.Object) (problems field.ErrorList) {
	asked, ok := options.(*metav1.DeleteOptions)
	if !ok {
		return nil
	}
	if policy := asked.PropagationPolicy; policy != nil && *policy != metav1.DeletePropagationBackground {
		problems = append(problems, field.Invalid(field.NewPath("propagationPolicy"), *policy,
			fmt.Sprintf("%s own nothing: ask for Background, or for nothing (kubectl delete --cascade=background)", resource)))
	}
	if orphan := asked.OrphanDependents; orphan != nil && *orphan { //nolint:staticcheck // clients may still send it
		problems = append(problems, field.Invalid(field.NewPath("orphanDependents"), true,
			fmt.Sprintf("%s own nothing: leave it out", resource)))
	}
	return problems
}

// problemsOfOwned are of an object's metadata, as far as it was not so before. It has no old one if it is new.
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
			fmt.Sprintf("%s are not deleted with an owner: leave it out", resource)))
	}
	for i, name := range is.GetFinalizers() {
		if (name == metav1.FinalizerDeleteDependents || name == metav1.FinalizerOrphanDependents) && !slices.Contains(was.GetFinalizers(), name) {
			problems = append(problems, field.Invalid(path.Child("finalizers").Index(i), name,
				fmt.Sprintf("%s own nothing, and nobody would take it away: leave it out", resource)))
		}
	}
	return problems
}

// unownedEvaluators count the unowned kinds for quotas. The quota controller does not watch them: it
// lists them if a quota is for them, whenever it counts.
func (l *leadership) unownedEvaluators(ctx context.Context) []quota.Evaluator {
	var all []quota.Evaluator
	for _, kind := range l.unowned {
		list := func(namespace string) ([]runtime.Object, error) {
			// From memory: a quota that is counted every few seconds may be as old as that.
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
