package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	infrav1alpha1 "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
)

// maxBindings is how many APIBindings a workspace may have: each request for a custom resource reads them.
const maxBindings = 100

// bindings returns the groups that a workspace gets from others. If two APIBindings have a group, the first one by name has it; admission
// refuses the second one, unless both are created at the same time.
func (t *tenants) bindings(ctx context.Context, consumer *workspaces.Workspace) ([]workspaces.Binding, error) {
	stored, err := t.storedBindings(ctx, consumer)
	if err != nil {
		return nil, err
	}
	all, err := t.fleetBindings(ctx, consumer, stored)
	if err != nil {
		return nil, err
	}
	all = append(all, t.systemBinding())
	for _, b := range stored {
		for _, group := range groupsOf(b.Spec.Resources) {
			all = append(all, workspaces.Binding{Group: group, Name: b.Name, Export: b.Spec.Export.Name, ExporterPath: b.Spec.Export.Path, ExporterUID: b.Spec.Export.WorkspaceUID,
				Resources: resourcesOf(b.Spec.Resources, group), Deleting: b.DeletionTimestamp != nil,
				Open: func(ctx context.Context) (context.Context, workspaces.Exporter, func(), error) {
					return t.openExporter(ctx, consumer, b, group)
				}})
		}
	}
	return all, nil
}

func (t *tenants) storedBindings(ctx context.Context, consumer *workspaces.Workspace) (all []*tenancyv1alpha1.APIBinding, err error) {
	err = t.served.ReadAll(ctx, consumer, tenancyv1alpha1.APIBindingResource.GroupResource(), func() metav1.Object {
		all = append(all, &tenancyv1alpha1.APIBinding{})
		return all[len(all)-1]
	})
	return all, err
}

// groupsOf returns the groups of resources, each once.
func groupsOf(all []tenancyv1alpha1.ExportedResource) (groups []string) {
	for _, r := range all {
		if !slices.Contains(groups, r.Group) {
			groups = append(groups, r.Group)
		}
	}
	return groups
}

// resourcesOf returns the resources of a group.
func resourcesOf(all []tenancyv1alpha1.ExportedResource, group string) (names []string) {
	for _, r := range all {
		if r.Group == group {
			names = append(names, r.Resource)
		}
	}
	return names
}

// openExporter opens the workspace that a binding refers to, for one request. It must be the one that the binding was created for, and
// export resources of the group now. It records the consumer there, so that the exporter's views find it.
func (t *tenants) openExporter(ctx context.Context, consumer *workspaces.Workspace, b *tenancyv1alpha1.APIBinding, group string) (context.Context, workspaces.Exporter, func(), error) {
	in, open, release, err := t.acquire(ctx, b.Spec.Export.Path)
	if err != nil {
		return nil, workspaces.Exporter{}, nil, err
	}
	resources := sets.New[string]()
	export, err := t.export(in, open, b.Spec.Export.Name)
	if err == nil {
		for _, r := range b.Spec.Resources {
			if r.Group == group && slices.Contains(export.Spec.Resources, r) {
				resources.Insert(r.Resource)
			}
		}
		if open.UID() != b.Spec.Export.WorkspaceUID || len(resources) == 0 {
			err = workspaces.ErrNotFound
		}
	}
	if path := workspaces.PathOf(ctx); err == nil && path != "" { // the server itself does not know it, and an earlier request has
		err = t.served.RecordConsumer(in, open, b.Spec.Export.Name, consumer, path, string(b.UID))
	}
	if err != nil {
		release()
		return nil, workspaces.Exporter{}, nil, err
	}
	return in, workspaces.Exporter{Workspace: open, Resources: resources}, release, nil
}

// export reads an APIExport that is not being deleted.
func (t *tenants) export(ctx context.Context, from *workspaces.Workspace, name string) (*tenancyv1alpha1.APIExport, error) {
	export := &tenancyv1alpha1.APIExport{}
	err := t.served.Read(ctx, from, tenancyv1alpha1.APIExportResource.GroupResource(), name, export)
	if err == nil && export.DeletionTimestamp != nil {
		err = workspaces.ErrNotFound
	}
	return export, err
}

// bindingAdmission refuses APIBindings that their user may not create, and records their exporter and resources. Later they do not change.
func (t *tenants) bindingAdmission() apiserver.AdmissionStep {
	resource := tenancyv1alpha1.APIBindingResource.GroupResource()
	return apiserver.AdmissionStep{
		Resource: resource,
		Resolve: func(ctx context.Context, r *apiserver.AdmissionRequest) error {
			if r.Old != nil {
				return nil
			}
			err := t.bind(ctx, r)
			if refused := (refusal)(""); errors.As(err, &refused) {
				return apierrors.NewForbidden(resource, r.Name, refused)
			}
			if err != nil {
				t.s.cfg.Log.Error("check an APIBinding failed", "workspace", workspaces.PathOf(ctx), "name", r.Name, "error", err)
				return apierrors.NewServiceUnavailable("the APIExport cannot be read now: retry")
			}
			return nil
		},
		Check: func(_ context.Context, r *apiserver.AdmissionRequest) error {
			if r.Old != nil && !sameSpec(r.Old, r.Object) {
				return apierrors.NewForbidden(resource, r.Name, refusal("spec does not change: delete the APIBinding and create another one"))
			}
			return nil
		},
	}
}

