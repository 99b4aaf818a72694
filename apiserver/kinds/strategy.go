package kinds

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// kindStrategy is the strategy for objects of a kind: the same as for custom resources,
// with the source's hooks instead of a CRD's schema.
type kindStrategy struct {
	runtime.ObjectTyper
	kind       schema.GroupVersionKind
	names      Names
	definition Definition
	fields     kindFields
}

// GenerateName implements names.NameGenerator.
func (kindStrategy) GenerateName(base string) string {
	return names.SimpleNameGenerator.GenerateName(base)
}

// NamespaceScoped reports whether objects are namespaced.
func (s kindStrategy) NamespaceScoped() bool { return !s.names.ClusterScoped }

// AllowCreateOnUpdate returns false: a PUT does not create objects.
func (kindStrategy) AllowCreateOnUpdate() bool { return false }

// AllowUnconditionalUpdate returns false: a PUT needs a resourceVersion.
func (kindStrategy) AllowUnconditionalUpdate() bool { return false }

// Canonicalize does nothing: objects are stored as written.
func (kindStrategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate returns none: Validate adds the source's warnings.
func (kindStrategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (kindStrategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string { return nil }

// GetResetFields implements rest.ResetFieldsStrategy: no manager owns the fields that
// the request cannot set.
func (s kindStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.names.Status {
		return nil
	}
	return s.reset("status")
}

func (s kindStrategy) reset(names ...string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, name := range names {
		set.Insert(fieldpath.MakePathOrDie(name))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(s.kind.GroupVersion().String()): set}
}

// attributes returns the labels and fields by which objects are selected.
func (s kindStrategy) attributes(object runtime.Object) (labels.Set, fields.Set, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{"metadata.name": m.GetName()}
	if !s.names.ClusterScoped {
		set["metadata.namespace"] = m.GetNamespace()
	}
	return m.GetLabels(), set, nil
}

func (s kindStrategy) match(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: s.attributes}
}

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s kindStrategy) PrepareForCreate(ctx context.Context, object runtime.Object) {
	u := object.(*unstructured.Unstructured)
	if s.names.Status {
		delete(u.Object, "status")
	}
	u.SetGeneration(1)
	if s.definition.Prepare != nil {
		s.definition.Prepare(ctx, nil, u)
	}
}

// Validate implements rest.RESTCreateStrategy.
func (s kindStrategy) Validate(ctx context.Context, object runtime.Object) field.ErrorList {
	u := object.(*unstructured.Unstructured)
	if errs := s.checkKind(u); len(errs) > 0 {
		return errs
	}
	errs := validation.ValidateObjectMetaAccessor(u, !s.names.ClusterScoped, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, s.validate(ctx, nil, u)...)
}

// PrepareForUpdate implements rest.RESTUpdateStrategy. Upstream's code has already set
// the generation to the old one.
func (s kindStrategy) PrepareForUpdate(ctx context.Context, object, old runtime.Object) {
	u, was := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	if s.names.Status {
		if status, ok := was.Object["status"]; ok {
			u.Object["status"] = status
		} else {
			delete(u.Object, "status")
		}
	}
	if sameContent(u, was) {
		return
	}
	if s.definition.Prepare != nil && !s.sameFields(u, was) {
		s.definition.Prepare(ctx, was.DeepCopy(), u)
	}
	u.SetGeneration(was.GetGeneration() + 1)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s kindStrategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	u, was := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	if errs := s.checkKind(u); len(errs) > 0 {
		return errs
	}
	errs := validation.ValidateObjectMetaAccessorUpdate(u, was, field.NewPath("metadata"))
	if s.sameFields(u, was) {
		return errs
	}
	return append(errs, s.validate(ctx, was, u)...)
}

// CheckGracefulDelete implements rest.RESTGracefulDeleteStrategy. There is no grace period. Upstream calls it
// in the write that marks an object as being deleted, which stores what Deleting changes.
func (s kindStrategy) CheckGracefulDelete(ctx context.Context, object runtime.Object, _ *metav1.DeleteOptions) bool {
	by, found := request.UserFrom(ctx)
	if u, is := object.(*unstructured.Unstructured); is && found && s.definition.Deleting != nil {
		s.definition.Deleting(User{Name: by.GetName(), UID: by.GetUID(), Groups: by.GetGroups()}, u)
	}
	return false
}

// sameContent compares everything but metadata.
func sameContent(a, b *unstructured.Unstructured) bool {
	return apiequality.Semantic.DeepEqual(content(a), content(b))
}

// sameFields is sameContent without the fields that the kind no longer has, which any
// write drops. So a client that removes a finalizer has changed nothing that needs
// validation.
func (s kindStrategy) sameFields(a, b *unstructured.Unstructured) bool {
	if sameContent(a, b) {
		return true
	}
	now := b.DeepCopy()
	return len(s.fields.prune(now.Object)) > 0 && sameContent(a, now)
}

// content returns an object without its metadata.
func content(u *unstructured.Unstructured) map[string]any {
	out := make(map[string]any, len(u.Object))
	for k, v := range u.Object {
		if k != "metadata" {
			out[k] = v
		}
	}
	return out
}

func (s kindStrategy) checkKind(u *unstructured.Unstructured) (errs field.ErrorList) {
	if u.GetKind() != s.kind.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), u.GetKind(), "must be "+s.kind.Kind))
	}
	if version := s.kind.GroupVersion().String(); u.GetAPIVersion() != version {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), u.GetAPIVersion(), "must be "+version))
	}
	return errs
}

