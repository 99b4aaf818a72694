package kinds

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// servedKind has the store and scopes with which requests for a kind are handled. It is
// created for the first request.
type servedKind struct {
	objects     *registry.Store
	scope       *handlers.RequestScope
	status      statusREST // if the kind has the subresource
	statusScope *handlers.RequestScope
}

func (k *servedKind) destroy() { k.objects.Destroy() }

// statusREST is the subresource status. It creates no objects.
type statusREST struct{ *registry.Store }

var _ rest.Patcher = statusREST{}

// Update implements rest.Updater. Server-side apply would otherwise create a missing
// object.
func (r statusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.Store.Update(ctx, name, info, create, update, false, options)
}

// build creates the store and scopes of a kind.
func (s *Server) build(resource schema.GroupVersionResource, names Names) (*servedKind, error) {
	kind := resource.GroupVersion().WithKind(names.Kind)
	openAPI, err := s.source.Schema(kind)
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	definition, err := s.source.Open(kind)
	if err != nil {
		return nil, fmt.Errorf("open the kind: %w", err)
	}
	if !definition.Type.IsValid() {
		return nil, fmt.Errorf("the definition of %s has no type", kind.Kind)
	}
	table, err := tableconvertor.New(columns(definition.Columns))
	if err != nil {
		return nil, fmt.Errorf("read the columns: %w", err)
	}
	fields := kindFields{openAPI}
	params := runtime.NewScheme()
	params.AddUnversionedTypes(kind.GroupVersion(), &metav1.ListOptions{}, &metav1.GetOptions{}, &metav1.DeleteOptions{})
	typer := kindTyper{params}
	strategy := kindStrategy{ObjectTyper: typer, kind: kind, names: names, definition: definition, fields: fields}
	objects, err := s.newStore(resource.GroupResource(), kind, names, strategy, table)
	if err != nil {
		return nil, err
	}
	k := &servedKind{objects: objects}
	if k.scope, err = s.newScope(resource, kind, names, params, fields, definition, objects, ""); err != nil {
		objects.Destroy()
		return nil, err
	}
	if names.Status {
		store := *objects
		store.UpdateStrategy, store.ResetFieldsStrategy = kindStatusStrategy{strategy}, kindStatusStrategy{strategy}
		k.status = statusREST{&store}
		if k.statusScope, err = s.newScope(resource, kind, names, params, fields, definition, &store, "status"); err != nil {
			objects.Destroy()
			return nil, err
		}
	}
	return k, nil
}

func columns(given []Column) []apiextensionsv1.CustomResourceColumnDefinition {
	if len(given) == 0 {
		given = []Column{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp",
			Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}}
	}
	out := make([]apiextensionsv1.CustomResourceColumnDefinition, len(given))
	for i, c := range given {
		out[i] = apiextensionsv1.CustomResourceColumnDefinition{
			Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, JSONPath: c.JSONPath, Priority: c.Priority,
		}
	}
	return out
}

// newStore creates the registry of a kind: upstream's, as for every other kind.
func (s *Server) newStore(resource schema.GroupResource, kind schema.GroupVersionKind, names Names, strategy kindStrategy, table rest.TableConvertor) (*registry.Store, error) {
	store := &registry.Store{
		NewFunc: func() runtime.Object {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(kind)
			return u
		},
		NewListFunc: func() runtime.Object {
			u := &unstructured.UnstructuredList{}
			u.SetGroupVersionKind(kind.GroupVersion().WithKind(names.listKind()))
			return u
		},
		PredicateFunc:             strategy.match,
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: schema.GroupResource{Group: resource.Group, Resource: names.Singular},
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            table,
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: s.options, AttrFunc: strategy.attributes}); err != nil {
		return nil, fmt.Errorf("open the storage of %s: %w", resource, err)
	}
	return store, nil
}

// newScope returns the request scope for upstream's handlers.
func (s *Server) newScope(
	resource schema.GroupVersionResource, kind schema.GroupVersionKind, names Names, params *runtime.Scheme,
	fields kindFields, definition Definition, store *registry.Store, subresource string,
) (*handlers.RequestScope, error) {
	serializer := newKindSerializer(params, kind, fields)
	equivalents := runtime.NewEquivalentResourceRegistry()
	equivalents.RegisterKindFor(resource, subresource, kind)
	convertor := kindConvertor{kind: kind, names: names}
	scope := &handlers.RequestScope{
		Namer:                    handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: names.ClusterScoped},
		Serializer:               serializer,
		ParameterCodec:           runtime.NewParameterCodec(params),
		StandardSerializers:      serializer.standard(),
		Creater:                  unstructuredscheme.NewUnstructuredCreator(),
		Convertor:                copyingConvertor{convertor},
		Defaulter:                params,
		Typer:                    kindTyper{params},
		UnsafeConvertor:          convertor,
		Authorizer:               s.authorizer,
		EquivalentResourceMapper: equivalents,
		TableConvertor:           store.TableConvertor,
		Resource:                 resource,
		Kind:                     kind,
		Subresource:              subresource,
		HubGroupVersion:          kind.GroupVersion(),
		MetaGroupVersion:         metav1.SchemeGroupVersion,
		MaxRequestBodyBytes:      s.maxBody,
	}
	var err error
	scope.FieldManager, err = managedfields.NewDefaultCRDFieldManager(kindTypes{definition.Type, fields}, scope.Convertor, scope.Defaulter,
		scope.Creater, kind, kind.GroupVersion(), subresource, fieldpath.NewExcludeFilterSetMap(store.ResetFieldsStrategy.GetResetFields()))
	if err != nil {
		return nil, fmt.Errorf("prepare to apply to %s: %w", kind.Kind, err)
	}
	return scope, nil
}