func sameSpec(a, b *unstructured.Unstructured) bool {
	var x, y tenancyv1alpha1.APIBinding
	return runtime.DefaultUnstructuredConverter.FromUnstructured(a.Object, &x) == nil && runtime.DefaultUnstructuredConverter.FromUnstructured(b.Object, &y) == nil &&
		x.Spec.Export == y.Spec.Export && slices.Equal(x.Spec.Resources, y.Spec.Resources)
}

// refusal is the reason why an APIBinding is refused.
type refusal string

func (r refusal) Error() string { return string(r) }

// bind checks a new APIBinding, and records its exporter and resources in it.
func (t *tenants) bind(ctx context.Context, r *apiserver.AdmissionRequest) error {
	b := &tenancyv1alpha1.APIBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, b); err != nil || b.Spec.Export.Path == "" || b.Spec.Export.Name == "" {
		return nil // validation reports it
	}
	export, uid, err := t.bindable(ctx, r, b.Spec.Export)
	if err != nil {
		return err
	}
	if err := t.conflicts(ctx, export); err != nil {
		return err
	}
	return record(r.Object, uid, export.Spec.Resources)
}

// bindable returns an APIExport that the user of a request may bind workspaces to, and the UID of the workspace that has it.
// Errors: refusal.
func (t *tenants) bindable(ctx context.Context, r *apiserver.AdmissionRequest, to tenancyv1alpha1.ExportReference) (_ *tenancyv1alpha1.APIExport, uid string, err error) {
	if tenancy.IsOwnAccount(r.User.Name) || apiserver.Impersonated(ctx) {
		return nil, "", refusal("ServiceAccounts and impersonated users have no permissions in other workspaces: do this as yourself")
	}
	missing := refusal(fmt.Sprintf("workspace %s has no APIExport %s, or you lack the verb %s for it there", to.Path, to.Name, tenancyv1alpha1.BindVerb))
	in, exporter, release, err := t.acquirePath(ctx, to.Path)
	if errors.Is(err, workspaces.ErrNotFound) {
		return nil, "", missing
	}
	if err != nil {
		return nil, "", err
	}
	defer release()
	allowed, err := t.served.Allowed(in, exporter, r.User, tenancyv1alpha1.BindVerb, tenancyv1alpha1.APIExportResource, to.Name)
	if err != nil {
		return nil, "", err
	}
	export, err := t.export(in, exporter, to.Name)
	if errors.Is(err, workspaces.ErrNotFound) || !allowed {
		return nil, "", missing
	}
	return export, exporter.UID(), err
}

// acquirePath is acquire for a path that a user wrote.
func (t *tenants) acquirePath(ctx context.Context, path string) (context.Context, *workspaces.Workspace, func(), error) {
	if !workspaces.IsPath(path) {
		return nil, nil, nil, workspaces.ErrNotFound
	}
	return t.acquire(ctx, path)
}

// conflicts refuses an export of a group that the workspace of the request has already.
func (t *tenants) conflicts(ctx context.Context, export *tenancyv1alpha1.APIExport) error {
	consumer := workspaces.Of(ctx)
	stored, err := t.storedBindings(ctx, consumer)
	if err != nil {
		return err
	}
	if len(stored) >= maxBindings {
		return refusal(fmt.Sprintf("a workspace has at most %d APIBindings", maxBindings))
	}
	defined, err := t.served.DefinedGroups(ctx, consumer)
	if err != nil {
		return err
	}
	if err := inAllWorkspaces(export); err != nil {
		return err
	}
	for _, group := range groupsOf(export.Spec.Resources) {
		if defined[group] {
			return refusal("this workspace has CustomResourceDefinitions in the group " + group)
		}
		for _, b := range stored {
			if slices.Contains(groupsOf(b.Spec.Resources), group) {
				return refusal(fmt.Sprintf("this workspace has the group %s by APIBinding %s", group, b.Name))
			}
		}
	}
	return nil
}

// inAllWorkspaces refuses an export of a group that every workspace has.
func inAllWorkspaces(export *tenancyv1alpha1.APIExport) error {
	for _, group := range groupsOf(export.Spec.Resources) {
		if group == tenancyv1alpha1.Group || slices.Contains(fleetGroups[:], group) || workspaces.IsBuiltIn(group) {
			return refusal("all workspaces have the group " + group)
		}
		if strings.HasSuffix(group, "."+infrav1alpha1.ProvidersDomain) {
			return refusal("the group " + group + " is one of Providers")
		}
	}
	return nil
}

// record writes the exporter and the resources into an APIBinding.
func record(obj *unstructured.Unstructured, workspaceUID string, resources []tenancyv1alpha1.ExportedResource) error {
	list := make([]any, len(resources))
	for i, r := range resources {
		list[i] = map[string]any{"group": r.Group, "resource": r.Resource}
	}
	if err := unstructured.SetNestedField(obj.Object, workspaceUID, "spec", "export", "workspaceUID"); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(obj.Object, list, "spec", "resources")
}
