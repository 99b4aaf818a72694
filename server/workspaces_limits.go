package server

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/dynamic"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
)

const (
	// usageInterval is the time between reports of the usage of workspaces that are in use.
	usageInterval = 10 * time.Minute
	// usageTimeout bounds one report.
	usageTimeout = 5 * time.Second
)

// limit sets the limits of a workspace that is being opened, or whose limits may have changed. In a parent with limits, it obeys those that
// it lacks as 0.
func (t *tenants) limit(ctx context.Context, uid, path string, open *tenant) error {
	limits, err := t.limits(ctx, uid, path, open)
	if errors.Is(err, tenancy.ErrNotFound) { // it is being deleted: only the server opens it, to remove the workspaces in it
		return nil
	}
	if err == nil {
		open.keyspace.SetLimits(limits)
		err = t.limitCompiled(ctx, uid, path, open)
	}
	return err
}

func (t *tenants) limits(ctx context.Context, uid, path string, open *tenant) (limits kv.Limits, err error) {
	w, err := t.byUID(ctx, uid, path)
	if err != nil {
		return limits, err
	}
	t.follow(open, w, path)
	limits = tenancy.Limits(w)
	parent := tenancy.Parent(path)
	if parent == "" {
		return limits, nil
	}
	_, above, release, err := t.tree.Acquire(ctx, parent)
	if err != nil {
		return limits, err
	}
	defer release()
	_, err = t.storeLimits(ctx, open, w, false)
	return tenancy.Obeyed(limits, above.keyspace.Limits()), err
}

// byUID returns the Workspace with that UID and path.
func (t *tenants) byUID(ctx context.Context, uid, path string) (*tenancyv1alpha1.Workspace, error) {
	if w, known := t.directory.ByUID(uid); known {
		return w, nil
	}
	return t.tree.Confirm(ctx, path, uid) // the directory may not know it yet, and never knows those in workspaces
}

// limitsChanged applies the newest limits, if the workspace is awake, to it and those in it, and reports its usage if they are others than before.
func (t *tenants) limitsChanged(key string) {
	t.pool.With(key, func(open *tenant) {
		uid, path := tenancy.ParseKey(key)
		if t.applyLimits(uid, path, open) {
			t.limitsBelowChanged(path)
			t.report(t.running, key, open)
		}
	})
}

// applyLimits applies the newest limits of a workspace, and reports whether they are others than before.
func (t *tenants) applyLimits(uid, path string, open *tenant) bool {
	t.limiting.Lock() // two changes at once must not be applied in the wrong order
	defer t.limiting.Unlock()
	ctx, cancel := context.WithTimeout(t.running, usageTimeout)
	defer cancel()
	before := open.keyspace.Limits()
	compiled, _ := open.CompiledLimits()
	if err := t.limit(ctx, uid, path, open); err != nil {
		t.s.cfg.Log.Warn("read the limits of a workspace failed; the previous ones apply until it is opened again", "workspace", path, "error", err)
	}
	now, _ := open.CompiledLimits()
	return now != compiled || !equality.Semantic.DeepEqual(before, open.keyspace.Limits())
}

// limitsBelowChanged applies the newest limits of the workspaces directly in another one, if they are awake.
func (t *tenants) limitsBelowChanged(parent string) {
	for _, key := range t.pool.Keys() {
		if _, path := tenancy.ParseKey(key); tenancy.Parent(path) == parent {
			t.limitsChanged(key)
		}
	}
}

// changedBelow is called when Workspaces directly in another one may have changed.
func (t *tenants) changedBelow(ctx context.Context, parent string) {
	t.limitsBelowChanged(parent)
	if t.mayEnd() {
		t.endMoved(ctx, parent)
	}
}

// reportUsage reports the usage of all workspaces that are awake, at intervals until ctx ends.
func (t *tenants) reportUsage(ctx context.Context) {
	ticker := t.s.cfg.Clock.NewTicker(usageInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			for _, key := range t.pool.Keys() {
				t.pool.With(key, func(open *tenant) { t.report(ctx, key, open) })
			}
		}
	}
}

// report writes the usage of a workspace into its status. It does not repeat after a failure: the next report follows.
func (t *tenants) report(ctx context.Context, key string, open *tenant) {
	if t.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	uid, path := tenancy.ParseKey(key)
	err := t.reportIn(ctx, uid, path, open)
	if err != nil && !errors.Is(err, tenancy.ErrNotFound) {
		t.s.cfg.Log.Debug("report the usage of a workspace failed", "workspace", path, "error", err)
	}
}

func (t *tenants) reportIn(ctx context.Context, uid, path string, open *tenant) error {
	parent, name := tenancy.Parent(path), tenancy.Name(path)
	if parent == "" {
		w, known := t.directory.ByUID(uid)
		if !known {
			return tenancy.ErrNotFound
		}
		return t.reportBy(ctx, t.client, w, open)
	}
	in, above, release, err := t.tree.Acquire(ctx, parent)
	if err != nil {
		return err
	}
	defer release()
	w, err := t.child(in, above, name)
	if err != nil || string(w.UID) != uid {
		return err
	}
	client, err := t.clientOf(above)
	if err == nil {
		err = t.reportBy(in, client, w, open)
	}
	if err == nil && above.keyspace.Limits().Any() {
		err = t.settleBudget(in, above, path, open) // it may use less than before
	}
	return err
}

// reportBy writes the usage with the client of the API that has the Workspace.
func (t *tenants) reportBy(ctx context.Context, client dynamic.Interface, w *tenancyv1alpha1.Workspace, open *tenant) error {
	if w.DeletionTimestamp != nil {
		return nil
	}
	used, err := open.keyspace.Usage(ctx)
	if err != nil {
		return err
	}
	compiled, err := t.served.Compiled(ctx, open.Workspace)
	if err != nil {
		return err
	}
	return tenancy.ReportUsage(ctx, client, w, used, compiled.Definitions, compiled.Expressions)
}
