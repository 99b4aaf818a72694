package server

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/kinds"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providercontroller"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// providerKinds provides the types of all Providers as kinds for the API server.
type providerKinds struct {
	*providercontroller.Registry
	language *expr.Language
	merge    *infraschema.MergeTypes
}

var _ kinds.Source = (*providerKinds)(nil)

func newProviderKinds(registry *providercontroller.Registry, language *expr.Language) *providerKinds {
	return &providerKinds{Registry: registry, language: language, merge: infraschema.NewMergeTypes()}
}

// Groups implements kinds.Source.
func (k *providerKinds) Groups() []kinds.Group {
	var groups []kinds.Group
	for _, g := range k.Registry.Groups() {
		names := make([]kinds.Names, len(g.Kinds))
		for i, n := range g.Kinds {
			names[i] = kinds.Names{Kind: n.Kind, Plural: n.Plural, Singular: n.Singular, Status: true}
		}
		groups = append(groups, kinds.Group{Name: g.Name, Versions: []kinds.Version{{
			Name: v1alpha1.ProvidersVersion, Revision: g.Revision, Kinds: names, Components: infraschema.Components,
		}}})
	}
	return groups
}

// Refused implements kinds.Source.
func (k *providerKinds) Refused(reasons map[string]string) { k.SetRejectedGroups(reasons) }

func (k *providerKinds) lookup(kind schema.GroupVersionKind) (*infra.ServedKind, error) {
	served, ok := k.ByKind(kind.Group, kind.Kind)
	if !ok {
		return nil, fmt.Errorf("no Provider currently serves kind %s of group %s", kind.Kind, kind.Group)
	}
	return served, nil
}

// Schema implements kinds.Source.
func (k *providerKinds) Schema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	served, err := k.lookup(kind)
	if err != nil {
		return nil, err
	}
	return served.OpenAPI(), nil
}

// Open implements kinds.Source.
func (k *providerKinds) Open(kind schema.GroupVersionKind) (kinds.Definition, error) {
	served, err := k.lookup(kind)
	if err != nil {
		return kinds.Definition{}, err
	}
	columns := served.Columns()
	definition := kinds.Definition{
		Type:    k.merge.Of(&served.Schema.Block),
		Columns: make([]kinds.Column, len(columns)),
		Validate: func(_ context.Context, old, object *unstructured.Unstructured) (field.ErrorList, []string) {
			return k.validate(served, old, object)
		},
		Deleting: recordDeletion,
	}
	for i, c := range columns {
		definition.Columns[i] = kinds.Column{
			Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, JSONPath: c.JSONPath, Priority: c.Priority,
		}
	}
	return definition, nil
}

// validate validates one object by itself: its structure, and the syntax of its
// expressions. Planning validates it against other objects and by the provider.
func (k *providerKinds) validate(served *infra.ServedKind, old, object *unstructured.Unstructured) (field.ErrorList, []string) {
	if old == nil && k.Deleting(served.Group) {
		return field.ErrorList{field.Forbidden(field.NewPath("kind"), fmt.Sprintf(
			"Provider %s is being deleted: no new objects of its types can be created", served.Provider))}, nil
	}
	specMap, ok := object.Object["spec"].(map[string]any)
	if !ok && object.Object["spec"] != nil {
		return field.ErrorList{field.TypeInvalid(field.NewPath("spec"), field.OmitValueType{}, "must be an object with the arguments")}, nil
	}
	// An object to be imported need not set all required arguments.
	checks := infraschema.Checks{Partial: object.GetAnnotations()[infra.ImportAnnotation] != ""}
	errs, warnings := served.Validate(specMap, checks)
	if _, err := k.language.Spec(specMap, object.GetNamespace()); err != nil {
		errs = append(errs, expressionErrors(err)...)
	}
	return errs, warnings
}

// expressionErrors converts errors in expressions to errors of their fields.
func expressionErrors(err error) (errs field.ErrorList) {
	all := []error{err}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		all = several.Unwrap()
	}
	for _, one := range all {
		var of *expr.Error
		if !errors.As(one, &of) {
			errs = append(errs, field.Invalid(field.NewPath("spec"), field.OmitValueType{}, one.Error()))
			continue
		}
		path := of.Path
		bare := *of
		bare.Path = "" // the field error has it
		errs = append(errs, &field.Error{Type: field.ErrorTypeInvalid, Field: path, BadValue: field.OmitValueType{}, Detail: bare.Error()})
	}
	return errs
}
