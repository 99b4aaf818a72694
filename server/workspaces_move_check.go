package server

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
)

// maxMoved is how many workspaces may be in one that moves. The server opens each of them.
const maxMoved = 500

// visit gets an open workspace and the Workspaces in it. The context is that of a request to it.
type visit = func(in context.Context, path string, open *tenant, children []*tenancyv1alpha1.Workspace) error

var errTooManyMoved = errors.New("too many workspaces")

// walk visits a workspace and all those in it, also if no request of a user can open it.
func (t *tenants) walk(ctx context.Context, path, uid string, visit visit) error {
	left := maxMoved
	return t.walkFrom(ctx, path, uid, &left, visit)
}

func (t *tenants) walkFrom(ctx context.Context, path, uid string, left *int, visit visit) error {
	if *left--; *left < 0 {
		return errTooManyMoved
	}
	in, open, release, err := t.pool.Acquire(ctx, tenancy.Key(uid, path))
	if err != nil {
		return err
	}
	defer release()
	children, err := t.storedWorkspaces(in, open.Workspace)
	if err != nil {
		return fmt.Errorf("workspaces in %s: %w", path, err)
	}
	if err := visit(in, path, open, children); err != nil {
		return err
	}
	for _, child := range children {
		if err := t.walkFrom(in, path+":"+child.Name, string(child.UID), left, visit); err != nil {
			return err
		}
	}
	return nil
}

// storedWorkspaces reads the Workspaces in one.
func (t *tenants) storedWorkspaces(ctx context.Context, in *workspaces.Workspace) (all []*tenancyv1alpha1.Workspace, err error) {
	err = t.served.ReadAll(ctx, in, tenancyv1alpha1.WorkspaceResource.GroupResource(), func() metav1.Object {
		all = append(all, &tenancyv1alpha1.Workspace{})
		return all[len(all)-1]
	})
	return all, err
}

// movable refuses a workspace that cannot move to another path now. to is the path of the destination, or that of its parent if it has no name yet.
// Errors: *tenancy.Unready.
func (t *tenants) movable(ctx context.Context, from string, source *tenancyv1alpha1.Workspace, to string) error {
	switch {
	case tenancy.IsWithin(to, from):
		return &tenancy.Unready{Reason: "DestinationInSource", Message: fmt.Sprintf("workspace %s cannot move into itself: choose a destination that is not below it", from)}
	case source.Status.Phase != tenancyv1alpha1.WorkspaceReady:
		return &tenancy.Unready{Reason: "SourcePending", Message: fmt.Sprintf("workspace %s is not Ready: wait until it is, or delete this one", from), After: moveInterval}
	case source.Labels[v1alpha1.DeletionProtectedLabel] == "true":
		return &tenancy.Unready{Reason: "SourceProtected", Message: fmt.Sprintf("workspace %s is protected from deletion, and so its path is: remove the label %s from it first", from, v1alpha1.DeletionProtectedLabel)}
	}
	if source.Spec.Placement != nil {
		return &tenancy.Unready{Reason: "SourcePlaced", Message: fmt.Sprintf("the objects of workspace %s run in the clusters of the workspace above (spec.placement), and would stay there: create another workspace at the destination instead", from)}
	}
	copied, err := t.copyOf(ctx, from, source)
	if err != nil {
		return err
	}
	if copied != "" {
		return &tenancy.Unready{Reason: "SourceCopied", Message: fmt.Sprintf("workspace %s is being copied to %s: wait until the copy is Ready, or delete it", from, copied), After: moveInterval}
	}
	return t.checkTree(ctx, from, string(source.UID), to)
}

// copyOf returns the name of a workspace that is being made as a copy of another one, or "".
func (t *tenants) copyOf(ctx context.Context, from string, source *tenancyv1alpha1.Workspace) (string, error) {
	siblings := t.directory.FromSource(string(source.UID))
	if parent := tenancy.Parent(from); parent != "" {
		in, open, release, err := t.tree.Acquire(ctx, parent)
		if err != nil {
			return "", err
		}
		defer release()
		if siblings, err = t.storedWorkspaces(in, open.Workspace); err != nil {
			return "", err
		}
	}
	for _, w := range siblings {
		if of := w.Spec.Source; of != nil && of.Name != "" && of.UID == string(source.UID) && w.Status.Phase == tenancyv1alpha1.WorkspacePending {
			return w.Name, nil
		}
	}
	return "", nil
}

// checkTree refuses a workspace with others in it that are not Ready, or whose paths would be too long.
// Errors: *tenancy.Unready.
func (t *tenants) checkTree(ctx context.Context, from, uid, to string) error {
	err := t.walk(ctx, from, uid, func(_ context.Context, path string, _ *tenant, children []*tenancyv1alpha1.Workspace) error {
		if names := tenancy.Depth(to) + tenancy.Depth(path) - tenancy.Depth(from); len(children) > 0 && names+1 > tenancy.MaxDepth {
			return &tenancy.Unready{Reason: "TooDeep", Message: fmt.Sprintf("the path of workspace %s:%s would have more than %d names: choose a destination further up", path, children[0].Name, tenancy.MaxDepth)}
		}
		for _, child := range children {
			if child.Status.Phase != tenancyv1alpha1.WorkspaceReady || tenancy.IsLeaving(child) {
				return &tenancy.Unready{Reason: "SourceBusy", Message: fmt.Sprintf("workspace %s:%s, which moves with it, is not Ready: wait until it is, or delete it", path, child.Name), After: moveInterval}
			}
		}
		return nil
	})
	if errors.Is(err, errTooManyMoved) {
		return &tenancy.Unready{Reason: "TooManyWorkspaces", Message: fmt.Sprintf("workspace %s has more than %d workspaces in it: move those in it first", from, maxMoved-1)}
	}
	return err
}

