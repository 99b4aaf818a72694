package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/tenancy"
)

// limitCompiled sets how many definitions and expressions a workspace may have.
func (t *tenants) limitCompiled(ctx context.Context, uid, path string, open *tenant) error {
	w, err := t.byUID(ctx, uid, path)
	if err != nil {
		return err
	}
	limits, err := t.compiledLimits(ctx, path, w)
	if err == nil {
		open.SetCompiledLimits(limits)
	}
	return err
}

// compiledLimits returns how many definitions and expressions a workspace may have. A nested workspace may have at most as many as
// its parent: whoever administers the parent sets the nested one's limits.
func (t *tenants) compiledLimits(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) (limits workspaces.Compiled, err error) {
	limits.Definitions, limits.Expressions = tenancy.CompiledLimits(w)
	parent := tenancy.Parent(path)
	if parent == "" {
		return limits, nil
	}
	_, above, release, err := t.tree.Acquire(ctx, parent)
	if err != nil {
		return limits, err
	}
	defer release()
	if most, known := above.CompiledLimits(); known {
		limits = limits.Min(most)
	}
	return limits, nil
}

// checkCompiledCopy returns an error if a copy has more definitions or expressions than it may have. A backup may come from anywhere.
// Errors: *tenancy.Unready.
func (t *tenants) checkCompiledCopy(ctx context.Context, path string, w *tenancyv1alpha1.Workspace, keyspace kv.Keyspace) error {
	limits, err := t.compiledLimits(ctx, path, w)
	if err != nil {
		return err
	}
	client, err := etcd.InProcess(keyspace, "workspaces")
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // it has no connection
	has, err := t.served.CountCompiled(ctx, client.KV)
	if err != nil {
		return err
	}
	for _, one := range []struct {
		field      string
		has, limit int64
	}{{"definitions", has.Definitions, limits.Definitions}, {"expressions", has.Expressions, limits.Expressions}} {
		if one.has > one.limit {
			return &tenancy.Unready{Reason: "LimitExceeded", Message: fmt.Sprintf("%s has %d %s, and the limit is %d: raise spec.limits.%s of this workspace, and of the workspaces above it",
				sourceName(w), one.has, one.field, one.limit, one.field)}
		}
	}
	return nil
}

// checkAboveDefault refuses limits of a new workspace of the root that are higher than the default, if the user could not raise them later. The
// default protects the memory of the server, which all workspaces share. Limits of a type are not those of the user; those of a
// workspace that moves here from another one are.
func (t *tenants) checkAboveDefault(ctx context.Context, r *apiserver.AdmissionRequest) error {
	if r.Old != nil {
		return nil
	}
	fields := tenancy.AboveDefault(r.Object)
	if len(fields) == 0 {
		return nil
	}
	allowed, err := t.rootAllows(ctx, "update", tenancyv1alpha1.WorkspaceResource, r.Name)
	if err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("whether you may set limits above the default is not known now: retry: %v", err))
	}
	if allowed {
		return nil
	}
	return apierrors.NewForbidden(tenancyv1alpha1.WorkspaceResource.GroupResource(), r.Name, errors.New("spec.limits."+strings.Join(fields, " and spec.limits.")+
		fmt.Sprintf(" may be at most %d definitions and %d expressions, unless you have the verb update for Workspaces: lower them, or ask an administrator", tenancyv1alpha1.DefaultDefinitions, tenancyv1alpha1.DefaultExpressions)))
}
