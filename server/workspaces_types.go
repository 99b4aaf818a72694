package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/overlay"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
)

// typeBindings begins the names of the ClusterRoleBindings that a type gives.
const typeBindings = "workspace-type:"

// maxInitialAPIs is the bound of the schema. Admission is before it, and opens the exporter of each.
const maxInitialAPIs = 32

// workspaceTypes are those of the API that a request is to: the root, or a workspace.
type workspaceTypes struct {
	s *Server
	// read reads a type.
	// Errors: tenancy.ErrNotFound.
	read func(ctx context.Context, name string) (*tenancyv1alpha1.WorkspaceType, error)
	// allows reports whether the user of the request has a verb for a type.
	allows allows
	// again is set if others change objects between resolve and check: the root has mutating webhooks.
	again bool
}

// allows reports whether the user of a request has a verb for an object, or with the name "" for all.
type allows = func(ctx context.Context, verb string, resource schema.GroupVersionResource, name string) (bool, error)

// rootTypes returns the types of the root. The server has its tenants when requests come.
func (s *Server) rootTypes() workspaceTypes {
	return workspaceTypes{s: s, again: true,
		read: func(ctx context.Context, name string) (*tenancyv1alpha1.WorkspaceType, error) {
			return s.tenants.directory.Type(ctx, name)
		},
		allows: func(ctx context.Context, verb string, resource schema.GroupVersionResource, name string) (bool, error) {
			return s.tenants.rootAllows(ctx, verb, resource, name)
		}}
}

// nestedTypes returns the types of the workspace that a request is to.
func (t *tenants) nestedTypes() workspaceTypes {
	return workspaceTypes{s: t.s,
		read: func(ctx context.Context, name string) (*tenancyv1alpha1.WorkspaceType, error) {
			of := &tenancyv1alpha1.WorkspaceType{}
			err := t.served.Read(ctx, workspaces.Of(ctx), tenancyv1alpha1.WorkspaceTypeResource.GroupResource(), name, of)
			if errors.Is(err, workspaces.ErrNotFound) || err == nil && of.DeletionTimestamp != nil {
				return nil, tenancy.ErrNotFound
			}
			return of, err
		},
		allows: func(ctx context.Context, verb string, resource schema.GroupVersionResource, name string) (bool, error) {
			return t.served.Allows(ctx, verb, resource, name)
		}}
}

// resolve gives a new Workspace what its type has, if its user may use the type.
func (types workspaceTypes) resolve(ctx context.Context, r *apiserver.AdmissionRequest) error {
	if r.Old != nil {
		return nil
	}
	name := tenancy.TypeOf(r.Object)
	if source, _, _ := unstructured.NestedFieldNoCopy(r.Object.Object, "spec", "source"); source != nil {
		if name != "" {
			return invalid("Workspace", r.Name, field.Invalid(field.NewPath("spec", "type"), name, "a workspace begins with the contents of its type or of spec.source: leave one of them out"))
		}
		return tenancy.SetType(r.Object, nil)
	}
	of, err := types.find(ctx, r, name)
	if err != nil {
		return err
	}
	return tenancy.SetType(r.Object, of)
}

