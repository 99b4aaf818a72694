package server

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
)

// settleAttempts bounds how often a reservation is read again because it, or its Workspace, has changed.
const settleAttempts = 5

// checkBudget refuses a Workspace that lacks a limit that the workspace with that path has. The keyspace checks the amounts when the object
// is written.
func (t *tenants) checkBudget(ctx context.Context, path string, r *apiserver.AdmissionRequest) error {
	is, err := tenancy.LimitsIn(r.Object)
	if err != nil {
		return nil // the schema refuses it
	}
	var before *kv.Limits
	if r.Old != nil {
		old, err := tenancy.LimitsIn(r.Old)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		before = &old
	}
	in, parent, release, err := t.tree.Acquire(ctx, path)
	if err != nil {
		return t.unknownLimits(path, err)
	}
	defer release()
	has := parent.keyspace.Limits()
	if tenancy.CheckBudget(path, has, kv.Usage{}, before, is) == nil {
		return nil
	}
	used, err := parent.keyspace.Usage(in)
	if err != nil {
		return t.unknownLimits(path, err)
	}
	return forbidden(r, tenancy.CheckBudget(path, has, used, before, is))
}

// checkChildren refuses new limits of a workspace with others in it that lack them, and prepares the others: those that an earlier version
// created have no reservations.
func (t *tenants) checkChildren(ctx context.Context, path string, r *apiserver.AdmissionRequest) error {
	if r.Old == nil {
		return nil // it is empty
	}
	is, err := tenancy.LimitsIn(r.Object)
	if err != nil {
		return nil // the schema refuses it
	}
	before, err := tenancy.LimitsIn(r.Old)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if len(tenancy.Missing(before, is)) == 0 {
		return nil
	}
	in, open, release, err := t.tree.Acquire(ctx, path)
	if errors.Is(err, tenancy.ErrNotFound) || errors.Is(err, workspaces.ErrIncomplete) {
		return nil // it is being deleted, or copied: there are no workspaces in it
	}
	if err != nil {
		return t.unknownLimits(path, err)
	}
	defer release()
	client, err := t.clientOf(open)
	if err != nil {
		return t.unknownLimits(path, err)
	}
	children, err := tenancy.ListWorkspaces(in, client)
	if err != nil {
		return t.unknownLimits(path, err)
	}
	if err := tenancy.CheckChildren(path, before, is, children); err != nil {
		return forbidden(r, err)
	}
	if err := t.settleBudgets(in, path, children); err != nil {
		return t.unknownLimits(path, err)
	}
	return nil
}

// unknownLimits is the answer to a request that needs limits which cannot be read.
func (t *tenants) unknownLimits(path string, err error) error {
	t.s.cfg.Log.Error("read the limits of a workspace failed", "workspace", path, "error", err)
	return apierrors.NewServiceUnavailable(fmt.Sprintf("the limits of workspace %s, or of workspaces in it, cannot be read now: retry", path))
}

