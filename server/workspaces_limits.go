package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/tenancy"
)

const (
	// usageInterval is the time between reports of the usage of workspaces that are in use.
	usageInterval = 10 * time.Minute
	// usageTimeout bounds one report.
	usageTimeout = 5 * time.Second
)

// limit sets the limits of a workspace that is being opened.
func (t *tenants) limit(ctx context.Context, uid, path string, open *tenant) error {
	w, err := t.byUID(ctx, uid, path)
	if errors.Is(err, tenancy.ErrNotFound) { // it is being deleted: only the server opens it, to remove the workspaces in it
		return nil
	}
	if err == nil {
		open.keyspace.SetLimits(tenancy.Limits(w))
	}
	return err
}

// byUID returns the Workspace with that UID and path.
func (t *tenants) byUID(ctx context.Context, uid, path string) (*tenancyv1alpha1.Workspace, error) {
	if w, known := t.directory.ByUID(uid); known {
		return w, nil
	}
	return t.tree.Confirm(ctx, path, uid) // the directory may not know it yet, and never knows those in workspaces
}

// limitsChanged applies the newest limits, if the workspace is awake, and reports its usage.
func (t *tenants) limitsChanged(key string) {
	t.pool.With(key, func(open *tenant) {
		t.limits.Lock() // two changes at once must not be applied in the wrong order
		defer t.limits.Unlock()
		ctx, cancel := context.WithTimeout(t.running, usageTimeout)
		defer cancel()
		uid, path := tenancy.ParseKey(key)
		if err := t.limit(ctx, uid, path, open); err != nil {
			t.s.cfg.Log.Warn("read the limits of a workspace failed; the previous ones apply until it is opened again", "workspace", path, "error", err)
		}
		t.report(t.running, key, open)
	})
}

// limitsBelowChanged applies the newest limits of the workspaces directly in another one, if they are awake.
func (t *tenants) limitsBelowChanged(parent string) {
	for _, key := range t.pool.Keys() {
		if _, path := tenancy.ParseKey(key); tenancy.Parent(path) == parent {
			t.limitsChanged(key)
		}
	}
}

// checkUnlimited returns an error if the workspace with that path, or one above it, has limits: those in it would not obey them.
func (t *tenants) checkUnlimited(ctx context.Context, path string) error {
	for above := path; above != ""; above = tenancy.Parent(above) {
		_, open, release, err := t.tree.Acquire(ctx, above)
		if err != nil {
			return err
		}
		limited := open.keyspace.Limits().Any()
		release()
		if limited {
			return fmt.Errorf("workspace %q has limits, which the workspaces in it would not count for: create it elsewhere, or remove spec.limits of %q", above, above)
		}
	}
	return nil
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

// report writes the usage of a workspace into its status. It does not repeat what failed: the next report follows.
func (t *tenants) report(ctx context.Context, key string, open *tenant) {
	uid, _ := tenancy.ParseKey(key)
	w, known := t.directory.ByUID(uid)
	if !known || w.DeletionTimestamp != nil || t.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	used, err := open.keyspace.Usage(ctx)
	if err == nil {
		err = tenancy.ReportUsage(ctx, t.client, w, used)
	}
	if err != nil {
		t.s.cfg.Log.Debug("report the usage of a workspace failed", "workspace", w.Name, "error", err)
	}
}