// validate validates against the type and then by the source.
func (s kindStrategy) validate(ctx context.Context, old, u *unstructured.Unstructured) field.ErrorList {
	errs := s.conform(u)
	if len(errs) > 0 || s.definition.Validate == nil {
		return errs
	}
	errs, warnings := s.definition.Validate(ctx, old, u)
	for _, text := range warnings {
		warning.AddWarning(ctx, "", text)
	}
	return errs
}

// conform returns the fields that do not conform to the kind's type. It does not report
// values, because some are sensitive.
func (s kindStrategy) conform(u *unstructured.Unstructured) field.ErrorList {
	_, err := s.definition.Type.FromUnstructured(content(u))
	var found typed.ValidationErrors
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &found):
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("compare with the type of %s: %w", s.kind.Kind, err))}
	}
	var errs field.ErrorList
	for _, e := range found {
		errs = append(errs, &field.Error{
			Type: field.ErrorTypeInvalid, Field: strings.TrimPrefix(e.Path, "."), BadValue: field.OmitValueType{}, Detail: e.ErrorMessage,
		})
	}
	return errs
}

// kindStatusStrategy is the strategy for writes to the status.
type kindStatusStrategy struct{ kindStrategy }

// GetResetFields implements rest.ResetFieldsStrategy.
func (s kindStatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.reset("metadata", "spec")
}

// PrepareForUpdate implements rest.RESTUpdateStrategy: it restores everything except
// the status and its managed fields.
func (s kindStatusStrategy) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	u, was := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	status, ok := u.Object["status"]
	managed := u.GetManagedFields()
	u.Object = was.DeepCopy().Object
	u.SetManagedFields(managed)
	if ok {
		u.Object["status"] = status
	} else {
		delete(u.Object, "status")
	}
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s kindStatusStrategy) ValidateUpdate(_ context.Context, object, old runtime.Object) field.ErrorList {
	u, was := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	if errs := s.checkKind(u); len(errs) > 0 {
		return errs
	}
	errs := validation.ValidateObjectMetaAccessorUpdate(u, was, field.NewPath("metadata"))
	only := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind()}}
	if status, ok := u.Object["status"]; ok {
		only.Object["status"] = status
	}
	return append(errs, s.conform(only)...)
}