// settleBudgets makes each of the workspaces directly in another one take as much of its limits as they need: those whose limits were
// lowered, and those that have no reservation.
func (t *tenants) settleBudgets(ctx context.Context, path string, children []*tenancyv1alpha1.Workspace) error {
	in, parent, release, err := t.tree.Acquire(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	reserved, err := t.served.Reserved(in, parent.Workspace, "")
	if err != nil {
		return err
	}
	var failed []error
	for _, w := range children {
		is, exists := reserved[w.Name]
		delete(reserved, w.Name)
		if exists && is.Amounts == tenancy.Budget(w) || w.DeletionTimestamp != nil {
			continue
		}
		if err := t.settleBudget(in, parent, below(path, w.Name), nil); err != nil {
			failed = append(failed, fmt.Errorf("settle what %s takes of the limits of %s: %w", w.Name, path, err))
		}
	}
	for name, is := range reserved { // their Workspaces do not exist, or have been created a moment ago
		if _, err := t.served.SetReservation(in, parent.Workspace, tenancyv1alpha1.WorkspaceResource.GroupResource(), name, "", is, kv.Usage{}); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// settleBudget makes the workspace with that path take as much of its parent's limits as it needs. It takes less only after its keyspace
// has stored the limits, which all servers obey from then on, and not less than it uses then. open is nil if it may have to be opened.
func (t *tenants) settleBudget(ctx context.Context, parent *tenant, path string, open *tenant) error {
	name := tenancy.Name(path)
	for range settleAttempts {
		w, err := t.child(ctx, parent, name)
		if errors.Is(err, tenancy.ErrNotFound) || err == nil && w.DeletionTimestamp != nil {
			return nil
		}
		if err != nil {
			return err
		}
		reserved, err := t.served.Reserved(ctx, parent.Workspace, name)
		if err != nil {
			return err
		}
		is, exists := reserved[name]
		amounts, current, err := t.amounts(ctx, path, w, is.Amounts, open)
		switch {
		case errors.Is(err, tenancy.ErrNotFound), errors.Is(err, workspaces.ErrIncomplete):
			return nil // it is being deleted, or will be settled when it is complete
		case err != nil:
			return err
		case !current:
			continue
		case exists && amounts == is.Amounts:
			return nil
		}
		done, err := t.served.SetReservation(ctx, parent.Workspace, tenancyv1alpha1.WorkspaceResource.GroupResource(), name, w.ResourceVersion, is, amounts)
		if done || err != nil {
			return err
		}
	}
	return nil // others are changing it, and record that
}

// amounts returns the amounts that a workspace takes of its parent's limits. current is false if its limits have changed since w was read.
func (t *tenants) amounts(ctx context.Context, path string, w *tenancyv1alpha1.Workspace, reserved kv.Usage, open *tenant) (amounts kv.Usage, current bool, err error) {
	needed := tenancy.Budget(w)
	if reserved.Max(needed) == needed {
		return needed, true, nil
	}
	if open == nil {
		in, opened, release, err := t.tree.Acquire(ctx, path)
		if err != nil {
			return amounts, false, err
		}
		defer release()
		ctx, open = in, opened
	}
	if open.UID() != string(w.UID) {
		return amounts, false, nil
	}
	if current, err = t.storeLimits(ctx, open, w, true); err != nil || !current {
		return amounts, false, err
	}
	used, err := open.keyspace.Usage(ctx)
	return tenancy.Lowered(reserved, needed, used), true, err
}

// storeLimits stores the limits of a workspace in its keyspace, if that has those of an earlier generation, or none and create is set.
// current is false if it has those of a later one.
func (t *tenants) storeLimits(ctx context.Context, open *tenant, w *tenancyv1alpha1.Workspace, create bool) (current bool, err error) {
	limits, err := tenancy.EncodeLimits(w)
	if err != nil {
		return false, err
	}
	key := kv.Span{Start: []byte(kv.LimitsKey)}
	exempted, exempt := kv.WithExemption(ctx)
	exempt(true)
	for {
		found, err := open.keyspace.Range(ctx, kv.RangeRequest{Span: key})
		if err != nil {
			return false, err
		}
		at := kv.Revision(0)
		if len(found.KVs) > 0 {
			at = found.KVs[0].ModRevision
			if stored := found.KVs[0].Value; !tenancy.AreStale(stored, w) {
				return string(stored) == string(limits), nil
			}
		} else if !create {
			return true, nil
		}
		written, err := open.keyspace.Txn(exempted, kv.TxnRequest{
			If:   []kv.Compare{{Span: key, Target: kv.CompareMod, Op: kv.Equal, Int: at}},
			Then: []kv.Op{{Put: &kv.PutOp{Key: key.Start, Value: limits}}},
		})
		if err != nil || written.Succeeded {
			return err == nil, err
		}
	}
}