// find returns the type of a new Workspace; nil if it names none and there is no default.
func (types workspaceTypes) find(ctx context.Context, r *apiserver.AdmissionRequest, name string) (*tenancyv1alpha1.WorkspaceType, error) {
	unavailable := func(err error) error {
		types.s.cfg.Log.Error("read the type of a new workspace failed", "in", workspaces.PathOf(ctx), "workspace", r.Name, "type", name, "error", err)
		return apierrors.NewServiceUnavailable("WorkspaceTypes cannot be read now: retry")
	}
	if name != "" && name != tenancyv1alpha1.DefaultWorkspaceType {
		allowed, err := types.allows(ctx, tenancyv1alpha1.UseVerb, tenancyv1alpha1.WorkspaceTypeResource, name)
		if err != nil {
			return nil, unavailable(err)
		}
		if !allowed {
			return nil, apierrors.NewForbidden(tenancyv1alpha1.WorkspaceTypeResource.GroupResource(), name,
				fmt.Errorf("user %q lacks the verb %s for this WorkspaceType, which spec.type of the Workspace names: ask an administrator for it, or choose another type", r.User.Name, tenancyv1alpha1.UseVerb))
		}
	}
	of, err := types.read(ctx, cmp.Or(name, tenancyv1alpha1.DefaultWorkspaceType))
	switch {
	case errors.Is(err, tenancy.ErrNotFound) && name == "":
		return nil, nil
	case errors.Is(err, tenancy.ErrNotFound):
		return nil, invalid("Workspace", r.Name, field.Invalid(field.NewPath("spec", "type"), name,
			"there is no WorkspaceType of this name where the Workspace is created: create it there, or choose one that \"kubectl get workspacetypes\" prints"))
	case err != nil:
		return nil, unavailable(err)
	}
	return of, nil
}

// check refuses another type for a Workspace that exists, and one that was changed after resolve.
func (types workspaceTypes) check(ctx context.Context, r *apiserver.AdmissionRequest) error {
	at, name := field.NewPath("spec", "type"), tenancy.TypeOf(r.Object)
	if r.Old != nil {
		if name != tenancy.TypeOf(r.Old) {
			return invalid("Workspace", r.Name, field.Invalid(at, name, "the type of a workspace does not change: create another Workspace"))
		}
		return nil
	}
	_, initial, _ := unstructured.NestedFieldNoCopy(r.Object.Object, "spec", "initial")
	if !types.again || name == "" && !initial {
		return nil
	}
	return unchanged(ctx, r, tenancyv1alpha1.WorkspaceResource, types.resolve)
}

// unchanged refuses an object in which other values are now than those that resolve sets.
func unchanged(ctx context.Context, r *apiserver.AdmissionRequest, resource schema.GroupVersionResource, resolve func(context.Context, *apiserver.AdmissionRequest) error) error {
	again := *r
	again.Object = r.Object.DeepCopy()
	if err := resolve(ctx, &again); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(again.Object.Object, r.Object.Object) {
		return nil
	}
	return apierrors.NewConflict(resource.GroupResource(), r.Name,
		errors.New("a WorkspaceType, an APIExport or a workspace that moves has changed meanwhile, or a mutating policy or webhook changes what the server sets: retry, or exclude the object from the policy"))
}

func invalid(kind, name string, problems ...*field.Error) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: tenancyv1alpha1.Group, Kind: kind}, name, problems)
}

// typeAdmission checks types, and records the exporters of their APIs.
func (s *Server) typeAdmission() apiserver.AdmissionStep {
	return apiserver.AdmissionStep{
		Resource: tenancyv1alpha1.WorkspaceTypeResource.GroupResource(),
		Resolve:  s.resolveAPIs,
		Check: func(ctx context.Context, r *apiserver.AdmissionRequest) error {
			of := &tenancyv1alpha1.WorkspaceType{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, of); err != nil {
				return nil // validation reports it
			}
			if problems := tenancy.CheckType(of); len(problems) > 0 {
				return invalid("WorkspaceType", r.Name, problems...)
			}
			if err := s.tenants.checkTypePlacement(ctx, r); err != nil {
				return err
			}
			return unchanged(ctx, r, tenancyv1alpha1.WorkspaceTypeResource, s.resolveAPIs)
		},
	}
}

