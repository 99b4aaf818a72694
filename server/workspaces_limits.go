package server

import (
	"context"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/tenancy"
)

const (
	// usageInterval is the time between reports of the usage of workspaces that are in use.
	usageInterval = 10 * time.Minute
	// usageTimeout bounds one report.
	usageTimeout = 5 * time.Second
)

// limit sets the limits of a workspace that is being opened. The directory may not know it yet.
func (t *tenants) limit(ctx context.Context, uid, name string, open *tenant) error {
	w, known := t.directory.ByUID(uid)
	if !known {
		var err error
		if w, err = t.directory.Confirm(ctx, name, uid); err != nil {
			return err
		}
	}
	open.keyspace.SetLimits(tenancy.Limits(w))
	return nil
}

// limitsChanged applies the newest limits, if the workspace is awake, and reports its usage.
func (t *tenants) limitsChanged(key, uid string) {
	t.pool.With(key, func(open *tenant) {
		t.limits.Lock() // two changes at once must not be applied in the wrong order
		defer t.limits.Unlock()
		if w, known := t.directory.ByUID(uid); known {
			open.keyspace.SetLimits(tenancy.Limits(w))
		}
		t.report(t.running, key, open)
	})
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
	uid, _, _ := strings.Cut(key, " ")
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
