package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/tenancy"
)

// definitionsKeyspace is the keyspace of the workspace that provides the group tenancy.atoll.dev to all others. It has no Workspace object,
// and so no path leads to it.
const definitionsKeyspace = "atoll.workspaces"

// recordTimeout bounds the writing of a record that a change was made.
const recordTimeout = 10 * time.Second

// systemWorkspace is the workspace that provides definitions to all others. It is opened by the first request for one, and stays open.
type systemWorkspace struct {
	mu   sync.Mutex
	open *tenant
}

// openSystem returns the workspace that provides definitions to all others.
func (t *tenants) openSystem(ctx context.Context) (*workspaces.Workspace, error) {
	t.system.mu.Lock()
	defer t.system.mu.Unlock()
	if t.system.open != nil {
		return t.system.open.Workspace, nil
	}
	retention := cmp.Or(t.s.cfg.HistoryRetention, defaultRetention)
	keyspace, err := t.s.datastore.Keyspace(ctx, definitionsKeyspace, mvcc.Options{CacheBytes: workspaceCache, Retention: mvcc.Retention{Age: retention},
		Observer: LogBehind(t.s.metrics.engine.Observer(), definitionsKeyspace), WatchSilence: min(retention, defaultRetention), ProgressInterval: time.Minute})
	if err != nil {
		return nil, err
	}
	client, err := etcd.InProcess(keyspace, "workspaces")
	if err != nil {
		return nil, errors.Join(err, keyspace.Close())
	}
	open := &tenant{Workspace: workspaces.NewWorkspace("system", client), keyspace: keyspace, close: func() error {
		_ = client.Close() // it has no connection
		return keyspace.Close()
	}}
	if err := t.served.Install(ctx, open.Workspace); err != nil {
		return nil, errors.Join(err, open.close())
	}
	t.system.open = open
	return open.Workspace, nil
}

// closeSystem closes it when no request runs any more.
func (t *tenants) closeSystem() {
	t.system.mu.Lock()
	defer t.system.mu.Unlock()
	if open := t.system.open; open != nil {
		t.close(definitionsKeyspace, open)
		t.system.open = nil
	}
}

// systemBinding is that of all workspaces to the group tenancy.atoll.dev.
func (t *tenants) systemBinding() workspaces.Binding {
	return workspaces.Binding{Group: tenancyv1alpha1.Group, Changing: t.changing, Open: t.systemExporter}
}

// systemExporter opens the workspace that provides definitions to all others, as workspaces.Binding.Open.
func (t *tenants) systemExporter(ctx context.Context) (context.Context, workspaces.Exporter, func(), error) {
	system, err := t.openSystem(ctx)
	return ctx, workspaces.Exporter{Workspace: system}, func() {}, err
}

// changing records that a request changes Workspaces in a workspace, before and after it, and APIBindings, after it.
func (t *tenants) changing(ctx context.Context, resource string) (changed func(), err error) {
	path := workspaces.PathOf(ctx)
	if resource == tenancyv1alpha1.APIBindingResource.Resource && path != "" {
		return func() { t.recordBindings(ctx) }, nil
	}
	if resource != tenancyv1alpha1.WorkspaceResource.Resource || path == "" {
		return func() {}, nil
	}
	if err := t.directory.RecordChange(ctx, path); err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		if err := t.directory.RecordChange(ctx, path); err != nil && !errors.Is(err, tenancy.ErrNotFound) {
			t.s.cfg.Log.Warn("record a change of workspaces failed; it is found later", "workspace", path, "error", err)
		}
	}, nil
}

// child reads the Workspace of a name from the workspace that has it.
func (t *tenants) child(ctx context.Context, parent *tenant, name string) (*tenancyv1alpha1.Workspace, error) {
	w := &tenancyv1alpha1.Workspace{}
	err := t.served.Read(ctx, parent.Workspace, tenancyv1alpha1.WorkspaceResource.GroupResource(), name, w)
	if errors.Is(err, workspaces.ErrNotFound) {
		return nil, tenancy.ErrNotFound
	}
	return w, err
}

// openFor returns a client of the workspace with that path, for the controller.
func (t *tenants) openFor(ctx context.Context, path string) (context.Context, dynamic.Interface, func(), error) {
	in, open, release, err := t.tree.Acquire(ctx, path)
	if err != nil {
		return nil, nil, nil, err
	}
	client, err := t.clientOf(open)
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	return in, client, release, nil
}