// resolveAPIs records in a type which workspaces export its APIs, if the list is new, and its user may bind to all of them.
func (s *Server) resolveAPIs(ctx context.Context, r *apiserver.AdmissionRequest) error {
	of, old := &tenancyv1alpha1.WorkspaceType{}, &tenancyv1alpha1.WorkspaceType{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, of); err != nil || len(of.Spec.APIs) == 0 || len(of.Spec.APIs) > maxInitialAPIs {
		return nil // validation reports it, or there are none
	}
	if r.Old != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Old.Object, old); err != nil {
			return fmt.Errorf("read WorkspaceType %s: %w", r.Name, err)
		}
	}
	if !tenancy.KeepAPIs(old, of) {
		err := s.tenants.bindAll(ctx, r, of.Spec.APIs)
		if refused := (refusal)(""); errors.As(err, &refused) {
			return apierrors.NewForbidden(tenancyv1alpha1.WorkspaceTypeResource.GroupResource(), r.Name, fmt.Errorf("spec.apis: %w", refused))
		}
		if err != nil {
			s.cfg.Log.Error("check the APIs of a WorkspaceType failed", "in", workspaces.PathOf(ctx), "name", r.Name, "error", err)
			return apierrors.NewServiceUnavailable("the APIExports of spec.apis cannot be read now: retry")
		}
	}
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&of.Spec.WorkspaceContents)
	if err != nil {
		return err
	}
	return unstructured.SetNestedField(r.Object.Object, spec["apis"], "spec", "apis")
}

// bindAll records the exporters of a list of APIs. Their groups must be ones that a new workspace does not have, each once.
func (t *tenants) bindAll(ctx context.Context, r *apiserver.AdmissionRequest, all []tenancyv1alpha1.InitialAPI) error {
	names := map[string]string{} // by group
	for i := range all {
		api := &all[i]
		if api.Path == "" || api.Name == "" {
			continue // validation reports it
		}
		export, uid, err := t.bindable(ctx, r, api.ExportReference)
		if err == nil {
			err = inAllWorkspaces(export)
		}
		if err != nil {
			return err
		}
		for _, group := range groupsOf(export.Spec.Resources) {
			if other, twice := names[group]; twice {
				return refusal(fmt.Sprintf("%s and %s both have the group %s, which a workspace can have from one place: remove one of them", other, api.Name, group))
			}
			names[group] = api.Name
		}
		api.WorkspaceUID, api.Resources = uid, export.Spec.Resources
	}
	return nil
}

// beginning returns the function that determines what a new workspace has. w is its object, or nil if it has to be read: a server may have
// crashed after it created the keyspace.
func (t *tenants) beginning(uid, path string, w *tenancyv1alpha1.Workspace) func(context.Context) (overlay.Beginning, error) {
	return func(ctx context.Context) (_ overlay.Beginning, err error) {
		of := w
		if of == nil {
			if of, err = t.byUID(ctx, uid, path); err != nil {
				return overlay.Beginning{}, err
			}
		}
		return beginningOf(of)
	}
}

// beginningOf returns what a new workspace has of its owner and its type.
func beginningOf(w *tenancyv1alpha1.Workspace) (overlay.Beginning, error) {
	out := overlay.Beginning{Owner: ownerOf(w)}
	if w.Spec.Initial == nil {
		return out, nil
	}
	for _, n := range w.Spec.Initial.Namespaces {
		out.Namespaces = append(out.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, Annotations: n.Annotations}})
	}
	for _, access := range w.Spec.Initial.Access {
		out.ClusterRoleBindings = append(out.ClusterRoleBindings, roleBinding(access))
	}
	for _, api := range w.Spec.Initial.APIs {
		binding := &tenancyv1alpha1.APIBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: tenancyv1alpha1.Group + "/" + tenancyv1alpha1.Version, Kind: "APIBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: api.Name},
			Spec:       tenancyv1alpha1.APIBindingSpec{Export: api.ExportReference, Resources: api.Resources},
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(binding)
		if err != nil {
			return out, fmt.Errorf("encode APIBinding %s: %w", api.Name, err)
		}
		out.Custom = append(out.Custom, overlay.CustomObject{Resource: tenancyv1alpha1.APIBindingResource.GroupResource(), Object: &unstructured.Unstructured{Object: content}})
	}
	return out, nil
}

func roleBinding(access tenancyv1alpha1.InitialAccess) *rbacv1.ClusterRoleBinding {
	out := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: typeBindings + access.Role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: access.Role},
	}
	for _, name := range access.Users {
		out.Subjects = append(out.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name})
	}
	for _, name := range access.Groups {
		out.Subjects = append(out.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name})
	}
	return out
}