// checkBelow is checkTree for a source whose requests have ended. It reads the source, and ends that again.
func (m *move) checkBelow(ctx context.Context, source *tenancyv1alpha1.Workspace) error {
	err := m.t.checkTree(ctx, m.from, string(source.UID), m.to)
	return errors.Join(err, m.endRequests(ctx, source))
}

// resolveMove refuses a new Workspace if its user may not move the source there, and gives it the owner and the limits of the source.
func (t *tenants) resolveMove(ctx context.Context, r *apiserver.AdmissionRequest, from string) error {
	source, err := t.mayMove(ctx, r, from)
	if refused := (refusal)(""); errors.As(err, &refused) {
		return forbidden(r, refused)
	}
	if unready, ok := errors.AsType[*tenancy.Unready](err); ok {
		return forbidden(r, unready)
	}
	if err != nil {
		t.s.cfg.Log.Error("check a move failed", "parent", workspaces.PathOf(ctx), "source", from, "error", err)
		return apierrors.NewServiceUnavailable(fmt.Sprintf("workspace %s cannot be opened now: retry", from))
	}
	t.warnOfConsumers(ctx, from, source)
	return keepOfSource(r, source)
}

// warnOfConsumers tells the user of a request how many workspaces lose the APIs that they get from one that moves, or from those in it.
func (t *tenants) warnOfConsumers(ctx context.Context, from string, source *tenancyv1alpha1.Workspace) {
	all := int64(0)
	err := t.walk(ctx, from, string(source.UID), func(in context.Context, _ string, open *tenant, _ []*tenancyv1alpha1.Workspace) error {
		n, err := workspaces.CountConsumers(in, open.Workspace)
		all += n
		return err
	})
	switch {
	case err != nil:
		apiserver.Warn(ctx, "it is not known now whether other workspaces have bound APIExports of the workspaces that move; such APIBindings have no effect afterwards: create them again")
	case all > 0:
		apiserver.Warn(ctx, fmt.Sprintf("%d APIBindings refer to APIExports of the workspaces that move, and have no effect afterwards: create them again with the new path", all))
	}
}

// keepOfSource gives a new Workspace the owner, the limits and the UID of the one that moves there.
func keepOfSource(r *apiserver.AdmissionRequest, source *tenancyv1alpha1.Workspace) error {
	given := &tenancyv1alpha1.Workspace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, given); err != nil {
		return nil // validation reports it
	}
	if given.Spec.Limits != nil && !equality.Semantic.DeepEqual(given.Spec.Limits, source.Spec.Limits) {
		return invalid("Workspace", r.Name, field.Forbidden(field.NewPath("spec", "limits"), "a workspace keeps its limits when it moves: leave them out"))
	}
	given.Spec.Limits, given.Spec.Owner, given.Spec.Source.UID = source.Spec.Limits, source.Spec.Owner, string(source.UID)
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&given.Spec)
	if err != nil {
		return err
	}
	return unstructured.SetNestedMap(r.Object.Object, spec, "spec")
}

// mayMove returns the Workspace that is to move, if the user of a request may move it. Who deletes a Workspace ends its path, so the verb
// delete is needed there, as create is at the destination. The user gets no permissions in the workspace.
// Errors: a refusal, *tenancy.Unready.
func (t *tenants) mayMove(ctx context.Context, r *apiserver.AdmissionRequest, from string) (*tenancyv1alpha1.Workspace, error) {
	if tenancy.IsOwnAccount(r.User.Name) || apiserver.Impersonated(ctx) {
		return nil, refusal("ServiceAccounts and impersonated users have no permissions in other workspaces: move the workspace as yourself")
	}
	missing := refusal(fmt.Sprintf("there is no workspace %s to move, or you lack the verb delete for it", from))
	if !workspaces.IsPath(from) || tenancy.Depth(from) > tenancy.MaxDepth {
		return nil, missing
	}
	source, err := t.deletable(ctx, r.User, from)
	if errors.Is(err, tenancy.ErrNotFound) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	to := workspaces.PathOf(ctx)
	if r.Name != "" {
		to = below(to, r.Name)
	}
	return source, t.movable(ctx, from, source, to)
}

// deletable returns a Workspace that a user may delete.
// Errors: tenancy.ErrNotFound, also if the user may not.
func (t *tenants) deletable(ctx context.Context, who apiserver.User, path string) (*tenancyv1alpha1.Workspace, error) {
	parent := tenancy.Parent(path)
	if parent == "" {
		allowed, err := t.rootAllows(ctx, "delete", tenancyv1alpha1.WorkspaceResource, path)
		if err == nil && !allowed {
			err = tenancy.ErrNotFound
		}
		if err != nil {
			return nil, err
		}
		return t.directory.Find(ctx, path)
	}
	in, open, release, err := t.tree.Acquire(ctx, parent)
	if err != nil {
		return nil, err
	}
	defer release()
	name := path[len(parent)+1:]
	allowed, err := t.served.Allowed(in, open.Workspace, who, "delete", tenancyv1alpha1.WorkspaceResource, name)
	if err == nil && !allowed {
		err = tenancy.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	w, err := t.child(in, open, name)
	if err == nil && tenancy.IsLeaving(w) {
		err = tenancy.ErrNotFound
	}
	return w, err
}