func (t *tenants) clientOf(open *tenant) (dynamic.Interface, error) {
	config, err := t.served.ClientConfig(open.Workspace)
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(config)
}

// confirmCreated drops a keyspace that was just created if its workspace has been deleted since it was confirmed: the controller may have
// looked for the keyspace before.
func (t *tenants) confirmCreated(ctx context.Context, path, uid string, keyspace *partition.Keyspace) error {
	_, err := t.tree.Confirm(ctx, path, uid)
	if err == nil {
		return nil
	}
	err = errors.Join(err, keyspace.Close())
	if errors.Is(err, tenancy.ErrNotFound) {
		err = errors.Join(err, t.drop(ctx, uid))
	}
	return err
}

// removeChildren removes the workspaces in one that is being deleted and whose requests have ended. Their objects go with its keyspace,
// so they are removed before that.
func (t *tenants) removeChildren(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) error {
	children, err := t.children(ctx, path, w)
	if err != nil {
		return fmt.Errorf("workspaces in %s: %w", path, err)
	}
	for _, child := range children {
		if err := t.removeIn(ctx, path+":"+child.Name, child, true); err != nil {
			return fmt.Errorf("workspace %s:%s: %w", path, child.Name, err)
		}
	}
	t.end(ctx, path, w) // reading has opened it again
	return nil
}

// children reads the Workspaces in one that is being deleted. No request of a user opens it any more.
func (t *tenants) children(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) ([]*tenancyv1alpha1.Workspace, error) {
	in, open, release, err := t.pool.Acquire(ctx, tenancy.Key(string(w.UID), path))
	if errors.Is(err, tenancy.ErrNotFound) || errors.Is(err, workspaces.ErrIncomplete) {
		return nil, nil // it has no keyspace, or one without Workspaces
	}
	if err != nil {
		return nil, err
	}
	defer release()
	client, err := t.clientOf(open)
	if err != nil {
		return nil, err
	}
	return tenancy.ListWorkspaces(in, client)
}

// ownerOf returns the user who gets the role cluster-admin in a new workspace, "" if none does.
func ownerOf(w *tenancyv1alpha1.Workspace) string {
	if w.Spec.Owner == nil || tenancy.IsOwnAccount(w.Spec.Owner.Username) {
		return ""
	}
	return w.Spec.Owner.Username
}

// nestedAdmission sets the fields of Workspaces in workspaces that no user sets.
func (t *tenants) nestedAdmission() []apiserver.AdmissionStep {
	types := t.nestedTypes()
	return append(append(t.nestedFleetAdmission(), t.nestedInfraAdmission()...), apiserver.AdmissionStep{
		Resource:    tenancyv1alpha1.WorkspaceResource.GroupResource(),
		CheckDelete: t.checkFleetBelow,
		Resolve:     t.s.resolveWorkspace(types),
		Complete:    completeWorkspace(workspaces.ServerUser),
		Check: func(ctx context.Context, r *apiserver.AdmissionRequest) error {
			path := workspaces.PathOf(ctx)
			if r.Old != nil {
				if err := types.check(ctx, r); err != nil || path == "" { // the server itself changes no limits
					return err
				}
				if err := t.checkPlacement(ctx, below(path, r.Name), r, types); err != nil {
					return err
				}
				if err := t.checkBudget(ctx, path, r); err != nil {
					return err
				}
				return t.checkChildren(ctx, below(path, r.Name), r)
			}
			if err := tenancy.CheckNested(path); err != nil {
				return forbidden(r, err)
			}
			if err := t.checkPlacement(ctx, below(path, r.Name), r, types); err != nil {
				return err
			}
			if err := t.checkBudget(ctx, path, r); err != nil {
				return err
			}
			return t.checkSource(ctx, r)
		},
	}, t.bindingAdmission(), t.s.typeAdmission())
}

// keepFinalizer adds the finalizer to a new Workspace, so that the controller need not do it with a second write. It lets only the server
// remove it: without it, the Workspace would be gone before its objects are.
func keepFinalizer(r *apiserver.AdmissionRequest, server string) {
	mayRemove := r.User.Name == server || r.Old != nil && !slices.Contains(r.Old.GetFinalizers(), tenancyv1alpha1.WorkspaceFinalizer)
	if all := r.Object.GetFinalizers(); !mayRemove && !slices.Contains(all, tenancyv1alpha1.WorkspaceFinalizer) {
		r.Object.SetFinalizers(append(slices.Clone(all), tenancyv1alpha1.WorkspaceFinalizer))
	}
}
