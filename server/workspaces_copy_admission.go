package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
)

// everything stands for all resources, in the RBAC of a workspace.
var everything = schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}

// resolveSource refuses a new Workspace that its user may not make a copy, or move there, and records the UID of the source.
func (t *tenants) resolveSource(ctx context.Context, r *apiserver.AdmissionRequest) error {
	if from := sourceOf(r, "moveFrom"); r.Old == nil && from != "" {
		return t.resolveMove(ctx, r, from)
	}
	name := sourceOf(r, "name")
	if r.Old != nil || name == "" {
		return checkBackup(ctx, r)
	}
	uid, err := t.mayCopy(ctx, r, name)
	if err != nil {
		return err
	}
	return unstructured.SetNestedField(r.Object.Object, uid, "spec", "source", "uid")
}

// checkSource is resolveSource for the object as it would be stored: a webhook or a policy may have changed the source.
func (t *tenants) checkSource(ctx context.Context, r *apiserver.AdmissionRequest) error {
	if r.Old == nil && sourceOf(r, "moveFrom") != "" {
		return unchanged(ctx, r, tenancyv1alpha1.WorkspaceResource, t.resolveSource)
	}
	name := sourceOf(r, "name")
	if r.Old != nil || name == "" {
		return checkBackup(ctx, r)
	}
	uid, err := t.mayCopy(ctx, r, name)
	if err == nil && uid != sourceOf(r, "uid") {
		err = forbidden(r, refusal("spec.source was changed after it was checked: exclude it from mutating webhooks and policies, and retry"))
	}
	return err
}

// checkBackup refuses a new Workspace from a backup, unless its user is an administrator of the server: the file may have objects that no
// request could create.
func checkBackup(ctx context.Context, r *apiserver.AdmissionRequest) error {
	backup, _, _ := unstructured.NestedBool(r.Object.Object, "spec", "source", "backup")
	if r.Old == nil && backup && !mayRestore(ctx, r.User) {
		return forbidden(r, refusal("only users in the group system:masters restore workspaces from backups, and not by impersonation"))
	}
	return nil
}

// mayRestore reports whether a user may restore backups.
func mayRestore(ctx context.Context, who apiserver.User) bool {
	return slices.Contains(who.Groups, mastersGroup) && !apiserver.Impersonated(ctx)
}

// sourceOf returns a field of spec.source, "" without one.
func sourceOf(r *apiserver.AdmissionRequest, field string) string {
	text, _, _ := unstructured.NestedString(r.Object.Object, "spec", "source", field)
	return text
}

func forbidden(r *apiserver.AdmissionRequest, why error) error {
	return apierrors.NewForbidden(tenancyv1alpha1.WorkspaceResource.GroupResource(), r.Name, why)
}

// mayCopy returns the UID of a workspace in the API of a request if its user may copy it. The error is the answer to the request.
func (t *tenants) mayCopy(ctx context.Context, r *apiserver.AdmissionRequest, name string) (uid string, err error) {
	uid, err = t.allowCopy(ctx, r.User, name)
	if refused := (refusal)(""); errors.As(err, &refused) {
		return "", forbidden(r, refused)
	}
	if errors.Is(err, workspaces.ErrIncomplete) {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("workspace %s is being copied from another one itself: wait until it is Ready", name))
	}
	if err != nil {
		t.s.cfg.Log.Error("check the source of a workspace failed", "parent", workspaces.PathOf(ctx), "source", name, "error", err)
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("workspace %s cannot be opened now: retry", name))
	}
	return uid, nil
}

// allowCopy returns the UID of a workspace in the API of a request if a user may copy it.
func (t *tenants) allowCopy(ctx context.Context, who apiserver.User, name string) (uid string, err error) {
	_, source, release, err := t.openForCopy(ctx, who, below(workspaces.PathOf(ctx), name))
	if err != nil {
		return "", err
	}
	defer release()
	return source.UID(), t.checkProvidersOfSource(ctx, source.Workspace)
}

// openForCopy opens a workspace for a user with the permission to copy it. A copy shows all objects of the workspace, Secrets included.
// Errors: a refusal.
func (t *tenants) openForCopy(ctx context.Context, who apiserver.User, path string) (context.Context, *tenant, func(), error) {
	if tenancy.IsOwnAccount(who.Name) || apiserver.Impersonated(ctx) {
		return nil, nil, nil, refusal("ServiceAccounts and impersonated users have no permissions in other workspaces: copy the workspace as yourself")
	}
	missing := refusal(fmt.Sprintf("there is no workspace %s to copy, or you lack all permissions in it (the verb * for all resources)", path))
	if !workspaces.IsPath(path) {
		return nil, nil, nil, missing
	}
	in, source, release, err := t.tree.Acquire(ctx, path)
	if errors.Is(err, tenancy.ErrNotFound) {
		err = missing
	}
	if err != nil {
		return nil, nil, nil, err
	}
	allowed, err := t.served.Allowed(in, source.Workspace, who, "*", everything, "")
	if err == nil && !allowed {
		err = missing
	}
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	return in, source, release, nil
}

// keepSource lets the UID of a source never change, also if a request omits it.
func keepSource(r *apiserver.AdmissionRequest) {
	source, found, _ := unstructured.NestedMap(r.Object.Object, "spec", "source")
	if r.Old == nil || !found {
		return
	}
	uid, found, _ := unstructured.NestedString(r.Old.Object, "spec", "source", "uid")
	if found {
		source["uid"] = uid
	} else {
		delete(source, "uid")
	}
	_ = unstructured.SetNestedMap(r.Object.Object, source, "spec", "source") // spec is a map: it has source
}
